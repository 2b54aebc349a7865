"""Removes the part of advantages that is due to the arrivals.

How an interval turns out depends far more on the requests that happen to arrive than on the decision. Environments that
live through the same episode see the same arrivals, so that what the others' advantages have in common at the same
moment is not this decision's merit: the mean over the *others* is subtracted, a baseline that depends on the input but
not on the action and so leaves the gradient's mean alone (Mao et al. 2018, "Variance reduction for reinforcement
learning in input-driven environments", section 4; leave-one-out as in Kool et al. 2019).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_DECISIONS = 1 << 32  # of an episode


class Clock:
    """Where each environment is: episodes begun, and decisions taken in the present one."""

    def __init__(self, num_envs: int) -> None:
        self.episode = np.zeros(num_envs, np.int64)
        self.decision = np.full(num_envs, -1, np.int64)

    def advance(self, episode_starts: NDArray[np.float32]) -> NDArray[np.int64]:
        """Moments of the decisions of a rollout, equal where episode number and decision number are.

        Args:
            episode_starts: (num_steps, num_envs), 1 where a step is the first of its episode.
        """
        moments = np.empty(episode_starts.shape, np.int64)
        for step, starts in enumerate(episode_starts > 0.5):
            self.episode += starts
            self.decision = np.where(starts, 0, self.decision + 1)
            moments[step] = self.episode * _MOST_DECISIONS + self.decision
        return moments


def centred(
    advantages: NDArray[np.float32], moments: NDArray[np.int64], group_size: int
) -> NDArray[np.float32]:
    """Advantages less the mean of those that the other members of the group have at the same moment.

    Args:
        advantages: (num_steps, num_envs); environments of a group, which share their seeds, lie side by side.
        moments: (num_steps, num_envs).
        group_size: Environments of a group.
    """
    result = advantages.copy()
    for first in range(0, advantages.shape[1], group_size):
        members = slice(first, first + group_size)
        own = advantages[:, members]
        _, places = np.unique(moments[:, members], return_inverse=True)
        places = places.reshape(own.shape)
        total = np.bincount(places.ravel(), own.ravel().astype(np.float64))[places]
        count = np.bincount(places.ravel())[places]
        result[:, members] = own - np.where(count > 1, (total - own) / np.maximum(count - 1, 1), 0.0)
    return result
