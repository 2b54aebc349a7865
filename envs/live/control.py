"""Handling of failed and late decisions, and the time limit of policies that start servers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NoDecision:
    """Replaces an action when a policy has failed: the request is sent by power of two choices.

    Attributes:
        reason: Why it failed.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class ControlOverride:
    """A decision of the policy that was overridden: nothing was changed.

    Attributes:
        at_s: Time since the episode began, seconds.
        reason: Why.
    """

    at_s: float
    reason: str


class ControlDeadline:
    """Checks that a policy decides in time.

    Args:
        within_s: Longest decision time, s.
    """

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self.shown()

    def shown(self) -> None:
        """Starts the timer: the policy observes the state now."""
        self._shown_s = time.monotonic()

    def overrides(self, action: Any, now_s: float) -> list[ControlOverride]:
        """Why a decision is overridden, if it is.

        Args:
            action: The decision.
            now_s: Seconds since the episode began.
        """
        if isinstance(action, NoDecision):
            return [ControlOverride(now_s, action.reason)]
        late_s = time.monotonic() - self._shown_s
        if late_s > self.within_s:
            return [ControlOverride(now_s, f"no decision within {self.within_s:g} s: {late_s:.2f} s")]
        return []
