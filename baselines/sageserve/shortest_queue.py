"""Which instance of a deployment: join the shortest queue by remaining tokens (section 6.1).

The paper's simulator counts the tokens that really remain; here an answer is as long as predicted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import in_flight_sum, lowest
from serving_gym.envs.routing.state import RoutingState


def remaining_tokens(state: RoutingState) -> NDArray[np.float64]:
    """Tokens that each place has yet to process for the requests sent there, (P,).

    A prompt counts whole until its first token comes; an answer that is longer than predicted has one token left.
    """
    sent = state.in_flight
    prompt = np.where(sent["first_token_s"] < 0, sent["input_tokens"], 0)
    answer = np.maximum(sent["predicted_tokens"] - sent["generated_tokens"], 1)
    return in_flight_sum(state, prompt + answer)


def join_shortest_queue(state: RoutingState, candidates: NDArray[np.bool_]) -> int:
    """The candidate with the fewest remaining tokens.

    Args:
        state: As the router observes it.
        candidates: (P,), at least one.
    """
    return lowest(remaining_tokens(state), candidates)
