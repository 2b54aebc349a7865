"""What admission policies have in common: they judge a request, and a placement policy says where it goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.baselines.common.routers.jsq import JSQPolicy
from serving_gym.baselines.policy import Action, Policy
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.routing.state import Dispatch, Reject, RoutedRequest, RoutingState

HOLD = Dispatch(None)
REJECT = Reject()


class Admitter:
    """Judges each request before a placement policy does: it is refused, deferred or held, or goes on to that policy.

    A subclass has a `name` and `judge`, and `begin` where it remembers something.

    Attributes:
        once: Whether a request is judged when it arrives and never again; else at each offer.
        router: Where a request goes that is let in; `admitter+router` names another (`baselines.registry`).
    """

    name: str
    clairvoyant = False
    once = True
    router: Policy
    spec: PolicySpec
    rng: np.random.Generator

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)  # type: ignore[call-arg]  # `Configured`, which stands behind this class
        self.router = JSQPolicy()

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Forgets everything and prepares for an episode in this setting.

        Raises:
            ValueError: admission is no decision there, or the cluster is a node.
        """
        if not spec.admission:
            raise ValueError(f"policy {self.name!r} decides about admission: set env.admission=true")
        self.spec = spec
        self.rng = np.random.default_rng(seed)
        self.begin()
        self.router.reset(spec, seed)

    def begin(self) -> None:
        """Prepares for an episode; `spec` and `rng` are set."""

    def act(self, observation: Any, state: RoutingState) -> Action:
        """Decides: a verdict, or what the placement policy says; where no place can take the request, it is held."""
        request = state.request
        if request is None:
            return None
        if not (self.once and request.held_before):
            verdict = self.judge(state, request)
            if verdict is not None:
                return verdict
        return self.place(observation, state, request)

    def judge(self, state: RoutingState, request: RoutedRequest) -> Action:
        """A command instead of placing the request (`REJECT`, `HOLD`, `Defer()`), or None: it is let in."""
        raise NotImplementedError

    def place(self, observation: Any, state: RoutingState, request: RoutedRequest) -> Action:
        """Where a request goes that is let in."""
        return self.router.act(observation, state)
