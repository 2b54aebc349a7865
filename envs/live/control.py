"""How long a policy that starts and stops servers may think, and what becomes of a decision that comes too late."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from serving_gym.envs.routing.live.desk import NoDecision


@dataclass(frozen=True, slots=True)
class ControlOverride:
    """A decision that was taken out of the policy's hands: all was left as it was.

    Attributes:
        at_s: When, seconds since the episode began.
        reason: Why.
    """

    at_s: float
    reason: str


class ControlDeadline:
    """Watches one policy.

    Args:
        within_s: Longest time a policy may take, s.
    """

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self.shown()

    def shown(self) -> None:
        """The policy sees the state now."""
        self._shown_s = time.monotonic()

    def overrides(self, action: Any, now_s: float) -> list[ControlOverride]:
        """Why a decision does not count, if it does not.

        Args:
            action: What was decided.
            now_s: Seconds since the episode began.
        """
        if isinstance(action, NoDecision):
            return [ControlOverride(now_s, action.reason)]
        late_s = time.monotonic() - self._shown_s
        if late_s > self.within_s:
            return [ControlOverride(now_s, f"no decision within {self.within_s:g} s: {late_s:.2f} s")]
        return []
