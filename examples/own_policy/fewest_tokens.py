"""A router of twenty lines: the place with the fewest tokens under way, where long answers count less or more."""

import numpy as np

from serving_gym.baselines.policy import PolicySpec
from serving_gym.envs.routing.state import RoutingState


class FewestTokensPolicy:
    """Sends each request to the place with the fewest tokens of requests in flight."""

    name = "fewest_tokens"
    clairvoyant = False  # it looks neither at the future nor at true output lengths

    def __init__(self, output_weight: float = 1.0) -> None:
        self.output_weight = output_weight

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Nothing is remembered from one request to the next."""

    def act(self, observation: object, state: RoutingState) -> int | None:
        """A place, or None to hold the request."""
        if not state.can_take.any():
            return None
        flights = state.in_flight
        tokens = flights["input_tokens"] + self.output_weight * flights["predicted_tokens"]
        load = np.bincount(flights["place"], tokens, minlength=len(state.engines))
        return int(np.argmin(np.where(state.can_take, load, np.inf)))
