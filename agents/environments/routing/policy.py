"""The learned router, behind a guard where it has one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.routing.guard import GuardConfig, guarded
from serving_gym.agents.policies.network_policy import NetworkPolicy, Observation
from serving_gym.envs.simulator.kernel.place_scores import (
    ScoreSpace,
    choose_place,
    knows_verdicts,
    score_space,
    with_verdicts,
)

_NONE = np.zeros(0, np.float32)


class NetworkRouter(NetworkPolicy):
    """Greedy in a network over the places that can take a request, or over those of them that pass a guard.

    A single decision is made by the kernel, where the network is one that it knows: NumPy's calls take several times as
    long as what they compute. Many at once are made in NumPy, to the same result but for rounding (and where scores are
    not numbers, of which the kernel chooses none).

    Args:
        settings: As of `NetworkPolicy`, like `named`.
        guard: The guard; None: there is none.
    """

    def __init__(self, *settings: Any, guard: GuardConfig | None = None, **named: Any) -> None:
        super().__init__(*settings, **named)
        self._guard = None if guard is None else guard.numbers()
        if self._guard is not None and self.in_kernel is not None:
            self.in_kernel = self.in_kernel._replace(guard=self._guard)
        self._space: ScoreSpace | None = None

    def _best_alone(self, observation: Observation, mask: NDArray[np.bool_] | None) -> Any:
        if self.in_kernel is None:
            return super()._best_alone(observation, mask)
        assert mask is not None
        places, request, cluster = (
            np.ascontiguousarray(observation[name]) for name in ("places", "request", "cluster")
        )
        admission = _NONE
        if knows_verdicts(self.in_kernel):
            places, admission = with_verdicts(places), np.ascontiguousarray(observation["admission"])
        shown = len(request) + len(admission) + len(cluster)
        assert shown == len(self.in_kernel.row_context), "reset in another setting"
        if self._space is None or len(self._space.rows) < len(places):
            self._space = score_space(self.in_kernel, len(places))
        return int(choose_place(self.in_kernel, self._space, places, request, admission, cluster, mask))

    def _best(self, observation: Observation, masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        if self._guard is not None:
            assert masks is not None
            masks = guarded(self._guard, observation, masks)
        return super()._best(observation, masks)
