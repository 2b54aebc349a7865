"""The power of two choices."""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.common.router import Router, in_flight_counts
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


class PowerOfTwoPolicy(Router):
    """Of two engines drawn at random, the one with fewer requests in flight.

    As in vllm-router 0.1.17 (`policies/power_of_two.rs`): two different engines, uniformly from those that can take the
    request; the one drawn first wins a tie; the only one is taken without a draw. Its load is the router's own count of
    requests in flight, which it falls back to where workers do not answer `/get_load` (vLLM's do not).
    """

    name = "power_of_two"

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The lighter of two."""
        able = np.flatnonzero(state.can_take)
        if len(able) == 1:
            return int(able[0])
        one = int(self.rng.integers(len(able)))
        other = int(self.rng.integers(len(able) - 1))
        first, second = able[one], able[other + (other >= one)]
        counts = in_flight_counts(state)
        return int(first if counts[first] <= counts[second] else second)
