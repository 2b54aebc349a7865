"""When the requests of sessions arrive: a turn comes its delay after the answers that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload


class Turns:
    """Counts the answers that requests wait for.

    Args:
        workload: requests; without sessions none waits.

    Attributes:
        left: requests that have not arrived and still may.
    """

    def __init__(self, workload: Workload) -> None:
        self.left = len(workload)
        self._awaited = workload.num_awaited.copy()
        self._delay_s = workload.delay_s
        self._since_s = np.zeros(
            len(workload) if workload.has_sessions else 0
        )  # end of the last answer so far
        self._never = np.zeros(len(self._since_s), bool)
        self._followers: dict[int, list[int]] = {}
        if workload.after is not None:
            for follower, row in zip(
                np.repeat(np.arange(len(workload)), self._awaited).tolist(),
                workload.after.tolist(),
                strict=True,
            ):
                self._followers.setdefault(row, []).append(follower)

    @property
    def first(self) -> NDArray[np.int64]:
        """Rows that wait for no answer, in order."""
        return np.flatnonzero(self._awaited == 0)

    def followers(self, row: int) -> list[int]:
        """Rows that wait for the answer of a row."""
        return self._followers.get(row, [])

    def descendants(self, row: int) -> list[int]:
        """Rows that come after a row in its session, directly or not."""
        found = dict.fromkeys(self.followers(row))
        ahead = list(found)
        while ahead:
            new = [follower for follower in self.followers(ahead.pop()) if follower not in found]
            found.update(dict.fromkeys(new))
            ahead += new
        return list(found)

    def arrive(self, row: int) -> None:
        """Notes that a request arrives."""
        self.left -= 1

    def answered(self, row: int, at_s: float) -> list[tuple[int, float]]:
        """Notes the end of an answer; returns the rows that have all answers now, and when each arrives, seconds."""
        due = []
        for follower in self.followers(row):
            self._awaited[follower] -= 1
            self._since_s[follower] = max(self._since_s[follower], at_s)
            if self._awaited[follower] == 0 and not self._never[follower]:
                assert self._delay_s is not None
                due.append((follower, float(self._since_s[follower] + self._delay_s[follower])))
        return due

    def unanswered(self, row: int) -> None:
        """Notes that a request gets no complete answer: what comes after it never arrives."""
        for follower in self.descendants(row):
            self.left -= not self._never[follower]
            self._never[follower] = True
