"""What describes deployments that can be chosen, one row each: fixed scales, counts as log1p(value / scale)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.deployment.candidates import Candidate
from serving_gym.envs.deployment.config import DeploymentScales
from serving_gym.envs.deployment.division import DECODE, PREFILL
from serving_gym.envs.deployment.features import PARTS
from serving_gym.envs.deployment.state import DeploymentSetting
from serving_gym.envs.deployment.switch_cost import SwitchCost
from serving_gym.envs.machines.cluster import ReplicaKind

FloatArray = NDArray[np.float64]
LEAST_DEMAND = 1e-9  # requests a span; a type that is not expected has nearly no end of room

# Features of a candidate; behind them, for each type, what it could serve of that type alone over its forecast (log1p).
CANDIDATE_FEATURES = PARTS[0].names()


class CandidateRows:
    """Describes deployments that can be chosen.

    Args:
        setting: What is known before.
        scales: Fixed scales.
        max_replicas: Most replicas of a deployment.
        max_pp: Longest pipeline.
        kv_tokens: KV tokens of a replica of a kind.
    """

    def __init__(
        self,
        setting: DeploymentSetting,
        scales: DeploymentScales,
        max_replicas: int,
        max_pp: int,
        kv_tokens: Callable[[ReplicaKind], int],
    ) -> None:
        self.setting, self.scales = setting, scales
        self.max_replicas, self.max_pp, self.kv_tokens = max_replicas, max_pp, kv_tokens

    @property
    def width(self) -> int:
        """Length of a row."""
        return len(CANDIDATE_FEATURES) + self.setting.num_types

    def rows(
        self, forecast: FloatArray, candidates: Sequence[Candidate], costs: Sequence[SwitchCost]
    ) -> FloatArray:
        """(N, width), one row each.

        Args:
            forecast: (J,), requests of each type that the next span may bring.
            candidates: What can be chosen.
            costs: What a switch to each of them would cost.
        """
        out = np.zeros((len(candidates), self.width))
        cluster, table = self.setting.cluster, self.setting.table
        demand = np.maximum(forecast, LEAST_DEMAND)
        scales = self.scales
        divisions = self.setting.divisions(demand)
        for row, (candidate, cost) in enumerate(zip(candidates, costs, strict=True)):
            kinds = candidate.plan.kinds
            prefills = {kind: n for kind, n in kinds.items() if kind.role != DECODE}
            decodes = {kind: n for kind, n in kinds.items() if kind.role != PREFILL}
            used, alone = (
                _gpus(some) for some in (kinds, {k: n for k, n in kinds.items() if k not in decodes})
            )
            room = candidate.plan.max_requests / demand.sum()
            rooms = (room, room)
            if candidate.divided and divisions is not None:
                rooms = divisions.rooms(kinds)
            out[row, : len(CANDIDATE_FEATURES)] = (
                1.0,
                candidate.stay,
                candidate.uniform,
                candidate.apart,
                candidate.divided,
                np.log1p(room),
                *np.log1p(rooms),
                sum(kinds.values()) / self.max_replicas,
                _mean_of(prefills, "tp") / cluster.gpus_per_machine,
                _mean_of(prefills, "pp") / self.max_pp,
                _mean_of(decodes, "tp") / cluster.gpus_per_machine,
                _mean_of(decodes, "pp") / self.max_pp,
                alone / cluster.num_gpus,
                1.0 - used / cluster.num_gpus,
                np.log1p(sum(self.kv_tokens(kind) * n for kind, n in decodes.items()) / scales.tokens),
                cost.gpus,
                np.log1p(cost.weight_bytes / scales.switch_bytes),
                np.log1p(cost.stall_s / scales.switch_s),
                np.log1p(cost.requests / scales.requests),
                np.log1p(cost.context_tokens / scales.tokens),
            )
            capacity = [
                sum((table.row(kind) * n for kind, n in some.items()), np.zeros(len(demand)))
                for some in (prefills, decodes)
            ]
            out[row, len(CANDIDATE_FEATURES) :] = np.log1p(np.minimum(*capacity) / demand)
        return out


def _gpus(kinds: Mapping[ReplicaKind, int]) -> int:
    return sum(kind.num_gpus * n for kind, n in kinds.items())


def _mean_of(kinds: Mapping[ReplicaKind, int], degree: str) -> float:
    """Mean degree of some replicas."""
    return float(sum(getattr(kind, degree) * n for kind, n in kinds.items()) / sum(kinds.values()))
