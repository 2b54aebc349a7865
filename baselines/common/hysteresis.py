"""A ladder of settings climbed and descended with hysteresis and a dwell time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class HysteresisLadder:
    """Which rung a load signal calls for.

    Attributes:
        up: Load above which rung i is left for rung i + 1; one entry fewer than there are rungs.
        down: Load below which rung i + 1 is left for rung i; each below `up`.
        dwell_s: Least time between two changes, seconds.
    """

    up: tuple[float, ...]
    down: tuple[float, ...]
    dwell_s: float
    rung: int = 0
    changed_s: float = -math.inf

    def __post_init__(self) -> None:
        if len(self.up) != len(self.down) or any(
            low >= high for low, high in zip(self.down, self.up, strict=True)
        ):
            raise ValueError(
                f"every threshold down must lie below its threshold up, got {self.down} and {self.up}"
            )

    def step(self, now_s: float, rising: float, falling: float | None = None) -> int:
        """Moves as far as the load calls for.

        Args:
            now_s: Time of the decision, seconds.
            rising: Load that is compared with `up`.
            falling: Load that is compared with `down`; None: the same.
        """
        if now_s - self.changed_s < self.dwell_s:
            return self.rung
        falling = rising if falling is None else falling
        rung = self.rung
        while rung < len(self.up) and rising > self.up[rung]:
            rung += 1
        if rung == self.rung:
            while rung > 0 and falling < self.down[rung - 1]:
                rung -= 1
        if rung != self.rung:
            self.rung, self.changed_s = rung, now_s
        return rung
