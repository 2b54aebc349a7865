"""One thing to measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """One thing to measure: `run` makes one measurement and returns its value."""

    name: str
    unit: str
    params: Mapping[str, Any]
    run: Callable[[], float]


def time_of(action: Callable[[], object], times: int) -> Callable[[], float]:
    """Microseconds of an action, the mean of `times`."""

    def run() -> float:
        begun = time.process_time()
        for _ in range(times):
            action()
        return 1e6 * (time.process_time() - begun) / times

    return run
