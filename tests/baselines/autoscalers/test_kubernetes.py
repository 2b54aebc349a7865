"""Behaviour that Kubernetes and KEDA publish: of the HPA, and of KEDA on llm-d's signals."""

import numpy as np
import pytest

from serving_gym.baselines.common.autoscalers.horizontal import (
    Behavior,
    HorizontalConfig,
    HorizontalPolicy,
    replicas_for_external,
)
from serving_gym.baselines.common.autoscalers.keda_epp import KEDAEPPConfig, KEDAEPPPolicy, pool_saturation
from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE
from tests.baselines.autoscalers.states import endpoint, instances, net, spec, state


def ready(policy, **values):
    policy.reset(spec(**values), 0)
    return policy


def _steps(behavior, present, recommended, every_s=15.0):
    """Replicas after each sync, where each comes to pass at once."""
    counts = []
    for sync, count in enumerate(recommended):
        present = behavior.apply(sync * every_s, present, count)
        counts.append(present)
    return counts


def test_the_first_sync_records_what_there_is():
    """Kubernetes: "recordInitialRecommendation": the controller that has just begun takes nothing away for 300 s."""
    counts = _steps(Behavior(HorizontalConfig()), 8, [2] * 22)
    assert counts[:20] == [8] * 20
    assert counts[20] == 2
    assert _steps(Behavior(HorizontalConfig(in_stabilization_s=0.0)), 8, [2]) == [2]


def test_the_largest_recommendation_of_the_window_counts():
    """Documentation: flapping recommendations keep the number at the highest of the last 300 s."""
    counts = _steps(Behavior(HorizontalConfig()), 4, [4, 6, 2, 5, 2, 2] + [3] * 20)
    assert counts[1] == 6
    assert counts[2:21] == [6] * 19
    assert counts[21] == 5  # at 315 s the 6 of 15 s has left
    assert counts[22] == 5
    assert counts[23] == 3  # at 345 s the 5 of 45 s has


def test_scaling_out_is_at_once_and_within_its_policies():
    """Default behaviour: 4 pods or 100 % every 15 s, whichever is more."""
    assert _steps(Behavior(HorizontalConfig()), 1, [100] * 4) == [5, 10, 20, 40]


def test_a_policy_of_pods_limits_scaling_in():
    config = HorizontalConfig(in_stabilization_s=0.0, in_percent=0.0, in_pods=1, in_period_s=300.0)
    assert _steps(Behavior(config), 5, [1] * 3, every_s=150.0) == [4, 4, 3]


@pytest.mark.parametrize(("total", "replicas"), [(44.0, 9), (45.1, 10), (50.0, 10), (54.9, 10), (56.0, 12)])
def test_within_the_tolerance_nothing_changes(total, replicas):
    """Documentation: no scaling where the ratio is close to 1, within 0.1."""
    assert replicas_for_external(total, 5.0, 10, 0.1) == replicas


def test_the_hpa_alone_does_not_go_to_zero():
    """Documentation: minReplicas is at least 1, save with the alpha gate HPAScaleToZero; a ratio of 0 asks for 0."""
    policy = ready(HorizontalPolicy(HorizontalConfig(in_stabilization_s=0.0)), min_instances=1)
    assert net(policy.act(None, state(endpoint(2)))) == -1


QUEUE = KEDAEPPConfig(in_stabilization_s=0.0)


def test_keda_takes_the_larger_of_two_triggers():
    policy = ready(KEDAEPPPolicy(QUEUE))
    # 3 waiting at a target of 1 against 40 running at 16
    rows = [{"num_running": 20, "num_waiting": 1}, {"num_running": 20}]
    assert net(policy.act(None, state(endpoint(rows, num_held=2)))) == 1
    # one waits: 40 running make three
    assert net(policy.act(None, state(endpoint(rows), now_s=15.0))) == 1
    many = [{"num_running": 40, "num_waiting": 4}, {"num_running": 40}]
    assert net(policy.act(None, state(endpoint(many), now_s=30.0))) == 2  # 5 wanted, 100 % of two at most


def test_keda_goes_to_zero_after_the_cooldown_and_comes_back_at_a_poll():
    policy = ready(KEDAEPPPolicy(QUEUE), min_instances=0)
    busy, idle = [{"num_running": 1}], [{}]
    assert net(policy.act(None, state(endpoint(busy), now_s=0.0))) == 0
    assert net(policy.act(None, state(endpoint(idle), now_s=15.0))) == 0  # the HPA keeps one
    assert net(policy.act(None, state(endpoint(idle), now_s=299.0))) == 0
    assert net(policy.act(None, state(endpoint(idle), now_s=300.0))) == -1
    nothing = instances(0)
    assert net(policy.act(None, state(endpoint(nothing), now_s=315.0))) == 0
    assert net(policy.act(None, state(endpoint(nothing, num_held=9), now_s=330.0))) == 0  # polled 15 s ago
    assert net(policy.act(None, state(endpoint(nothing, num_held=9), now_s=345.0))) == 1


def test_keda_keeps_one_where_one_is_the_least():
    policy = ready(KEDAEPPPolicy(QUEUE), min_instances=1)
    assert net(policy.act(None, state(endpoint(1), now_s=0.0))) == 0
    assert net(policy.act(None, state(endpoint(1), now_s=9000.0))) == 0


def test_saturation_of_the_pool():
    rows = instances([{"num_waiting": 10, "kv_used_tokens": 100}, {"kv_used_tokens": 400}])
    assert pool_saturation(rows) == pytest.approx((2.0 + 0.5) / 2)
    assert pool_saturation(instances(0)) == 1.0
    by_replica = ready(KEDAEPPPolicy(KEDAEPPConfig(signal="saturation", in_stabilization_s=0.0)))
    assert net(by_replica.act(None, state(endpoint(rows)))) == 2  # 2 x 1.25 over 0.7
    literal = KEDAEPPConfig(signal="saturation", in_stabilization_s=0.0, saturation_by_replica=False)
    assert net(ready(KEDAEPPPolicy(literal)).act(None, state(endpoint(rows)))) == 0  # 1.25 over 0.7


def test_tokens_in_seconds_of_an_engine():
    config = KEDAEPPConfig(signal="tokens", out_percent=0.0, out_pods=1, out_period_s=180.0)
    policy = ready(KEDAEPPPolicy(config))
    flights = np.zeros(3, IN_FLIGHT_DTYPE)
    flights["first_token_s"] = (-1.0, -1.0, 1.0)
    flights["input_tokens"] = (200, 350, 9000)
    loaded = state(endpoint(2), in_flight=flights)
    # benchmarked at 100 tokens/s: 5.5 s
    assert policy.metrics(loaded, loaded.endpoints[0]) == [(5.5, 1.5), (0.0, 0.8)]
    assert net(policy.act(None, loaded)) == 1  # four are wanted, one may come in 180 s
    starting = [{}, {}, {"status": InstanceStatus.STARTING}]
    assert net(policy.act(None, state(endpoint(starting), in_flight=flights, now_s=90.0))) == 0
    assert net(policy.act(None, state(endpoint(starting), in_flight=flights, now_s=180.0))) == 1


@pytest.mark.parametrize("values", [{"signal": "cpu"}, {"queue_target": 0.0}, {"cooldown_s": -1.0}])
def test_mistakes_are_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        KEDAEPPConfig(**values)
