"""What autoscalers read and what they say."""

import numpy as np
import pytest

from serving_gym.baselines.common.autoscaler import default_gpu, to_count, victims
from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.envs.interface.scaling import Operation, Pool, ScaleChange
from tests.baselines.autoscalers.states import HERE, endpoint, instances, spec, state, traffic


def test_instances_are_counted_by_status():
    rows = [
        {"status": status}
        for status in (InstanceStatus.RUNNING, InstanceStatus.STARTING, InstanceStatus.DRAINING)
    ]
    own = endpoint(rows)
    assert [len(own.running), len(own.starting), len(own.present)] == [1, 1, 2]
    assert state(own).of(HERE) is own


def test_effective_memory_utilisation_is_sum_over_sum_of_running_instances():
    rows = [
        {"kv_used_tokens": 900, "pool": Pool.INTERACTIVE},
        {"kv_used_tokens": 100, "pool": Pool.BATCH},
        {"kv_used_tokens": 500, "status": InstanceStatus.DRAINING},
    ]
    own = endpoint(rows)
    assert own.utilization() == 0.5
    assert own.utilization(Pool.INTERACTIVE) == 0.9
    assert endpoint(0).utilization() == float("inf")


def test_histories_are_summed_from_their_end():
    past = traffic(60.0, input_tokens=np.arange(1.0, 6.0))
    np.testing.assert_array_equal(past.rebinned("input_tokens", 120.0), [2 + 3, 4 + 5])
    np.testing.assert_array_equal(past.last(120.0)["input_tokens"], [4, 5])
    assert len(past) == 5
    with pytest.raises(ValueError, match="multiple of 60 s"):
        past.rebinned("input_tokens", 90.0)


def test_who_is_not_ready_goes_first_then_who_has_least_to_do():
    rows = instances(
        [
            {"num_running": 3},
            {"num_running": 1},
            {"status": InstanceStatus.STARTING, "since_s": 5.0},
            {"status": InstanceStatus.STARTING, "since_s": 9.0},
        ]
    )
    assert victims(endpoint(rows), 3) == (3, 2, 1)


def test_a_count_is_reached_within_bounds():
    setting = spec(max_instances=4)
    (out,) = to_count(setting, endpoint(2), 9)
    assert (out.operation, out.count, out.signed) == (Operation.START, 2, 2)
    (back,) = to_count(setting, endpoint(2), 0)
    assert (back.operation, back.places, back.signed) == (Operation.STOP, (0,), -1)
    assert not list(to_count(setting, endpoint(2), 2))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="count must be at least 1"):
        ScaleChange(HERE, Operation.START, 0)
    with pytest.raises(ValueError, match="places must name all 2"):
        ScaleChange(HERE, Operation.STOP, 2, (1,))
    with pytest.raises(ValueError, match="donor"):
        ScaleChange(HERE, Operation.REDEPLOY, 1)
    with pytest.raises(ValueError, match="min_instances must lie between"):
        spec(min_instances=30)
    with pytest.raises(ValueError, match="capacity_tps must have the shape"):
        spec(capacity_tps=np.ones((2, 1)))
    for values, name in (
        ({"gpu_usd_per_h": np.ones(2)}, "gpu_usd_per_h"),
        ({"classes": ("chat",)}, "equally long"),
        ({"decision_interval_s": 0.0}, "decision_interval_s"),
    ):
        with pytest.raises(ValueError, match=name):
            spec(**values)
    with pytest.raises(ValueError, match="llama runs on none of H100"):
        default_gpu(spec(capacity_tps=np.zeros((1, 1))), "llama")
