"""What routers have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import Action
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


class Router:
    """A policy that says where a request goes.

    A subclass has a `name` and `choose`, and `begin` where it remembers something.
    """

    name: str
    clairvoyant = False
    spec: PolicySpec
    engines: NominalEngines  # what is known of them beforehand
    rng: np.random.Generator

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Forgets everything and prepares for an episode in this setting.

        Raises:
            ValueError: the cluster is a node, whose engines are what is decided.
        """
        self.spec = spec
        self.engines = spec.fleet
        self.rng = np.random.default_rng(seed)
        self.begin()

    def begin(self) -> None:
        """Prepares for an episode; `spec`, `engines` and `rng` are set."""

    def act(self, observation: Any, state: RoutingState) -> Action:
        """Decides: a place, or None to hold the request. Where nobody can take it, it is held."""
        if state.request is None or not state.can_take.any():
            return None
        return self.choose(state, state.request)

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The decision; at least one place can take the request."""
        raise NotImplementedError


def lowest(score: NDArray[np.floating[Any]] | NDArray[np.integer[Any]], can_take: NDArray[np.bool_]) -> int:
    """The first place of the lowest score among those that can take the request.

    Args:
        score: (P,).
        can_take: (P,), at least one is true.
    """
    return int(np.argmin(np.where(can_take, score, np.inf)))


def lowest_at_random(
    score: NDArray[np.floating[Any]] | NDArray[np.integer[Any]],
    can_take: NDArray[np.bool_],
    rng: np.random.Generator,
) -> int:
    """A place of the lowest score among those that can take the request, drawn uniformly from them.

    Args:
        score: (P,).
        can_take: (P,), at least one is true.
        rng: It is asked only where there are several.
    """
    scores = np.where(can_take, score, np.inf)
    ties = np.flatnonzero(scores == scores.min())
    return int(ties[rng.integers(len(ties))]) if len(ties) > 1 else int(ties[0])


def in_flight_counts(state: RoutingState) -> NDArray[np.int64]:
    """Requests that the router has sent to each place and whose answers have not ended, (P,)."""
    return np.bincount(state.in_flight["place"], minlength=len(state.engines)).astype(np.int64)


def in_flight_sum(state: RoutingState, values: NDArray[Any]) -> NDArray[np.float64]:
    """Sum over each place's requests in flight of a value of each, (P,).

    Args:
        state: As the router observes it.
        values: (M,), one a row of `state.in_flight`.
    """
    sums = np.bincount(state.in_flight["place"], weights=values, minlength=len(state.engines))
    return np.asarray(sums, np.float64)
