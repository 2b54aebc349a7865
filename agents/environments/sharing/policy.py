"""The learned placement: the place with the highest score."""

from __future__ import annotations

from typing import Any

from serving_gym.agents.policies.network_policy import NetworkPolicy, Observation
from serving_gym.envs.interface.sharing import Event


class SharingNetworkPolicy(NetworkPolicy):
    """Greedy in a network over instances and nodes, for any number of them."""

    def act(self, observation: Observation, state: Any) -> Any:
        """The best action, without chance; None where nothing is placed and no iteration given."""
        return super().act(observation, state) if state.event in (Event.PLACEMENT, Event.ITERATION) else None
