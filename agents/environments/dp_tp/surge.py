"""When requests come in much faster than they are served: what a layout costs is then decided within seconds."""

from __future__ import annotations

from collections import deque

SHARE, MORE = 2.0, 8  # a surge: more than twice as many requests in the system, and eight
INTERVALS = 3  # as at the least of so many decisions before


class SurgeWatch:
    """Watches the requests in the system from one decision interval to the next.

    Args:
        in_system: How many there are; None: an episode is yet to begin.
    """

    def __init__(self, in_system: int | None = None) -> None:
        self._lately: deque[int] = deque([] if in_system is None else [in_system], maxlen=INTERVALS)

    def reset(self) -> None:
        """Begins an episode."""
        self._lately.clear()

    def rises(self, in_system: int) -> bool:
        """Whether there is a surge; once per interval.

        Args:
            in_system: Requests that have arrived and not gone.
        """
        rises = bool(self._lately) and in_system > SHARE * min(self._lately) + MORE
        self._lately.append(in_system)
        return rises
