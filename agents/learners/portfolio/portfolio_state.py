"""The policies of a portfolio in one episode, and the inputs of the choice among them.

Every policy is asked at every decision, also while another one is followed, so that its memory covers the episode.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Adapter
from serving_gym.agents.learners.api.start import Start
from serving_gym.baselines.policy import Action
from serving_gym.envs.interface.policy_spec import PolicySpec

FloatArray = NDArray[np.float32]
_LONG = 64.0  # decisions; an episode is long beyond


class PortfolioState:
    """The policies with their latest actions, the observation's summary, and a memory.

    Args:
        policies: The policies.
        adapter: Of the environment; summarises observations and describes actions.
        memory: Whether the mean and the maximum of the summaries since the episode began are kept.
    """

    def __init__(self, policies: Sequence[Start], adapter: Adapter, memory: bool = True) -> None:
        self.policies, self.adapter, self.memory = list(policies), adapter, memory

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares for an episode.

        Raises:
            ValueError: a policy does not fit the setting.
        """
        for policy in self.policies:
            policy.reset(spec, seed)
        self._describe = self.adapter.describer(spec)
        self.num_decisions, self.followed = 0, 0
        self.actions: list[Action] = []
        self._sum, self._most = np.zeros(()), np.full((), -np.inf)

    def fork(self) -> PortfolioState:
        """A copy that continues independently."""
        twin = copy.copy(self)
        twin.policies = [policy.fork() for policy in self.policies]
        return twin

    def observe(self, observation: Mapping[str, FloatArray], state: Any) -> None:
        """Computes the actions of all policies; call it once per decision."""
        self.actions = [policy.act(observation, state) for policy in self.policies]
        self._at = observation, state
        if self.memory:
            now = self._now()
            self._sum, self._most = self._sum + now, np.maximum(self._most, now)
        self.num_decisions += 1

    def _now(self) -> NDArray[np.float64]:
        return self.adapter.summary(self._at[0]).astype(np.float64)

    def state(self) -> FloatArray:
        """(state_size(...),): the summary, the memory, and which policy is followed (one-hot)."""
        followed = np.arange(len(self.policies)) == self.followed
        memory: tuple[Any, ...] = ()
        if self.memory:
            mean, length = self._sum / self.num_decisions, np.log1p(self.num_decisions / _LONG)
            memory = (mean, self._most, [length])
        return np.concatenate((self._now(), *memory, followed)).astype(np.float32)

    def rows(self) -> FloatArray:
        """(K, K + D + 1): each policy one-hot, the description of its action, and whether it is the first."""
        return choices(np.array([self._describe(action, *self._at) for action in self.actions]))


def state_size(summary_size: int, num_policies: int, memory: bool) -> int:
    """Length of `PortfolioState.state()`.

    Args:
        summary_size: Length of an observation's summary.
        num_policies: Policies.
        memory: Whether there is a memory.
    """
    return (3 * summary_size + 1 if memory else summary_size) + num_policies


def choices(described: FloatArray) -> FloatArray:
    """(K, K + D + 1), a row for each policy; the last column is 1 for the first, which is followed at first.

    Args:
        described: (K, D), of the action of each; D may be 0.
    """
    own = np.eye(len(described), dtype=np.float32)
    return np.hstack([own, described.astype(np.float32), own[:, :1]])
