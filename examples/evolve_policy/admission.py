"""The program that the search begins with: an admission policy in front of the shortest queue.

`shed` is what is mutated. It says, by figures of the router, with what probability a request is refused now.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.baselines.common.routers.jsq import JSQPolicy
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.routing.observation import saturation_of
from serving_gym.envs.routing.state import Reject, RoutingState


def shed(priority: float, saturation: float, worst: float, held: float, slack: float) -> float:
    """Probability of refusing a request.

    Args:
        priority: Of the request, 0 is served first.
        saturation: Mean over the engines: the larger of waiting / 5 and KV usage / 0.8.
        worst: The same of the most saturated engine.
        held: Requests in the router's queue.
        slack: What is left of the time to its first token, as a share of its promise.
    """
    return 0.5 * saturation * (priority - 1.0)


class Admission:
    """Refuses by chance, and sends the rest where the fewest tokens are left to process."""

    name = "admission"
    clairvoyant = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Begins an episode."""
        self._spec, self._rng, self._router = spec, np.random.default_rng(seed), JSQPolicy()
        self._router.reset(spec, seed)

    def act(self, observation: Any, state: RoutingState) -> Any:
        """Refuses or places the request."""
        request = state.request
        if request is None or request.held_before:
            return self._router.act(observation, state)
        saturation = saturation_of(state)
        slack = (request.deadline_s - state.now_s) / self._spec.slos[request.class_id].ttft_s
        chance = shed(
            float(request.priority),
            float(saturation.mean()),
            float(saturation.max()),
            float(state.num_held),
            float(slack),
        )
        return Reject() if self._rng.random() < chance else self._router.act(observation, state)
