"""Upper bound on the return of any policy: a relaxation of the simulation, computed from the requests that arrived.

Every request takes at least as long as alone on the fastest engine. In addition, the prefill work of all requests
together takes at least as long as on one engine as fast as the whole cluster, with preemption at no
cost, in order of shortest remaining time (SRPT minimises the sum of flow times on one machine: Schrage 1968); the sum
of times to first tokens is at least the larger of the two. Decoding is assumed never to delay prefills.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.kernel.state import PS_PER_S

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Engines:
    """Lower bounds on iteration times of a cluster's engines, K kinds.

    Attributes:
        mixed_s: (K, T + 1), seconds of an iteration by prompt tokens in it, at most T.
        decode_s: (K,), seconds of the shortest decode iteration without what context adds.
        kv_s_per_token: (K,), seconds that a token of context adds.
        prefill_tokens_per_s: Of the whole cluster, prompt tokens a second.
        caching: Whether prompts may be cached, so that their prefill can take no time.
        front_s: Least delay from an engine to its client, seconds: fixed, and per token of the prompt.
    """

    mixed_s: FloatArray
    decode_s: FloatArray
    kv_s_per_token: FloatArray
    prefill_tokens_per_s: float
    caching: bool = False
    front_s: tuple[float, float] = (0.0, 0.0)

    def alone(self, records: RequestRecords) -> tuple[FloatArray, FloatArray]:
        """Time to first token and time per output token of each request alone on the fastest engine, (N,) seconds."""
        prompts = np.ones(len(records), np.int64) if self.caching else records.input_tokens.astype(np.int64)
        most = self.mixed_s.shape[1] - 1
        whole, rest = np.divmod(prompts, most)
        ttft = (whole * self.mixed_s[:, -1:] + np.where(rest > 0, self.mixed_s[:, rest], 0.0)).min(axis=0)
        ttft = ttft + self.front_s[0] + self.front_s[1] * records.input_tokens
        context = records.input_tokens + records.output_tokens / 2.0
        tpot = (self.decode_s[:, None] + self.kv_s_per_token[:, None] * context).min(axis=0)
        return ttft, np.where(records.output_tokens > 1, tpot, 0.0)


def engines_of(env: Any) -> Engines | None:
    """The engines of an environment, or None if they are not known before the episode."""
    core: Any = getattr(env.unwrapped, "core", None)
    if hasattr(core, "desk"):  # a fleet behind a router
        simulator = core.simulator
        fleet = simulator.fleet  # whose replicas may be slowed down or sped up
        mixed, decode, kv = _speeds(simulator.tables, np.arange(len(fleet.kinds)))
        fastest = {
            replica: max(
                1.0 / _best_rate(row)
                for (kind, _), row in zip(fleet.kinds, mixed, strict=True)
                if kind == replica
            )
            for replica, _ in fleet.kinds
        }
        total = sum(fastest[place.replica] for place in fleet.places)
        caching = core.config.cluster.prefix_caching
        return Engines(mixed, decode, kv, total, caching, _front_s(simulator))
    if hasattr(core, "num_base"):  # a node whose engines can be merged
        cluster, num_base = core.simulator.cluster, core.num_base
        mixed, decode, kv = _speeds(cluster.tables, np.arange(len(cluster.widths)))
        base = min(cluster.widths)
        rates = [
            num_base * base / width / _best_rate(row)
            for width, row in zip(cluster.widths, mixed, strict=True)
        ]
        return Engines(mixed, decode, kv, max(rates), front_s=_front_s(core.simulator))
    return None


def _speeds(tables: Any, kinds: NDArray[np.int64]) -> tuple[FloatArray, FloatArray, FloatArray]:
    mixed = tables.mixed_ps[kinds] / PS_PER_S
    decode = tables.decode_ps[kinds, 1:] / PS_PER_S
    return mixed, decode.min(axis=1), tables.kinds["kv_ps"][kinds] / PS_PER_S


def _front_s(simulator: Any) -> tuple[float, float]:
    """Least delay to clients of any engine in this episode, as `Engines.front_s`."""
    fronts = simulator.tables.fronts
    if not len(fronts):
        return 0.0, 0.0
    running = hasattr(simulator, "world")  # behind live servers it stands for their engines and never runs
    factor = float(simulator.world.cluster["front_factor"][0]) if running else 1.0
    fixed_s, token_s = (float(fronts[name].min()) * factor / PS_PER_S for name in ("fixed_ps", "token_ps"))
    return fixed_s, token_s


def _best_rate(mixed_s: FloatArray) -> float:
    """Least time of a prompt token in an iteration, seconds."""
    return float((mixed_s[1:] / np.arange(1, len(mixed_s))).min())


def bound_on_return(
    engines: Engines,
    records: RequestRecords,
    slos: Sequence[SLO],
    objective: Objective,
    classes: Sequence[str],
) -> float:
    """A return that no policy can exceed on these requests.

    Args:
        engines: Lower bounds on the cluster's iteration times.
        records: Every request of the episode; only arrivals, lengths and classes are used.
        slos: SLO of each class.
        objective: Weights of the reward.
        classes: Names of the classes.
    """
    ttft, tpot = engines.alone(records)
    factors = objective.factors(classes)[records.class_id]
    ttft_slo, tpot_slo = (
        np.array([getattr(slo, name) for slo in slos])[records.class_id] for name in ("ttft_s", "tpot_s")
    )
    waiting = max(float((ttft / ttft_slo).sum()), _pooled(engines, records, slos))
    latency = waiting + float((tpot / tpot_slo).sum())
    return objective.scale * (
        -objective.latency * latency
        - objective.ttft_attainment * float(factors[ttft > ttft_slo].sum())
        - objective.tpot_attainment * float(factors[tpot > tpot_slo].sum())
        + objective.goodput * len(records)
    )


def _pooled(engines: Engines, records: RequestRecords, slos: Sequence[SLO]) -> float:
    """Least sum of TTFT / SLO on one interruptible engine: of all at the least weight, or of each class by itself."""
    if engines.caching:
        return 0.0
    work_s = records.input_tokens / engines.prefill_tokens_per_s
    weights = np.array([1.0 / slo.ttft_s for slo in slos])
    together = weights.min() * srpt_flow_time(records.arrival_s, work_s)
    apart = sum(
        weights[c] * srpt_flow_time(records.arrival_s[records.class_id == c], work_s[records.class_id == c])
        for c in range(len(slos))
    )
    return float(max(together, apart))


def srpt_flow_time(arrival_s: FloatArray, work_s: FloatArray) -> float:
    """Sum of the flow times of jobs on one machine with shortest remaining processing time first.

    Args:
        arrival_s: (N,), in order.
        work_s: (N,).
    """
    waiting: list[float] = []  # work left
    now, total, jobs = 0.0, 0.0, len(arrival_s)
    for i in range(jobs + 1):
        until = float(arrival_s[i]) if i < jobs else np.inf
        while waiting and now + waiting[0] <= until:
            left = heapq.heappop(waiting)
            total += left * (len(waiting) + 1)
            now += left
        if waiting and now < until:
            total += (until - now) * len(waiting)
            waiting[0] -= until - now  # the smallest entry only decreases, so the heap stays valid
        now = max(now, until) if i < jobs else now
        if i < jobs:
            heapq.heappush(waiting, float(work_s[i]))
    return total


def class_slowdowns(
    engines: Engines | None, records: RequestRecords, slos: Sequence[SLO], classes: Sequence[str]
) -> dict[str, float]:
    """Mean ratio of latency to the request's latency alone, by class, as `slowdown/CLASS`.

    If the engines are not known before the episode, the ratio is to the SLO. Infinite if a request of the class did
    not finish, NaN if there is none.
    """
    if engines is None:
        ttft, tpot = (
            np.array([getattr(slo, name) for slo in slos])[records.class_id] for name in ("ttft_s", "tpot_s")
        )
    else:
        ttft, tpot = engines.alone(records)
    slowdown = records.e2e_s / (ttft + tpot * np.maximum(records.output_tokens - 1, 0))
    return {
        f"slowdown/{name}": float(of_class.mean()) if of_class.size else np.nan
        for c, name in enumerate(classes)
        for of_class in [slowdown[records.class_id == c]]
    }
