"""How the load of a service runs through the week: curves fitted to public series, with the noise about them.

`python -m envs.workload.weekly_fit` fits them; the files of `weekly/` hold coefficients, where they come from, and how
far they are off on days that were not fitted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.workload.schema import FloatArray

WEEKLY_DIR = Path(__file__).parent / "weekly"
DAYS = 7
DAY_H = 24.0
WEEK_H = 168.0
_BLEND_H = 1.5  # before and after midnight, in which one day's curve goes over into the next one's
_GRID_PER_H = 6  # points at which the mean over a week is taken


@dataclass(frozen=True)
class NoiseComponent:
    """Part of the log rate that wanders about the curve: a first-order autoregression.

    Attributes:
        time_scale_s: time over which its correlation falls to 1/e, seconds.
        variance: of the log rate.
    """

    time_scale_s: float
    variance: float


@dataclass(frozen=True)
class WeeklyProfile:
    """A service's rate over its mean, by the hour of the week.

    Each kind of day has a curve, the exponential of a Fourier series of a day; around midnight one goes over into the
    next.

    Attributes:
        name: what the profile is called.
        days: (7,) kind of each day, Monday first.
        curves: by kind of day (1 + 2 K,): level, then cosine and sine of each harmonic of a day; of the log rate.
        minute_noise: standard deviation of the log rate that each minute draws anew.
        memory: what of the noise lasts.
        provenance: source, licence, what was read, what was fitted.
        fit: share of the variance of the log rate that the curves explain, and errors on days left out.
    """

    name: str
    days: tuple[str, ...]
    curves: Mapping[str, tuple[float, ...]]
    minute_noise: float
    memory: tuple[NoiseComponent, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.days) != DAYS or set(self.days) != set(self.curves):
            raise ValueError(f"profile {self.name!r}: days must name the curve of each of seven days")

    @property
    def noise_variance(self) -> float:
        """Variance of the log rate about the curves."""
        return self.minute_noise**2 + sum(component.variance for component in self.memory)

    def shape(self, hour: FloatArray) -> FloatArray:
        """Rate over its mean of a week, without noise.

        Args:
            hour: hours since Monday, 0:00, on the profile's clock; any number.
        """
        return np.exp(self._log_rate(hour)) / _week_mean(self)

    def _log_rate(self, hour: FloatArray) -> FloatArray:
        day = np.floor(hour / DAY_H).astype(np.int64)
        within = hour - DAY_H * day
        early, late = within < _BLEND_H, within > DAY_H - _BLEND_H
        neighbour = day + np.where(late, 1, np.where(early, -1, 0))
        to_midnight = np.where(late, DAY_H - within, within)
        other = np.where(early | late, 0.5 * (1 - to_midnight / _BLEND_H), 0.0)
        return (1 - other) * self._of_day(day, hour) + other * self._of_day(neighbour, hour)

    def _of_day(self, day: np.ndarray[Any, np.dtype[np.int64]], hour: FloatArray) -> FloatArray:
        """Log rate of the curves of given days at these hours."""
        kinds = list(self.curves)
        by_kind = np.stack([curve_of(np.asarray(self.curves[kind]), hour) for kind in kinds])
        row = np.array([kinds.index(kind) for kind in self.days])[day % DAYS]
        return np.asarray(np.take_along_axis(by_kind, row[None], axis=0)[0], np.float64)

    def save(self, folder: Path) -> None:
        """Writes the profile as JSON."""
        text = json.dumps(asdict(self), indent=1)
        (folder / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def curve_of(coefficients: FloatArray, hour: FloatArray) -> FloatArray:
    """A Fourier series of a day.

    Args:
        coefficients: (1 + 2 K,), level, then cosine and sine of each harmonic.
        hour: (n,).
    """
    return np.asarray(daily_harmonics(hour, (len(coefficients) - 1) // 2) @ coefficients, np.float64)


def daily_harmonics(hour: FloatArray, harmonics: int) -> FloatArray:
    """(n, 1 + 2 K): one, then cosine and sine of each harmonic of a day."""
    angle = 2 * np.pi * hour[:, None] / DAY_H * np.arange(1, harmonics + 1)
    waves = np.stack([np.cos(angle), np.sin(angle)], axis=2).reshape(len(hour), -1)
    return np.hstack([np.ones((len(hour), 1)), waves])


def _week_mean(profile: WeeklyProfile) -> float:
    """Mean over a week of the exponential of the curves."""
    grid = np.arange(round(WEEK_H * _GRID_PER_H)) / _GRID_PER_H
    return float(np.exp(profile._log_rate(grid)).mean())


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that ship with the package."""
    return tuple(sorted(path.stem for path in WEEKLY_DIR.glob("*.json")))


@lru_cache(maxsize=32)
def load_profile(name: str) -> WeeklyProfile:
    """A profile that ships with the package.

    Raises:
        ValueError: there is none of that name.
    """
    check_choice("profile", name, profile_names())
    values = json.loads((WEEKLY_DIR / f"{name}.json").read_text(encoding="utf-8"))
    values["days"] = tuple(values["days"])
    values["curves"] = {kind: tuple(curve) for kind, curve in values["curves"].items()}
    values["memory"] = tuple(NoiseComponent(**component) for component in values["memory"])
    return WeeklyProfile(**values)
