"""What becomes of a decision that fails or comes too late, and how long a policy that starts servers may think."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NoDecision:
    """What stands for an action where a policy has failed: the request goes by power of two choices.

    Attributes:
        reason: How it failed.
    """

    reason: str


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
