"""What a cluster has used up: GPU-hours, energy, money."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Usage:
    """Running totals since the episode began, by place of a fleet; a node is one place.

    Attributes:
        gpu_hours: (places,), for which GPUs were kept, busy or not.
        energy_kwh: (places,), of the GPUs; NaN where their power is not known.
        cost_usd: (places,), rent of the GPUs; NaN where their price is not known.
    """

    gpu_hours: NDArray[np.float64]
    energy_kwh: NDArray[np.float64]
    cost_usd: NDArray[np.float64]

    def totals(self) -> dict[str, float]:
        """Sum over all places of each."""
        return {entry.name: float(getattr(self, entry.name).sum()) for entry in fields(self)}
