"""Runs any autoscaling policy as an autoscaling policy of Ray Serve.

    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    AutoscalingConfig(
        min_replicas=1,
        max_replicas=4,
        policy=AutoscalingPolicy(
            policy_function="runners.serving.ray_autoscaling:PolicyAutoscaler",
            policy_kwargs={"words": ["policy=hpa_waiting", "cluster=fleet_autoscaled"]},
        ),
    )

`words` are those of `runners.evaluate`: the policy and its setting, of one endpoint. A replica of the deployment is an
instance. Ray calls several times a second; the policy decides at its own period or every `env.decision_interval_s`, and
its last decision holds in between, within the deployment's own limits. Ray chooses the replica to remove. Ray reports
the number of requests in flight and waiting. Replicas may report more (`record_autoscaling_stats`), under the names in
`GAUGES` and `COUNTERS`; without these, KV usage is estimated from the batch, and forecasting policies have no traffic
history.

Tested with Ray 2.60; the interface is Ray's alpha.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import period_of
from serving_gym.envs.autoscaling.env import AutoscalingEnv
from serving_gym.envs.autoscaling.observation import StateEncoder
from serving_gym.envs.autoscaling.state import (
    INSTANCE_DTYPE,
    AutoscalingSpec,
    AutoscalingState,
    EndpointState,
    InstanceStatus,
)
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, ScaleChange, Traffic
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import EvaluateConfig

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

GAUGES = ("num_running", "num_waiting", "waiting_tokens", "kv_usage_ratio")
COUNTERS = ("requests_total", "input_tokens_total", "output_tokens_total")
_COLUMNS = ("requests", "input_tokens", "output_tokens")  # of TRAFFIC_DTYPE, in the order of COUNTERS

_WEEK_S = 7 * 86_400.0
_FIRST_MONDAY_S = 4 * 86_400.0  # offset of the epoch, which began on a Thursday

Metrics = Mapping[str, Mapping[Any, float]]


@dataclass
class Meter:
    """Samples of a deployment's counters over time.

    Attributes:
        times_s: (K,) times of the samples.
        sums: (K, 5) requests, input and output tokens so far, and integrals over time of requests on their way and of
            replicas.
        last: Counters of each replica at the last sample; a restarted replica counts from zero.
    """

    times_s: list[float] = field(default_factory=lambda: [0.0])
    sums: list[NDArray[np.float64]] = field(default_factory=lambda: [np.zeros(5)])
    last: dict[tuple[str, Any], float] = field(default_factory=dict)

    def note(self, now_s: float, requests: float, replicas: int, metrics: Metrics) -> None:
        """Takes a sample."""
        span_s = now_s - self.times_s[-1]
        if span_s <= 0:
            return
        grown = np.zeros(5)
        for column, name in enumerate(COUNTERS):
            for replica, value in metrics.get(name, {}).items():
                before = self.last.get((name, replica), 0.0)
                grown[column] += value - before if value >= before else value
                self.last[name, replica] = value
        grown[3:] = requests * span_s, replicas * span_s
        self.times_s.append(now_s)
        self.sums.append(self.sums[-1] + grown)

    def traffic(self, bin_s: float, now_s: float, most: int) -> Traffic:
        """The last complete bins, at most `most`."""
        last = int(now_s // bin_s)
        first = max(last - most, 0)
        edges_s = bin_s * np.arange(first, last + 1)
        sums = np.array(self.sums)
        grown = np.stack([np.diff(np.interp(edges_s, self.times_s, column)) for column in sums.T], axis=1)
        rows = np.zeros(last - first, TRAFFIC_DTYPE)
        for column, name in enumerate(_COLUMNS):
            rows[name] = grown[:, column]
        rows["mean_concurrency"], rows["mean_instances"] = grown[:, 3] / bin_s, grown[:, 4] / bin_s
        return Traffic(bin_s, last * bin_s, rows)


class PolicyAutoscaler:
    """Ray Serve autoscaling policy that calls a policy of this project; Ray makes one for each deployment.

    Args:
        words: Overrides as of `runners.evaluate`.

    Raises:
        ValueError: an override is unknown or impossible, or the setting has more than one endpoint.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        config = composed("evaluate", EvaluateConfig, ["env=autoscaling", *words])
        env: Any = config.environment.make().unwrapped
        assert isinstance(env, AutoscalingEnv)
        told = env.policy_spec
        self.config, self.spec = env.config, told.setting_of(AutoscalingSpec)
        if len(self.spec.endpoints) != 1:
            raise ValueError(
                f"a deployment is one endpoint, but the fleet of words has {len(self.spec.endpoints)}; "
                "name a cluster of one model in one region"
            )
        (group, *_) = self.config.cluster.groups
        self._batch = group.replica.max_num_seqs
        assert told.engines is not None
        self._capacity = int(told.engines.kv_capacity_tokens[0])
        self._encoder = StateEncoder(self.config, self.spec, told.engines)
        self.policy = load_policy(config.policy)
        period_s = period_of(self.policy)
        self._period_s = self.config.decision_interval_s if period_s is None else period_s
        self.policy.reset(told.asked_every(period_s), 0)
        self._begun_s: float | None = None
        self._meter, self._target, self._decided_s = Meter(), 0, -np.inf
        self._since_s: dict[Any, float] = {}  # time at which each replica was first observed

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Target number of replicas, and Ray's policy state, which is unused."""
        wall_s = time.time() if ctx.current_time is None else ctx.current_time
        if self._begun_s is None:
            self._begun_s, self._target = wall_s, ctx.target_num_replicas
        now_s, metrics = max(wall_s - self._begun_s, 0.0), ctx.aggregated_metrics or {}
        self._meter.note(now_s, ctx.total_num_requests, len(ctx.running_replicas), metrics)
        due = now_s - self._decided_s >= self._period_s
        if due and now_s >= self.config.history_bin_s:
            self._decided_s = now_s
            state = self.state(ctx, now_s, metrics)
            changes = self.policy.act(self._encoder.encode(state, 1.0), state)
            self._target = ctx.target_num_replicas + self._wanted(changes)
        lowest, highest = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
        self._target = min(max(self._target, lowest), highest)
        return self._target, {}

    def _wanted(self, changes: Any) -> int:
        """By how many replicas a decision changes the deployment: changes, a vector of the action space, or None."""
        if changes is None:
            return 0
        if isinstance(changes, (tuple, list)):
            return sum(change.signed for change in changes if isinstance(change, ScaleChange))
        return int(np.asarray(changes).ravel()[0]) - self.spec.max_change

    def state(self, ctx: AutoscalingContext, now_s: float, metrics: Metrics) -> AutoscalingState:
        """State that the policy may read."""
        config, (endpoint,) = self.config, self.spec.endpoints
        instances = self._instances(ctx, now_s, metrics)
        bins = round(config.history_s / config.history_bin_s)
        own = EndpointState(
            endpoint=endpoint,
            instances=instances,
            spot=np.zeros(len(self.spec.gpus), np.int64),
            num_held=round(ctx.total_queued_requests or 0),
            niw_queued=0,
            niw_queued_tokens=0,
            niw_oldest_s=0.0,
            recent=self._meter.traffic(
                config.recent_bin_s, now_s, round(config.recent_s / config.recent_bin_s)
            ),
            history=self._meter.traffic(config.history_bin_s, now_s, bins),
            release_level=config.queue.level,
        )
        vacant = np.zeros(len(self.spec.gpus), np.int64)
        vacant[0] = max(ctx.capacity_adjusted_max_replicas - len(instances), 0)
        assert self._begun_s is not None
        monday_s = (self._begun_s + now_s - _FIRST_MONDAY_S) % _WEEK_S
        in_flight = np.zeros(0, IN_FLIGHT_DTYPE)  # Ray does not distinguish requests
        return AutoscalingState(now_s, monday_s, (own,), {endpoint.region: vacant}, in_flight)

    def _instances(self, ctx: AutoscalingContext, now_s: float, metrics: Metrics) -> NDArray[np.void]:
        """(I,) INSTANCE_DTYPE, replicas that serve and, as many as are still to come, such that start."""
        running = list(ctx.running_replicas)
        coming = max(ctx.target_num_replicas - len(running), 0)
        rows = np.zeros(len(running) + coming, INSTANCE_DTYPE)
        rows["place"], rows["due_s"] = np.arange(len(rows)), np.nan
        rows["kv_capacity_tokens"] = self._capacity
        rows["status"], rows["since_s"] = InstanceStatus.STARTING, now_s
        self._since_s = {replica: self._since_s.get(replica, now_s) for replica in running}
        each = ctx.total_running_requests / max(len(running), 1)
        for row, replica in zip(rows, running, strict=False):
            said = {name: metrics.get(name, {}).get(replica) for name in GAUGES}
            row["status"], row["since_s"] = InstanceStatus.RUNNING, self._since_s[replica]
            row["num_running"] = round(each if said["num_running"] is None else said["num_running"])
            row["num_waiting"], row["waiting_tokens"] = said["num_waiting"] or 0, said["waiting_tokens"] or 0
            row["num_interactive"] = row["num_running"] + row["num_waiting"]
            full = said["kv_usage_ratio"]
            full = min(row["num_running"] / self._batch, 1.0) if full is None else full
            row["kv_used_tokens"] = round(full * self._capacity)
        return rows
