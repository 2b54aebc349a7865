"""Interface of approximate policy iteration to an environment that can be forked at a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.config import PolicyIterationConfig
from serving_gym.agents.learners.learner import Budget, Task
from serving_gym.baselines.policy import Policy


@dataclass
class Batch:
    """Sampled states with the returns of their actions."""

    states: list[NDArray[np.float32]] = field(default_factory=list)  # (state_size,) each
    actions: list[NDArray[np.float32]] = field(default_factory=list)  # (K, action_size) each
    returns: list[NDArray[np.float64]] = field(default_factory=list)  # (K,) each, NaN: not tried
    chosen: list[int] = field(default_factory=list)  # row of the action that the present policy took
    squares: list[NDArray[np.float64]] = field(default_factory=list)  # (K,) each, of TTFT / SLO, summed
    kinds: list[str] = field(default_factory=list)  # of traffic, each with advantages of its own size

    def add(
        self,
        state: NDArray[np.float32],
        actions: NDArray[np.float32],
        returns: NDArray[np.float64],
        chosen: int,
        kind: str = "",
        squares: NDArray[np.float64] | None = None,
    ) -> None:
        """Adds a state; arguments as the attributes."""
        self.states.append(state)
        self.actions.append(actions)
        self.returns.append(returns)
        self.chosen.append(chosen)
        self.kinds.append(kind)
        self.squares.append(np.zeros(len(returns)) if squares is None else squares)

    def extend(self, other: Batch) -> None:
        """Adds the states of another batch."""
        for entry in fields(self):
            getattr(self, entry.name).extend(getattr(other, entry.name))


class Counterfactuals(Protocol):
    """Training episodes of the present policy, and rollouts from states that it visits."""

    @property
    def observation(self) -> spaces.Dict:
        """Observation space of the environment."""
        ...

    @property
    def action(self) -> ActionSpace:
        """Action space of the environment."""
        ...

    def follow(self, policy: Policy) -> None:
        """Sets the present policy of episodes and rollouts."""
        ...

    def play(self, budget: Budget, batch: Batch) -> None:
        """Takes a decision in every episode, and adds sampled states."""
        ...

    def advantages(self, returns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Training advantages from the returns at each state, (K,) each; NaN stays."""
        ...


def padded(rows: Sequence[NDArray[np.floating[Any]]], widest: int) -> NDArray[np.float64]:
    """(N, widest), values one state a row; NaN where there are none.

    Args:
        rows: (K,) each, K at most `widest`.
        widest: Columns.
    """
    table = np.full((len(rows), widest), np.nan)
    for filled, values in zip(table, rows, strict=True):
        filled[: len(values)] = values
    return table


def relative_advantages(
    returns: Sequence[NDArray[np.float64]], config: PolicyIterationConfig
) -> list[NDArray[np.float64]]:
    """Advantages divided by the cost of the best action at a state, or a power of it; (K,) each.

    Args:
        returns: (K,) each, of the actions tried at a state.
        config: Of the agent: what is added to the cost, what is the worst, and how much quiet hours count.
    """

    def counted(value: NDArray[np.float64]) -> NDArray[np.float64]:
        cost = abs(value.max()) + config.least_cost
        relative = np.maximum((value - value.max()) / cost, config.worst)
        return np.asarray(relative * cost ** (1.0 - config.cost_power))

    return [counted(value) for value in returns]


class Improvable(Protocol):
    """Factory of an environment's counterfactuals, networks and policies; `config` is the agent's."""

    def counterfactuals(self, config: Any, task: Task, rng: np.random.Generator) -> Counterfactuals:
        """Builds the training episodes and rollouts."""
        ...

    def score_network(self, observation: spaces.Dict, config: Any) -> nn.Module:
        """Builds the network that scores actions from features of the state and of the actions."""
        ...

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: ActionSpace, config: Any, name: str
    ) -> Policy:
        """A policy that takes the action with the highest score."""
        ...
