"""Round robin."""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


class RoundRobinPolicy(Router):
    """Engines take turns.

    As in vllm-router 0.1.17 (`policies/round_robin.rs`): the n-th decision takes the (n mod k)-th of the k engines that
    can take the request, so that a change of k moves everybody's turn.
    """

    name = "round_robin"

    def begin(self) -> None:
        """The first engine is next."""
        self._count = 0

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Whose turn it is."""
        able = np.flatnonzero(state.can_take)
        place = able[self._count % len(able)]
        self._count += 1
        return int(place)
