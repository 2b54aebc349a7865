"""Noise of the rates of a week: one realisation of what a profile's series shows about its curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from serving_gym.envs.workload.generators import autoregress
from serving_gym.envs.workload.schema import FloatArray
from serving_gym.envs.workload.seeding import child
from serving_gym.envs.workload.streams import MINUTE_S
from serving_gym.envs.workload.weekly_profile import WeeklyProfile

COMMON_S = 7200.0  # noise that lasts longer is common to a model's regions; source: ours


@dataclass(frozen=True, eq=False)
class Walk:
    """Noise by minute, before and after the begin of a workload; a longer one holds the shorter one.

    Attributes:
        seed: Of its random streams.
        past: Minutes before.
        ahead: Minutes after.
    """

    seed: np.random.SeedSequence
    past: int
    ahead: int

    def white(self, *names: str) -> FloatArray:
        """(past + ahead,) standard normal, each minute anew."""
        before, after = (self._normal(*names, side) for side in ("past", "ahead"))
        return np.concatenate([before(self.past)[::-1], after(self.ahead)])

    def lasting(self, time_scale_s: float, *names: str) -> FloatArray:
        """(past + ahead,) first-order autoregression of unit variance.

        Both sides start from one state: a stationary one is the same process backwards.

        Args:
            time_scale_s: Over which its correlation falls to 1/e.
            names: Which.
        """
        decay = float(np.exp(-MINUTE_S / time_scale_s))
        start = float(self._normal(*names, "begin")(1)[0])
        before, after = (
            self._path(self._normal(*names, side)(count), decay, start)
            for side, count in (("past", self.past), ("ahead", self.ahead))
        )
        return np.concatenate([before[::-1], after])

    def _path(self, shocks: FloatArray, decay: float, start: float) -> FloatArray:
        shocks = shocks * np.sqrt(1.0 - decay**2)
        if len(shocks):
            shocks[0] += decay * start
        return autoregress(shocks, decay)

    def _normal(self, *names: str) -> Any:
        return np.random.default_rng(child(self.seed, *names)).standard_normal


def factors(profile: WeeklyProfile, walk: Walk, regions: int, scale: float) -> FloatArray:
    """(regions, minutes) factors of mean 1 on the rates of one model.

    Args:
        profile: With its noise.
        walk: Draws it.
        regions: How many.
        scale: Factor on its standard deviation.
    """
    log = np.zeros((regions, walk.past + walk.ahead))
    if scale == 0:
        return np.ones_like(log)
    for r in range(regions):
        log[r] += profile.minute_noise * walk.white("minute", str(r))
    for number, component in enumerate(profile.memory):
        deviation = np.sqrt(component.variance)
        if component.time_scale_s > COMMON_S:
            log += deviation * walk.lasting(component.time_scale_s, str(number))
            continue
        for r in range(regions):
            log[r] += deviation * walk.lasting(component.time_scale_s, str(number), str(r))
    return np.asarray(np.exp(scale * log - scale**2 * profile.noise_variance / 2), np.float64)
