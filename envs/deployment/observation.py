"""The deployment observation: fixed physical scales, counts and rates as log1p(value / scale), no running mean.

Rows behind the last candidate or replica are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.deployment.candidate_rows import CandidateRows
from serving_gym.envs.deployment.candidates import Candidate
from serving_gym.envs.deployment.config import DeploymentScales
from serving_gym.envs.deployment.division import DECODE, PREFILL
from serving_gym.envs.deployment.features import PARTS
from serving_gym.envs.deployment.state import DeploymentSetting, DeploymentState
from serving_gym.envs.deployment.switch_cost import SwitchCost
from serving_gym.envs.interface.state import TOTALS, EngineStatus
from serving_gym.envs.machines.cluster import ReplicaKind

FloatArray = NDArray[np.float64]
Observation = dict[str, NDArray[np.float32]]
HIGH = 64.0  # no log1p of a float64 is larger than this for values below e^64

# Features of a replica of the deployment in force, or that is to be; behind them, its share of each type (ratio).
REPLICA_FEATURES = PARTS[1].names()

# Features of a type; behind them its rates in the last spans, requests per second, the latest first.
TYPE_FEATURES = PARTS[2].names()

CLUSTER_FEATURES = PARTS[3].names()


@dataclass
class SpanFigures:
    """What the time since the last decision brought: a span, unless a policy is asked at a period of its own.

    Attributes:
        dt_s: Its length, seconds; 0 before the first.
        change: (num_classes, len(TOTALS)), growth of the totals.
        p99_s: 99th percentile of the latency of requests that ended in the last full span, seconds; 0 without any.
        busy_s: (E,), for which each engine slot was in iterations, seconds.
        since_switch_s: Time since a switch began, seconds.
    """

    dt_s: float
    change: FloatArray
    p99_s: float
    busy_s: FloatArray
    since_switch_s: float


class Encoder:
    """Turns what is known at a decision into arrays.

    Args:
        setting: What is known before.
        scales: Fixed scales.
        span_s: Time between decisions, seconds.
        history: Spans to look back.
        num_candidates: Rows of candidates.
        max_replicas: Rows of replicas.
        max_pp: Longest pipeline.
        kv_tokens: KV tokens of each kind, by kind.
    """

    def __init__(
        self,
        setting: DeploymentSetting,
        scales: DeploymentScales,
        span_s: float,
        history: int,
        num_candidates: int,
        max_replicas: int,
        max_pp: int,
        kv_tokens: Mapping[ReplicaKind, int],
    ) -> None:
        self.setting, self.scales, self.span_s, self.history = setting, scales, span_s, history
        self.num_candidates, self.max_replicas, self.max_pp = num_candidates, max_replicas, max_pp
        self.rows = CandidateRows(setting, scales, max_replicas, max_pp, kv_tokens.__getitem__)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each part."""
        J = self.setting.num_types
        return {
            "candidates": (self.num_candidates, self.rows.width),
            "replicas": (self.max_replicas, len(REPLICA_FEATURES) + J),
            "types": (J, len(TYPE_FEATURES) + self.history),
            "cluster": (len(CLUSTER_FEATURES),),
        }

    def encode(
        self,
        state: DeploymentState,
        candidates: list[Candidate],
        costs: list[SwitchCost],
        span: SpanFigures,
        slots: NDArray[np.int64],
    ) -> Observation:
        """The observation.

        Args:
            state: What is known.
            candidates: What can be chosen.
            costs: What a switch to each candidate would cost.
            span: What the last span brought.
            slots: (K,), engine slot of each replica of the deployment.
        """
        shown = np.zeros(self.shapes["candidates"], np.float32)
        shown[: len(candidates)] = self.rows.rows(state.forecast, candidates, costs)
        return {
            "candidates": shown,
            "replicas": self._replicas(state, span, slots),
            "types": self._types(state),
            "cluster": self._cluster(state, span),
        }

    def _replicas(
        self, state: DeploymentState, span: SpanFigures, slots: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        out = np.zeros(self.shapes["replicas"])
        scales, engines = self.scales, state.engines
        total = state.shares.sum(axis=0)
        shares = np.divide(state.shares, total, out=np.zeros(state.shares.shape), where=total > 0)
        for row, replica in enumerate(state.deployment.replicas):
            engine = engines[row]
            busy = span.busy_s[slots[row]] / span.dt_s if span.dt_s else 0.0
            out[row, : len(REPLICA_FEATURES)] = (
                replica.kind.tp / self.setting.cluster.gpus_per_machine,
                replica.kind.pp / self.max_pp,
                engine["status"] == EngineStatus.ACTIVE,
                np.log1p(engine["num_running"] / scales.requests),
                np.log1p(engine["num_waiting"] / scales.requests),
                np.log1p(engine["pending_prefill_tokens"] / scales.tokens),
                np.log1p(engine["context_tokens"] / scales.tokens),
                engine["kv_used_blocks"] / max(1, int(engine["kv_capacity_blocks"])),
                busy,
                replica.kind.role != DECODE,
                replica.kind.role != PREFILL,
            )
            out[row, len(REPLICA_FEATURES) :] = shares[row]
        return out.astype(np.float32)

    def _types(self, state: DeploymentState) -> NDArray[np.float32]:
        out = np.zeros(self.shapes["types"])
        scales = self.scales
        out[:, 0] = np.log1p(state.forecast / self.span_s / scales.request_rate)
        out[:, 1:3] = np.log1p(self.setting.mean_tokens / scales.type_tokens)
        recent = state.history[::-1][: self.history].T
        first = len(TYPE_FEATURES)
        out[:, first : first + recent.shape[1]] = np.log1p(recent / self.span_s / scales.request_rate)
        return out.astype(np.float32)

    def _cluster(self, state: DeploymentState, span: SpanFigures) -> NDArray[np.float32]:
        scales, switch = self.scales, state.switch
        totals = dict(zip(TOTALS, state.totals.sum(axis=0), strict=True))
        change = dict(zip(TOTALS, span.change.sum(axis=0), strict=True))
        in_flight = totals["arrived"] - totals["refused"] - totals["failed"] - totals["finished"]

        def rate(name: str) -> float:
            return float(np.log1p(change[name] / span.dt_s / scales.request_rate)) if span.dt_s else 0.0

        def missed(met: str, of: str) -> float:
            return float(1.0 - change[met] / change[of]) if change[of] else 0.0

        elapsed = 0.0 if switch is None else state.now_s - switch.started_s
        due = 0.0 if switch is None else switch.due_s - state.now_s
        return np.array(
            (
                np.log1p(state.num_pooled / scales.requests),
                np.log1p(state.pooled_tokens / scales.tokens),
                np.log1p(in_flight / scales.requests),
                switch is not None and switch.draining,
                switch is not None and not switch.draining,
                np.log1p(elapsed / scales.switch_s),
                np.log1p(max(due, 0.0) / scales.switch_s),
                np.log1p(span.since_switch_s / scales.switch_s),
                rate("arrived"),
                rate("finished"),
                np.log1p(span.p99_s / scales.latency_s),
                missed("ttft_met", "first_tokens"),
                missed("tpot_met", "finished"),
                rate("refused"),
            ),
            np.float32,
        )
