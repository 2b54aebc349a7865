"""Join the shortest queue, by tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, in_flight_sum, lowest
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


def remaining_tokens(state: RoutingState) -> NDArray[np.float64]:
    """Tokens that each place has yet to process for the requests in flight, by the router's own knowledge, (P,).

    A request counts its whole prompt until its first token has come back (a router does not see prefill advance), and
    what its predicted output has left; one that has outgrown its prediction counts the one token that is under way.
    """
    flights = state.in_flight
    prompt = np.where(flights["first_token_s"] < 0, flights["input_tokens"], 0)
    output = np.maximum(flights["predicted_tokens"] - flights["generated_tokens"], 1)
    return in_flight_sum(state, prompt + output)


class JSQPolicy(Router):
    """The engine with the fewest tokens left to process (SageServe, "Routing Logic at Region Endpoint").

    The paper says no more than "the instance with the minimum remaining tokens to process"; that prompts and predicted
    outputs count alike, and that the first engine wins a tie: ours.
    """

    name = "jsq"

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The shortest queue; ties to the first."""
        return lowest(remaining_tokens(state), state.can_take)
