"""The learned router behind a guard."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.network_policy import NetworkPolicy, Observation
from agents.routing.guard import GuardConfig, guarded


class GuardedRouter(NetworkPolicy):
    """Greedy in a network over the places that pass a guard.

    Args:
        settings: As of `NetworkPolicy`, like `named`.
        guard: The guard.
    """

    def __init__(self, *settings: Any, guard: GuardConfig, **named: Any) -> None:
        super().__init__(*settings, **named)
        self._guard = guard.numbers()
        if self.in_kernel is not None:
            self.in_kernel = self.in_kernel._replace(guard=self._guard)

    def _best(self, observation: Observation, masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        assert masks is not None
        return super()._best(observation, guarded(self._guard, observation, masks))
