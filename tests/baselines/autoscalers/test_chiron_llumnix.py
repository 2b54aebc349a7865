"""Chiron's and Llumnix's scalers."""

import numpy as np
import pytest

from serving_gym.baselines.chiron.autoscaler import ChironConfig, ChironPolicy
from serving_gym.baselines.chiron.backpressure import batch_waiting_s, interactive_backpressure
from serving_gym.baselines.llumnix.scaler import LlumnixScalingConfig, LlumnixScalingPolicy, average_freeness
from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.envs.interface.scaling import Operation, Pool
from tests.baselines.autoscalers.states import endpoint, instances, net, spec, state


def pools(
    interactive: int, mixed: int, batch: int, busy: int = 0, status=InstanceStatus.RUNNING
) -> np.ndarray:
    """Instances of the three pools, the first of which have an interactive request."""
    names = [Pool.INTERACTIVE] * interactive + [Pool.MIXED] * mixed + [Pool.BATCH] * batch
    return instances(
        [
            {"pool": name, "num_interactive": number < busy, "status": status}
            for number, name in enumerate(names)
        ]
    )


def test_backpressure_by_hand():
    assert interactive_backpressure(pools(3, 2, 4, busy=4)) == 4 / 5
    assert interactive_backpressure(pools(0, 0, 4)) == float("inf")
    assert batch_waiting_s(3, 4000, 2, 10.0, 100.0) == 30 + 20
    assert batch_waiting_s(1, 10, 0, 10.0, 100.0) == float("inf")
    assert batch_waiting_s(0, 0, 0, 10.0, 100.0) == 0


def chiron(**values) -> ChironPolicy:
    policy = ChironPolicy(ChironConfig(**values))
    policy.reset(spec(max_instances=40, min_instances=0), 0)
    return policy


def by_pool(changes) -> dict:
    return {change.pool: change.signed for change in changes if change.signed > 0}


def test_the_pools_of_the_paper_are_set_up_first():
    policy = chiron()
    changes = policy.act(None, state(endpoint(pools(0, 7, 0))))
    assert by_pool(changes) == {Pool.INTERACTIVE: 10, Pool.BATCH: 5}
    (back,) = [change for change in changes if change.signed < 0]
    assert back.count == 2


def started(**values) -> ChironPolicy:
    policy = chiron(interactive_instances=0, mixed_instances=0, batch_instances=0, **values)
    policy.act(None, state(endpoint(0)))
    return policy


def test_interactive_and_mixed_instances_follow_theta():
    policy = started()
    out = policy.act(None, state(endpoint(pools(5, 5, 0, busy=7))))
    assert by_pool(out) == {Pool.INTERACTIVE: 1, Pool.MIXED: 1}
    back = policy.act(None, state(endpoint(pools(5, 5, 0, busy=6))))
    assert sorted(change.places for change in back) == [(0,), (5,)]
    assert not policy.act(None, state(endpoint(pools(2, 2, 0))))  # the fewest
    rows = np.concatenate([pools(5, 5, 0, busy=10), pools(1, 1, 0, status=InstanceStatus.STARTING)])
    assert not policy.act(None, state(endpoint(rows)))  # in progress


def test_batch_instances_follow_their_deadline():
    policy = started(theta=0.6)
    late = endpoint(pools(2, 2, 1), niw_queued=8641)  # 8,641 prompts of 10 s are more than a day
    assert by_pool(policy.act(None, state(late))) == {Pool.BATCH: 1}
    in_time = endpoint(pools(2, 2, 1), niw_queued=8640)
    assert not policy.act(None, state(in_time))
    assert net(policy.act(None, state(endpoint(pools(2, 2, 1))))) == -1  # nothing waits
    assert not policy.act(None, state(endpoint(pools(2, 2, 0))))
    draining = np.concatenate([pools(2, 2, 1), pools(0, 0, 1, status=InstanceStatus.DRAINING)])
    assert not policy.act(None, state(endpoint(draining)))


@pytest.mark.parametrize("values", [{"theta": 0}, {"fewest": -1}, {"decode_tps": 0}, {"prompt_s": -1}])
def test_chirons_mistakes_are_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        ChironConfig(**values)


def loaded(free: int, requests: int, count: int = 2, waiting: int = 0) -> np.ndarray:
    """Instances of 1,000 tokens each with this much free, and requests that run."""
    row = {"kv_used_tokens": 1000 - free, "num_running": requests, "waiting_tokens": waiting}
    return instances([row] * count)


def test_average_freeness_by_hand():
    """2 x 300 free less 2 x 50 waiting over 2 x 5 requests; without one instance, 1,000 fewer."""
    rows = loaded(300, 5, waiting=50)
    assert average_freeness(rows) == 50
    assert average_freeness(rows, without=1) == (1000 - 1400 - 100) / 10
    assert average_freeness(instances(2)) == float("inf")


def llumnix(**values) -> LlumnixScalingPolicy:
    policy = LlumnixScalingPolicy(LlumnixScalingConfig(**values))
    policy.reset(spec(max_instances=3), 0)
    return policy


def test_freeness_must_stay_out_of_its_range():
    policy, tight = llumnix(), endpoint(loaded(90, 10))
    assert net(policy.act(None, state(tight, now_s=0.0))) == 0
    assert net(policy.act(None, state(tight, now_s=9.0))) == 0
    assert net(policy.act(None, state(tight, now_s=10.0))) == 1
    assert net(policy.act(None, state(tight, now_s=19.0))) == 0  # the next period has begun
    assert net(policy.act(None, state(tight, now_s=20.0))) == 1
    policy = llumnix()
    policy.act(None, state(tight, now_s=0.0))
    policy.act(None, state(endpoint(loaded(500, 10)), now_s=5.0))  # back within the range
    assert net(policy.act(None, state(tight, now_s=10.0))) == 0


def test_the_one_with_the_fewest_running_goes():
    rows = instances([{"num_running": 4}, {"num_running": 2}, {"num_running": 3}])
    policy = llumnix(period_s=0.0)
    (change,) = policy.act(None, state(endpoint(rows)))  # 2,000 tokens for 9 requests
    assert (change.operation, change.places) == (Operation.STOP, (1,))
    assert not policy.act(None, state(endpoint(instances([{"num_running": 1}]))))  # the last one stays
    assert not policy.act(None, state(endpoint(instances([{}, {"status": InstanceStatus.STARTING}]))))
    assert net(policy.act(None, state(endpoint(0)))) == 1
    assert net(policy.act(None, state(endpoint(loaded(1, 100, 3))))) == 0  # the most


def test_llumnix_mistakes_are_named():
    with pytest.raises(ValueError, match="out_below"):
        LlumnixScalingConfig(out_below=60.0)
    with pytest.raises(ValueError, match="period_s"):
        LlumnixScalingConfig(period_s=-1.0)
