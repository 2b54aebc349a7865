"""What goes wrong in an episode, drawn from its seed."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.interface.fleet import Crash, FleetFault, SlowNode
from serving_gym.envs.routing.config import FaultRates

_STREAM = 0xFA18


def draw_faults(rates: FaultRates, num_places: int, duration_s: float, seed: int) -> tuple[FleetFault, ...]:
    """Crashes and slow-downs of an episode, each a Poisson process over all places, whatever the policy does."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, _STREAM]))
    crash_s, crash_at = _times(rng, rates.crashes_per_hour, num_places, duration_s)
    slow_s, slow_at = _times(rng, rates.slow_downs_per_hour, num_places, duration_s)
    crashes = [Crash(float(time), int(place)) for time, place in zip(crash_s, crash_at, strict=True)]
    slow = [
        SlowNode(float(time), int(place), rates.slow_factor, rates.slow_s)
        for time, place in zip(slow_s, slow_at, strict=True)
    ]
    return (*crashes, *slow)


def _times(
    rng: np.random.Generator, per_hour: float, num_places: int, duration_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Times, sorted, and places of one kind of fault."""
    count = rng.poisson(per_hour * num_places * duration_s / 3600.0)
    return np.sort(rng.uniform(0.0, duration_s, count)), rng.integers(num_places, size=count)
