"""What agents need to know of an environment. Each has an adapter; everything else about an agent is shared."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import spaces
    from torch import nn

    from agents.api.config import APIConfig
    from agents.api.counterfactuals import Counterfactuals
    from agents.config import SB3Config
    from agents.learner import Task
    from baselines.policy import Action, Policy


class Adapter(Protocol):
    """Between an environment and the agents."""

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The decision interval that discounts are about, seconds.

        Args:
            arguments: Of the environment.
        """
        ...

    def training_arguments(self, config: SB3Config, task: Task) -> dict[str, Any]:
        """Keyword arguments of the environment in which an agent of Stable-Baselines3 learns."""
        ...

    def plain_action(self, observation: Any, state: Any) -> Action:
        """A decision that needs no learning, by which the size of returns is measured."""
        ...

    def sb3_network(self, config: SB3Config) -> tuple[Any, dict[str, Any]]:
        """Class, or Stable-Baselines3's name, of an agent's policy network, and its arguments."""
        ...

    def sb3_policy(
        self, config: SB3Config, network: Any, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> Policy:
        """A policy that follows such a network.

        Args:
            config: Settings of the agent.
            network: Policy network of Stable-Baselines3.
            observation: What it was trained to see.
            action: What it was trained to choose from.
            name: What the policy is called in results.
        """
        ...

    def counterfactuals(self, config: APIConfig, task: Task, rng: np.random.Generator) -> Counterfactuals:
        """The world that approximate policy iteration plays in."""
        ...

    def score_network(self, observation: spaces.Dict, hidden: int) -> nn.Module:
        """The network that approximate policy iteration trains: scores of actions from a state and from theirs."""
        ...

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> Policy:
        """A policy that is greedy in such a network."""
        ...


ADAPTERS = {
    "dp_tp": "agents.dp_tp.adapter:DPTPAdapter",
    "routing": "agents.routing.adapter:RoutingAdapter",
    "sharing": "agents.sharing.adapter:SharingAdapter",
}


def adapter_of(env: str) -> Adapter:
    """The adapter of an environment.

    Raises:
        ValueError: it has none.
    """
    if env not in ADAPTERS:
        raise ValueError(f"there are no agents for env {env!r}; they learn {', '.join(ADAPTERS)}")
    module, _, attribute = ADAPTERS[env].partition(":")
    adapter: Adapter = getattr(importlib.import_module(module), attribute)()
    return adapter
