"""Several policies beside one episode, each asked at every decision, and what is known of it.

Whoever is not followed is asked as well: it answers to a world that it did not make, and knows what has been when it is
followed again.
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


class Panel:
    """The policies, an observation's summary, what they say, and a memory.

    Args:
        members: The policies.
        adapter: Of the environment; sums up observations and describes what is said.
        memory: Whether the mean and the maximum of all summaries since the episode began are remembered.
    """

    def __init__(self, members: Sequence[Start], adapter: Adapter, memory: bool = True) -> None:
        self.members, self.adapter, self.memory = list(members), adapter, memory

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares for an episode.

        Raises:
            ValueError: a policy does not fit the setting.
        """
        for member in self.members:
            member.reset(spec, seed)
        self._describe = self.adapter.describer(spec)
        self.seen, self.followed = 0, 0
        self.said: list[Action] = []
        self._sum, self._most = np.zeros(()), np.full((), -np.inf)

    def fork(self) -> Panel:
        """A copy that goes on by itself."""
        twin = copy.copy(self)
        twin.members = [member.fork() for member in self.members]
        return twin

    def see(self, observation: Mapping[str, FloatArray], state: Any) -> None:
        """Asks all of them; to be called once a decision."""
        self.said = [member.says(observation, state) for member in self.members]
        self._at = observation, state
        if self.memory:
            now = self._now()
            self._sum, self._most = self._sum + now, np.maximum(self._most, now)
        self.seen += 1

    def _now(self) -> NDArray[np.float64]:
        return self.adapter.summary(self._at[0]).astype(np.float64)

    def state(self) -> FloatArray:
        """(state_size(size, members, memory),): what is seen and remembered, and who is followed."""
        followed = np.arange(len(self.members)) == self.followed
        memory = (self._sum / self.seen, self._most, [np.log1p(self.seen / _LONG)]) if self.memory else ()
        return np.concatenate((self._now(), *memory, followed)).astype(np.float32)

    def rows(self) -> FloatArray:
        """(K, K + D + 1): who each of the policies is, what describes what it says, and whether it is the first."""
        return choices(np.array([self._describe(said, *self._at) for said in self.said]))


def state_size(summary_size: int, members: int, memory: bool) -> int:
    """Length of what a panel knows.

    Args:
        summary_size: Length of an observation's summary.
        members: Policies.
        memory: Whether what has been is remembered.
    """
    return (3 * summary_size + 1 if memory else summary_size) + members


def choices(described: FloatArray) -> FloatArray:
    """(K, K + D + 1), what tells K policies apart; the last column is 1 for the first, which is followed at first.

    Args:
        described: (K, D), of what each says; D may be 0.
    """
    own = np.eye(len(described), dtype=np.float32)
    return np.hstack([own, described.astype(np.float32), own[:, :1]])
