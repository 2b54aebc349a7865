"""Several policies beside one episode, each asked at every decision, and what is remembered of it.

Whoever is not followed is asked as well: it answers to a world that it did not make, and knows what has been when it is
followed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.api.start import Start
from baselines.policy import Action
from envs.policy_spec import PolicySpec

FloatArray = NDArray[np.float32]
Summary = Callable[[Mapping[str, FloatArray]], FloatArray]
_LONG = 64.0  # decisions; an episode is long beyond


class Panel:
    """The policies and a memory: an observation's summary now, its mean and its maximum since the episode began.

    Args:
        members: The policies.
        summary: Of an observation, (size,).
    """

    def __init__(self, members: Sequence[Start], summary: Summary) -> None:
        self.members, self.summary = list(members), summary

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares for an episode.

        Raises:
            ValueError: a policy does not fit the setting.
        """
        for member in self.members:
            member.reset(spec, seed)
        self.seen, self.followed = 0, 0
        self.said: list[Action] = []

    def see(self, observation: Mapping[str, FloatArray], state: Any) -> None:
        """Asks all of them; to be called once a decision."""
        self.said = [member.says(observation, state) for member in self.members]
        now = self.summary(observation).astype(np.float64)
        if self.seen == 0:
            self._sum, self._most = np.zeros_like(now), now
        self._now = now
        self._sum, self._most = self._sum + now, np.maximum(self._most, now)
        self.seen += 1

    def state(self) -> FloatArray:
        """(state_size(size, members),): what is remembered, how long it has been, and who is followed."""
        length = np.log1p(self.seen / _LONG)
        followed = np.arange(len(self.members)) == self.followed
        parts = (self._now, self._sum / self.seen, self._most, [length], followed)
        return np.concatenate(parts).astype(np.float32)

    def rows(self) -> FloatArray:
        """(K, K + 1): which of the policies each is; the last column is 1 for the first, which is followed at first."""
        return choices(len(self.members))


def state_size(summary_size: int, members: int) -> int:
    """Length of what a panel remembers.

    Args:
        summary_size: Length of an observation's summary.
        members: Policies.
    """
    return 3 * summary_size + 1 + members


def choices(members: int) -> FloatArray:
    """(K, K + 1), what describes following each of K policies; the last column is 1 for the first."""
    rows = np.eye(members, members + 1, dtype=np.float32)
    rows[0, -1] = 1.0
    return rows
