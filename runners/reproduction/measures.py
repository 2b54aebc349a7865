"""Metrics of the papers' tables that `envs.interface.metrics.summarise` does not have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.commands import Command, Redeploy
from serving_gym.envs.interface.metrics import FloatArray, RequestRecords, percentiles
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.reproduction.trials import BoolArray

_ANY_SLO = (SLO(ttft_s=1.0, tpot_s=1.0),)
_LOOK_S = 0.001  # how often an unscheduled transition is looked at


def request_capacity_rps(records: RequestRecords) -> float:
    """Requests that are finished a second when all of them arrive at once, from the first quarter to the third."""
    finish_s = np.sort(np.nan_to_num(records.finish_s, nan=np.inf))
    first, last = len(finish_s) // 4, 3 * len(finish_s) // 4
    return over(last - first, float(finish_s[last] - finish_s[first])) if np.isfinite(finish_s[last]) else 0.0


def prompt_tokens_per_s(records: RequestRecords) -> float:
    """Prompt tokens that are computed a second until the last first token; 0 where a request never gets one."""
    if np.isnan(records.first_token_s).any():
        return 0.0
    return float(records.input_tokens.sum(dtype=np.int64) / records.first_token_s.max())


def mean(values: FloatArray, rows: BoolArray | None = None) -> float:
    """Mean over some requests, infinite where one did not finish; what has no value is left out."""
    chosen = values if rows is None else values[rows]
    chosen = chosen[~np.isnan(chosen)]
    return float(chosen.mean()) if chosen.size else float("nan")


def percentile(values: FloatArray, which: float, rows: BoolArray | None = None) -> float:
    """A percentile over some requests."""
    return percentiles(values if rows is None else values[rows], [which])[0]


def over(first: float, second: float) -> float:
    """A ratio of two figures that may be infinite or zero."""
    if np.isinf(first) and np.isinf(second):
        return float("nan")
    return float(np.divide(first, second)) if second else float("nan")


def geometric_mean(values: Sequence[float]) -> float:
    """Their geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def transition_s(cluster: ClusterSpec, command: Command) -> float:
    """How long a command takes on an idle node that is deployed as data parallelism with whole weights, seconds."""
    late = Workload(arrival_s=np.array([1e6]), input_tokens=np.array([1]), output_tokens=np.array([1]))
    simulator = Simulator(cluster, slos=_ANY_SLO)
    simulator.reset(late)
    simulator.apply(Redeploy((1,) * cluster.num_base, weights="whole"))
    simulator.advance(1.0)
    started_s = simulator.now_s
    receipt = simulator.apply(command)
    if not receipt.accepted:
        raise ValueError(receipt.reason)
    while transitions := simulator.observe().transitions:
        due_s = min(t.due_s if t.due_s is not None else simulator.now_s + _LOOK_S for t in transitions)
        simulator.advance(max(due_s, simulator.now_s))
    return simulator.now_s - started_s
