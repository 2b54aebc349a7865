"""Section 6.3: how far forecasts miss the largest window of an hour, which instances are planned for.

Each hour of the day is forecast from what came before it alone, as the policy does: fitted to the week before the day,
in windows of 15 minutes, and told what has come since. The oracle knows the expected traffic, so that its error is the
noise of arrivals and lengths within a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.forecasting.registry import make_forecaster
from serving_gym.baselines.sageserve.autoscaling_config import ORACLE
from serving_gym.envs.interface.metrics import FloatArray
from serving_gym.envs.workload.streams import RequestStream
from serving_gym.envs.workload.tiers import NIW, TIERS
from serving_gym.runners.reproduction.claims import Claim, shown
from serving_gym.runners.reproduction.sageserve.scaling_study import ScalingStudy, Setting
from serving_gym.runners.reproduction.sageserve.study import make_claim

FORECASTERS = ("last_value", "arima", "arima_daily", ORACLE)
WINDOW_S, WINDOWS = 900.0, 4  # of an hour
_PAST = round(7 * 86_400 / WINDOW_S)
_PROMPTS = 1  # column of prompt tokens in `RequestStream.past` and `.expected`
_LOW = 0.05  # share by which a forecast is too low to count as one that is


@dataclass(frozen=True, eq=False)
class Peaks:
    """The largest windows of hours, prompt tokens of interactive requests.

    Attributes:
        forecast: (H,).
        came: (H,).
    """

    forecast: FloatArray
    came: FloatArray

    @property
    def error(self) -> float:
        """Mean absolute error, share of what came."""
        return float(np.mean(np.abs(self.forecast / self.came - 1.0)))

    @property
    def too_low(self) -> float:
        """Share of the hours that are under-forecast by more than 5 %."""
        return float(np.mean(self.forecast < (1.0 - _LOW) * self.came))


def windows_of(stream: RequestStream) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Prompt tokens of interactive requests by window of whole hours: of the week before, that came, expected.

    Args:
        stream: The episode's requests.
    """
    rows = [number for number, name in enumerate(TIERS) if name != NIW]
    count = int(stream.duration_s // 3600) * WINDOWS
    before = stream.past(WINDOW_S, _PAST)[rows].sum(axis=(0, 1, 2))[:, _PROMPTS]
    expected = stream.expected(WINDOW_S, count)[rows].sum(axis=(0, 1, 2))[:, _PROMPTS]
    came = np.zeros(count)
    for number in range(stream.num_pieces):
        piece = stream.piece(number)
        own = np.isin(piece.class_id, rows)
        at = (piece.arrival_s[own] // WINDOW_S).astype(np.int64)
        came += np.bincount(at, piece.input_tokens[own], count + WINDOWS)[:count]
    return before, came, expected


def peaks_of(name: str, before: FloatArray, came: FloatArray, expected: FloatArray) -> Peaks:
    """What a forecaster says of each hour.

    Args:
        name: Of `baselines.common.forecasting.registry`, or "oracle".
        before: (T,), windows before the first hour.
        came: (4 H,), windows of the hours.
        expected: (4 H,), of which the oracle knows.
    """
    hours = came.reshape(-1, WINDOWS)
    if name == ORACLE:
        return Peaks(expected.reshape(-1, WINDOWS).max(axis=1), hours.max(axis=1))
    forecaster = make_forecaster(name, WINDOW_S)
    forecaster.fit(before)
    known = np.concatenate([before, came])
    found = [
        forecaster.forecast(known[: len(before) + WINDOWS * hour], WINDOWS).max()
        for hour in range(len(hours))
    ]
    return Peaks(np.array(found), hours.max(axis=1))


def peak_forecasts(study: ScalingStudy, setting: Setting) -> list[Claim]:
    """Errors of every forecaster at the peaks of a setting's hours, all seeds together; none of less than an hour."""
    seeds = study.seeds[:1] if setting.one_seed else study.seeds
    windows = [windows_of(study.stream(setting, seed, _PAST * WINDOW_S)) for seed in seeds]
    if not len(windows[0][1]):
        return []  # less than an hour is served
    found = []
    for name in FORECASTERS:
        each = [peaks_of(name, *of_seed) for of_seed in windows]
        peaks = Peaks(
            np.concatenate([one.forecast for one in each]), np.concatenate([one.came for one in each])
        )
        for what, value in (
            ("mean error of the largest window of an hour", peaks.error),
            ("hours whose largest window is under-forecast by more than 5 %", peaks.too_low),
        ):
            found.append(
                make_claim(
                    "6.3", f"Llama-2, peak day, forecaster {name}: {what}", None, value, "share",
                    shown("the paper gives no error of its forecasts"),
                )
            )  # fmt: skip
    return found
