"""Effective memory utilisation: SageServe's measure of load (sections 4 and 6.1).

"The ratio of the sum of the effective memory utilized to the effective memory available across all instances for a
model in a region", where weights do not count: what is left for KV, as engines report it. Instances of one model hold
equally large tokens, so that tokens stand for bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.routing.state import RoutingState

IN_SERVICE = (EngineStatus.ACTIVE, EngineStatus.SPECULATIVE)


@dataclass(frozen=True, eq=False)
class EffectiveMemory:
    """Memory of the places, of which those without an instance in service have none.

    Attributes:
        used: (P,) tokens that running requests hold.
        available: (P,) tokens that the KV pools hold.
    """

    used: NDArray[np.int64]
    available: NDArray[np.int64]

    @classmethod
    def of(cls, state: RoutingState, fleet: NominalEngines) -> EffectiveMemory:
        """As the engines' gauges show it."""
        serves = np.isin(state.engines["status"], IN_SERVICE)
        used = state.engines["kv_used_blocks"] * fleet.block_size
        return cls(np.where(serves, used, 0), np.where(serves, state.engines["kv_capacity_tokens"], 0))

    def utilization(self, members: NDArray[np.bool_]) -> float:
        """Sum over sum; infinite where no memory is in service.

        Args:
            members: (P,) places that count.
        """
        available = int(self.available[members].sum())
        return int(self.used[members].sum()) / available if available else float("inf")
