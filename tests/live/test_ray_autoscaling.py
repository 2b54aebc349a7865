"""Our autoscaling policies behind Ray Serve's interface, asked as Ray asks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from serving_gym.envs.autoscaling.state import InstanceStatus
from serving_gym.runners.serving.ray_autoscaling import Meter, PolicyAutoscaler

WORDS = [
    "cluster=fleet_autoscaled",
    "env.decision_interval_s=10",
    "env.history_bin_s=5",
    "env.history_s=60",
    "env.recent_s=20",
]


@dataclass
class Context:
    """The part of `ray.serve.config.AutoscalingContext` that is read."""

    current_time: float
    running_replicas: list[str]
    target_num_replicas: int
    total_num_requests: float = 0.0
    total_queued_requests: float = 0.0
    aggregated_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    capacity_adjusted_min_replicas: int = 1
    capacity_adjusted_max_replicas: int = 6

    @property
    def total_running_requests(self) -> float:
        return self.total_num_requests - self.total_queued_requests


def ask(autoscaler: PolicyAutoscaler, until_s: float, replicas: list[str], **words: Any) -> list[int]:
    """Asks every second, with as many replicas wanted as there are; the answers."""
    answers = []
    for second in range(int(until_s) + 1):
        ctx = Context(1e9 + second, replicas, len(replicas), **words)
        answer, kept = autoscaler(ctx)  # type: ignore[arg-type]
        assert kept == {}
        answers.append(answer)
    return answers


def test_more_work_brings_more_replicas_and_less_fewer():
    busy = {"num_waiting": {"a": 200.0, "b": 200.0}, "kv_usage_ratio": {"a": 0.99, "b": 0.99}}
    idle = {"num_waiting": {"a": 0.0, "b": 0.0}, "kv_usage_ratio": {"a": 0.0, "b": 0.0}}
    up = PolicyAutoscaler(["policy=hpa_kv", *WORDS])
    assert max(ask(up, 30, ["a", "b"], total_num_requests=600.0, aggregated_metrics=busy)) > 2
    down = PolicyAutoscaler(["policy=hpa_kv", "policy.params.in_stabilization_s=10", *WORDS])
    assert min(ask(down, 30, ["a", "b"], aggregated_metrics=idle)) == 1


def test_the_deployments_own_limits_hold():
    full = {"kv_usage_ratio": {"a": 1.0, "b": 1.0}}
    autoscaler = PolicyAutoscaler(["policy=hpa_kv", *WORDS])
    most = {"capacity_adjusted_max_replicas": 2, "aggregated_metrics": full}
    assert set(ask(autoscaler, 30, ["a", "b"], total_num_requests=600.0, **most)) == {2}


def test_between_two_decisions_the_last_one_holds():
    autoscaler = PolicyAutoscaler(["policy=fixed_instances", *WORDS])
    asked: list[float] = []
    act = autoscaler.policy.act
    autoscaler.policy.act = lambda observation, state: asked.append(state.now_s) or act(observation, state)  # type: ignore[method-assign]
    ask(autoscaler, 29, ["a", "b"])
    assert asked == [5.0, 15.0, 25.0]  # from the end of the first bin of the history on


def test_the_state_is_what_ray_and_the_replicas_say():
    autoscaler = PolicyAutoscaler(["policy=fixed_instances", *WORDS])
    metrics = {"kv_usage_ratio": {"a": 0.5}, "num_waiting": {"a": 3.0}}
    ask(
        autoscaler,
        6,
        ["a", "b"],
        total_num_requests=20.0,
        total_queued_requests=4.0,
        aggregated_metrics=metrics,
    )
    ctx = Context(1e9 + 7, ["a", "b"], 3, 20.0, 4.0, metrics)
    state = autoscaler.state(ctx, 7.0, metrics)  # type: ignore[arg-type]
    (own,) = state.endpoints
    assert own.instances["status"].tolist() == [InstanceStatus.RUNNING] * 2 + [InstanceStatus.STARTING]
    assert own.instances["num_running"].tolist() == [8, 8, 0]  # what Ray has on its way, spread evenly
    assert own.instances["num_waiting"].tolist() == [3, 0, 0]
    capacity = own.instances["kv_capacity_tokens"][0]
    assert own.instances["kv_used_tokens"].tolist() == [
        round(0.5 * capacity),
        round(8 / 256 * capacity),  # not said: as full as its batch
        0,
    ]
    assert own.num_held == 4
    assert state.vacant["local"].tolist() == [3]
    assert own.history.rows["mean_instances"].tolist() == [2.0]
    assert own.history.rows["mean_concurrency"].tolist() == [20.0]


def test_counters_become_traffic_and_survive_a_replica_that_starts_anew():
    meter = Meter()
    for at_s, a in ((1.0, 10.0), (2.0, 30.0), (3.0, 5.0), (4.0, 5.0)):  # anew before the third
        meter.note(at_s, 4.0, 2, {"requests_total": {"a": a}, "input_tokens_total": {"a": 100 * a}})
    found = meter.traffic(2.0, 4.5, 10)
    assert (len(found), found.end_s) == (2, 4.0)
    np.testing.assert_allclose(found.rows["requests"], [30.0, 5.0])
    np.testing.assert_allclose(found.rows["input_tokens"], [3000.0, 500.0])
    assert len(meter.traffic(2.0, 4.5, 1)) == 1


def test_a_deployment_is_one_endpoint():
    with pytest.raises(ValueError, match="a deployment is one endpoint, but the fleet of words has 12"):
        PolicyAutoscaler(["policy=fixed_instances", "experiment=autoscaling_regions"])
