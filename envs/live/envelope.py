"""Safety limits for policies that reconfigure live servers: each check returns why it refuses, or nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from serving_gym.calibration.fields import check_not_negative, check_within

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class EnvelopeSettings:
    """Limits on reconfigurations of live servers. Source of figures: ours.

    Attributes:
        min_dwell_s: Shortest time between two reconfigurations of one slot, s.
        most_per_hour: Reconfigurations of all slots in an hour.
        most_usage_after: Most utilisation of the remaining servers after a scale-in: with N instances at utilisation u
            it is u N / (N - 1).
        min_ready: Fewest servers in service.
    """

    min_dwell_s: float = 60.0
    most_per_hour: int = 60
    most_usage_after: float = 0.8
    min_ready: int = 1

    def __post_init__(self) -> None:
        check_not_negative(self, "min_dwell_s", "most_per_hour", "min_ready", prefix="backend.envelope.")
        check_within(self, "(0, 1]", "most_usage_after", prefix="backend.envelope.")


class Envelope:
    """Records reconfigurations and enforces the limits.

    Args:
        settings: The limits.
        num_slots: Slots.
    """

    def __init__(self, settings: EnvelopeSettings, num_slots: int) -> None:
        self.settings = settings
        self._last_s: list[float | None] = [None] * num_slots
        self._recent_s: deque[float] = deque()

    def refuses(self, slot: int, now_s: float) -> str:
        """Why a slot may not be reconfigured now."""
        last_s = self._last_s[slot]
        if last_s is not None and now_s - last_s < self.settings.min_dwell_s:
            return f"slot {slot} was reconfigured {now_s - last_s:.0f} s ago; dwell is {self.settings.min_dwell_s:g} s"
        while self._recent_s and now_s - self._recent_s[0] >= SECONDS_PER_HOUR:
            self._recent_s.popleft()
        if len(self._recent_s) >= self.settings.most_per_hour:
            done = len(self._recent_s)
            return f"{done} reconfigurations in the last hour; the budget is {self.settings.most_per_hour}"
        return ""

    def refuses_removal(self, num_ready: int, usage: float) -> str:
        """Why no further server may be removed.

        Args:
            num_ready: Servers in service.
            usage: Their mean utilisation, ratio.
        """
        if num_ready - 1 < self.settings.min_ready:
            return f"{num_ready} servers are in service; at least {self.settings.min_ready} must stay"
        if num_ready > 1:
            after = usage * num_ready / (num_ready - 1)
            if after > self.settings.most_usage_after:
                return (
                    f"utilisation would rise from {usage:.2f} to {after:.2f}; at most "
                    f"{self.settings.most_usage_after:g} is allowed"
                )
        return ""

    def room(
        self, now_s: float, going: Sequence[int], coming: Sequence[int], usage: float
    ) -> tuple[int, int]:
        """Numbers of servers that may be removed and added now, each as if there were no other change.

        Args:
            now_s: Present time, seconds.
            going: Slots in service.
            coming: Slots that could be brought into service.
            usage: Mean utilisation of those in service, ratio.
        """
        able = [sum(not self.refuses(slot, now_s) for slot in slots) for slots in (going, coming)]
        left = max(self.settings.most_per_hour - len(self._recent_s), 0)
        fewer, ready, load = 0, len(going), usage * len(going)
        while fewer < ready and not self.refuses_removal(ready - fewer, load / (ready - fewer)):
            fewer += 1
        return min(able[0], left, fewer), min(able[1], left)

    def note(self, slot: int, now_s: float) -> None:
        """Records the reconfiguration of a slot."""
        self._last_s[slot] = now_s
        self._recent_s.append(now_s)
