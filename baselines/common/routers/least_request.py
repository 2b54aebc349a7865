"""Fewest requests in flight."""

from __future__ import annotations

from serving_gym.baselines.common.router import Router, in_flight_counts, lowest_at_random
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


class LeastRequestPolicy(Router):
    """The engine with the fewest requests that the router has sent and whose answers have not ended.

    AIBrix's `least-request` (gateway plugins, `least_request.go`): it counts at once what passes through the gateway,
    never the engines' gauges, and draws among equals.
    """

    name = "least_request"

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The fewest; ties at random."""
        return lowest_at_random(in_flight_counts(state), state.can_take, self.rng)
