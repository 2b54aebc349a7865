"""Resources used by a cluster: GPU-hours, energy, cost."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Usage:
    """Running totals since the episode began, by replica slot of a fleet; a node is one slot.

    Attributes:
        gpu_hours: (places,), for which GPUs were provisioned, busy or not.
        energy_kwh: (places,), of the GPUs; NaN if their power is unknown.
        cost_usd: (places,), rent of the GPUs; NaN if their price is unknown.
    """

    gpu_hours: NDArray[np.float64]
    energy_kwh: NDArray[np.float64]
    cost_usd: NDArray[np.float64]

    def totals(self) -> dict[str, float]:
        """Sum over all places of each."""
        return {entry.name: float(getattr(self, entry.name).sum()) for entry in fields(self)}
