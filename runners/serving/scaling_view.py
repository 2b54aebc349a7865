"""What is known of a deployment from outside, over time, as the state of an autoscaling policy.

A replica of the deployment is an instance, and the deployment is the one endpoint of the setting. Sources report the
replicas there are, gauges and counters of each under the names in `GAUGES` and `COUNTERS`, and as much else as they
know (`Deployment`). What no source reports stays at its neutral value: no non-interactive requests, no spot instances,
no requests in flight by name, no SLO misses; KV usage is estimated from the batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.state import (
    INSTANCE_DTYPE,
    AutoscalingSpec,
    AutoscalingState,
    EndpointState,
    InstanceStatus,
)
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, ScaleChange, Traffic
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE

GAUGES = ("num_running", "num_waiting", "waiting_tokens", "kv_usage_ratio")
COUNTERS = (
    "requests_total",  # that arrived
    "input_tokens_total",
    "output_tokens_total",
    "first_tokens_total",
    "ttft_seconds_total",
    "answers_total",  # that ended and whose time per token is in the next
    "tpot_seconds_total",
)
_COLUMNS = (  # of TRAFFIC_DTYPE, in the order of COUNTERS
    "requests",
    "input_tokens",
    "output_tokens",
    "first_tokens",
    "ttft_sum_s",
    "finished",
    "tpot_sum_s",
)
_CONCURRENCY, _INSTANCES = len(COUNTERS), len(COUNTERS) + 1
_WIDTH = len(COUNTERS) + 2
_SAMPLES = 4096  # from which on old samples are put together

_WEEK_S = 7 * 86_400.0
_FIRST_MONDAY_S = 4 * 86_400.0  # offset of the epoch, which began on a Thursday

Metrics = Mapping[str, Mapping[Any, float]]


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is known of a deployment at a moment.

    Attributes:
        replicas: Those that serve.
        wanted: Replicas that the deployment is to have: those that serve and those that are to come.
        most: Most replicas that it may have.
        metrics: Values by name (`GAUGES`, `COUNTERS`) and replica; what is not known is not there.
        draining: Replicas that finish their requests and then go.
        num_held: Requests that wait in front of the replicas.
        num_running: Requests at all replicas together, spread evenly over those that do not report theirs; None: not
            known.
        num_requests: Requests anywhere, waiting ones included; None: the sum of what replicas report.
        started_s: Time at which each replica's process started, on the view's clock: its counters count from then. A
            replica that is not named was there before, so that its first reading counts nothing. None: counters of new
            replicas count from 0.
    """

    replicas: tuple[Any, ...]
    wanted: int
    most: int
    metrics: Metrics
    draining: tuple[Any, ...] = ()
    num_held: int = 0
    num_running: float | None = None
    num_requests: float | None = None
    started_s: Mapping[Any, float] | None = None

    def reported(self, name: str, replica: Any) -> float | None:
        """A value; None: not known."""
        return self.metrics.get(name, {}).get(replica)

    def total(self) -> float:
        """Requests anywhere."""
        if self.num_requests is not None:
            return self.num_requests
        here = (self.metrics.get(name, {}) for name in ("num_running", "num_waiting"))
        return self.num_held + sum(sum(values.values()) for values in here)


@dataclass
class Meter:
    """Samples of a deployment's counters over time.

    Old samples are put together at the edges of the history's bins, where they say the same.

    Attributes:
        coarse_s: Length of the bins that old samples are put together to, seconds.
        recent_s: Age up to which all samples are kept, seconds.
        history_s: Age up to which any are kept, seconds.
        times_s: (K,) times of the samples.
        sums: (K, 9) sums of `COUNTERS` so far, and integrals over time of requests on their way and of replicas.
        last: Counters of each replica at the last sample, and when that was; a restarted replica counts from zero.
        heard: Names of counters that have been reported.
    """

    coarse_s: float = 60.0
    recent_s: float = 600.0
    history_s: float = _WEEK_S
    times_s: list[float] = field(default_factory=lambda: [0.0])
    sums: list[NDArray[np.float64]] = field(default_factory=lambda: [np.zeros(_WIDTH)])
    last: dict[tuple[str, Any], tuple[float, float]] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    _most: int = _SAMPLES  # samples from which on old ones are put together

    def note(
        self,
        now_s: float,
        requests: float,
        replicas: int,
        metrics: Metrics,
        started_s: Mapping[Any, float] | None = None,
    ) -> None:
        """Takes a sample.

        Args:
            now_s: Its time; unless it is later than the last one, only counters of replicas that were there before
                begin with it.
            requests: Requests anywhere.
            replicas: Replicas that serve.
            metrics: Values by name and replica.
            started_s: As in `Deployment`.
        """
        span_s = now_s - self.times_s[-1]
        if span_s <= 0:
            if started_s is not None:
                self._begin_counters(metrics, now_s)
            return
        grown = np.zeros(_WIDTH)
        for column, name in enumerate(COUNTERS):
            for replica, value in metrics.get(name, {}).items():
                grown[column] += self._growth(name, replica, value, started_s)
                self.last[name, replica] = value, now_s
                self.heard.add(name)
        grown[_CONCURRENCY], grown[_INSTANCES] = requests * span_s, replicas * span_s
        self.times_s.append(now_s)
        self.sums.append(self.sums[-1] + grown)
        if len(self.times_s) > self._most:
            self._compact(now_s)
            self._most = len(self.times_s) + _SAMPLES

    def _begin_counters(self, metrics: Metrics, now_s: float) -> None:
        for name in COUNTERS:
            for replica, value in metrics.get(name, {}).items():
                self.last.setdefault((name, replica), (value, now_s))

    def begin_with(self, rows: NDArray[np.void]) -> None:
        """Begins with traffic that is known, in bins of `coarse_s` from 0 on.

        Args:
            rows: (T,) TRAFFIC_DTYPE.
        """
        grown = np.zeros((len(rows), _WIDTH))
        for column, name in enumerate(_COLUMNS):
            grown[:, column] = rows[name]
        grown[:, _CONCURRENCY] = rows["mean_concurrency"] * self.coarse_s
        grown[:, _INSTANCES] = rows["mean_instances"] * self.coarse_s
        self.times_s = (self.coarse_s * np.arange(len(rows) + 1)).tolist()
        self.sums = [np.zeros(_WIDTH), *np.cumsum(grown, axis=0)]
        self.heard |= {name for name, column in zip(COUNTERS, _COLUMNS, strict=True) if rows[column].any()}

    def add(self, now_s: float, columns: Mapping[str, float]) -> None:
        """Adds to the last sample what is known of all replicas together.

        Args:
            now_s: Time of that sample.
            columns: What was counted since the sample before it, by name (`COUNTERS`).
        """
        if now_s == self.times_s[-1]:
            for name, value in columns.items():
                self.sums[-1][COUNTERS.index(name)] += value
            self.heard |= set(columns)

    def _growth(self, name: str, replica: Any, value: float, started_s: Mapping[Any, float] | None) -> float:
        before = self.last.get((name, replica))
        if before is not None:
            return value - before[0] if value >= before[0] else value
        if started_s is None or started_s.get(replica, -math.inf) > self.times_s[-1]:
            return value
        return 0.0

    def _compact(self, now_s: float) -> None:
        """Puts old samples together, and forgets older ones and replicas that have gone."""
        times_s, sums = np.array(self.times_s), np.array(self.sums)
        old_s = self.coarse_s * math.floor((now_s - self.recent_s) / self.coarse_s)
        oldest_s = self.coarse_s * math.floor((now_s - self.history_s) / self.coarse_s - 1.0)
        first_s = max(float(times_s[0]), oldest_s)
        if old_s <= first_s:
            return
        edges_s = np.arange(self.coarse_s * math.ceil(first_s / self.coarse_s), old_s, self.coarse_s)
        edges_s = np.unique(np.append(edges_s, [first_s, old_s]))
        joined = np.stack([np.interp(edges_s, times_s, column) for column in sums.T], axis=1)
        recent = times_s > old_s
        self.times_s = [*edges_s.tolist(), *times_s[recent].tolist()]
        self.sums = [*joined, *sums[recent]]
        self.last = {key: seen for key, seen in self.last.items() if now_s - seen[1] <= self.history_s}

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
        rows["mean_concurrency"] = grown[:, _CONCURRENCY] / bin_s
        rows["mean_instances"] = grown[:, _INSTANCES] / bin_s
        return Traffic(bin_s, last * bin_s, rows)


class ScalingView:
    """The state of an autoscaling policy, from what sources report of one deployment.

    Args:
        config: The environment's configuration.
        told: What policies know before an episode.
        begun_s: Unix time at which the view's clock is 0.

    Raises:
        ValueError: The setting has more than one endpoint.
    """

    def __init__(self, config: AutoscalingConfig, told: PolicySpec, begun_s: float) -> None:
        self.config, self.spec, self.begun_s = config, told.setting_of(AutoscalingSpec), begun_s
        if len(self.spec.endpoints) != 1:
            raise ValueError(
                f"a deployment is one endpoint, but the fleet of words has {len(self.spec.endpoints)}; "
                "name a cluster of one model in one region"
            )
        (group, *_) = config.cluster.groups
        self._batch = group.replica.max_num_seqs
        self._capacity = int(told.fleet.kv_capacity_tokens[0])
        self.meter = Meter(config.history_bin_s, config.recent_s, config.history_s)
        self._since_s: dict[Any, float] = {}  # time at which each replica was first observed

    def note(self, now_s: float, seen: Deployment) -> None:
        """Takes a sample.

        Args:
            now_s: Time on the view's clock.
            seen: What is known then.
        """
        self.meter.note(now_s, seen.total(), len(seen.replicas), seen.metrics, seen.started_s)

    def known_s(self, now_s: float) -> float:
        """Length of the traffic that is known, whole bins of the history, seconds."""
        bin_s = self.config.history_bin_s
        return bin_s * math.floor(min(now_s - self.meter.times_s[0], self.config.history_s) / bin_s)

    def state(self, now_s: float, seen: Deployment) -> AutoscalingState:
        """State that the policy may read.

        Args:
            now_s: Time on the view's clock, at least one bin of the history.
            seen: What is known now.
        """
        config, (endpoint,) = self.config, self.spec.endpoints
        instances = self._instances(now_s, seen)
        meter, recent = self.meter, round(config.recent_s / config.recent_bin_s)
        own = EndpointState(
            endpoint=endpoint,
            instances=instances,
            spot=np.zeros(len(self.spec.gpus), np.int64),
            num_held=seen.num_held,
            niw_queued=0,
            niw_queued_tokens=0,
            niw_oldest_s=0.0,
            recent=meter.traffic(config.recent_bin_s, now_s, recent),
            history=meter.traffic(
                config.history_bin_s, now_s, round(config.history_s / config.history_bin_s)
            ),
            release_level=config.queue.level,
        )
        vacant = np.zeros(len(self.spec.gpus), np.int64)
        vacant[0] = max(seen.most - len(instances), 0)
        monday_s = (self.begun_s + now_s - _FIRST_MONDAY_S) % _WEEK_S
        in_flight = np.zeros(0, IN_FLIGHT_DTYPE)  # no source tells requests apart
        return AutoscalingState(now_s, monday_s, (own,), {endpoint.region: vacant}, in_flight)

    def _instances(self, now_s: float, seen: Deployment) -> NDArray[np.void]:
        """(I,) INSTANCE_DTYPE, replicas that serve, such that drain, and as many as are to come."""
        serving, going = len(seen.replicas), len(seen.draining)
        coming = max(seen.wanted - serving, 0)
        rows = np.zeros(serving + going + coming, INSTANCE_DTYPE)
        rows["place"], rows["due_s"] = np.arange(len(rows)), np.nan
        rows["kv_capacity_tokens"] = self._capacity
        rows["status"], rows["since_s"] = InstanceStatus.STARTING, now_s
        rows["status"][:serving] = InstanceStatus.RUNNING
        rows["status"][serving : serving + going] = InstanceStatus.DRAINING
        there = (*seen.replicas, *seen.draining)
        self._since_s = {replica: self._since_s.get(replica, now_s) for replica in there}
        each = (seen.num_running or 0.0) / max(serving, 1)
        for row, replica in zip(rows, there, strict=False):
            row["since_s"] = self._since_s[replica]
            self._fill(row, {name: seen.reported(name, replica) for name in GAUGES}, each)
        return rows

    def _fill(self, row: np.void, said: Mapping[str, float | None], each: float) -> None:
        """Puts gauges into a row; `each`: requests of a replica that does not report its own."""
        running, full = said["num_running"], said["kv_usage_ratio"]
        row["num_running"] = round(each if running is None else running)
        row["num_waiting"], row["waiting_tokens"] = said["num_waiting"] or 0, said["waiting_tokens"] or 0
        row["num_interactive"] = row["num_running"] + row["num_waiting"]
        full = min(row["num_running"] / self._batch, 1.0) if full is None else full
        row["kv_used_tokens"] = round(full * self._capacity)


def change_of(changes: Any, max_change: int) -> int:
    """By how many replicas a decision changes a deployment of one endpoint.

    Args:
        changes: Commands, a vector of the action space, or None.
        max_change: Most instances by which such a vector changes it.
    """
    if changes is None:
        return 0
    if isinstance(changes, (tuple, list)):
        return sum(change.signed for change in changes if isinstance(change, ScaleChange))
    return int(np.asarray(changes).ravel()[0]) - max_change


def missing_gauges(seen: Deployment, names: Collection[str] = GAUGES[:2]) -> list[Any]:
    """Replicas of which a gauge is not known."""
    return [
        replica for replica in seen.replicas if any(seen.reported(name, replica) is None for name in names)
    ]
