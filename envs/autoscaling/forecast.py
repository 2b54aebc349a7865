"""The environment's own forecast of traffic: the week before, corrected by the last hour. Cheap, and no one's best."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

DAY_S, WEEK_S, HOUR_S = 86_400.0, 7 * 86_400.0, 3600.0
LEAST_RATIO, MOST_RATIO = 0.25, 4.0  # of this hour to the same hour a season ago; source: ours
WINDOW_S = 900.0  # over which rates are averaged before they are compared; source: ours


def season_s(known_s: float) -> float:
    """Period by which traffic is taken to repeat: a week or a day, as far as the past reaches; else 0."""
    if known_s >= WEEK_S + HOUR_S:
        return WEEK_S
    return DAY_S if known_s >= DAY_S + HOUR_S else 0.0


def forecast_tps(tokens: FloatArray, bin_s: float, ahead_s: float) -> FloatArray:
    """(P,), tokens/s that are expected in the time ahead: the largest mean of a window in it.

    Args:
        tokens: (P, T) tokens in bins that end now; T reaches back as far as is known.
        bin_s: Length of a bin.
        ahead_s: How far to look ahead.
    """
    hour, ahead = (max(1, round(seconds / bin_s)) for seconds in (HOUR_S, ahead_s))
    last_hour = tokens[:, -hour:].mean(axis=1) / bin_s
    period = round(season_s(tokens.shape[1] * bin_s) / bin_s)
    if not period:
        return np.asarray(last_hour, np.float64)
    start = tokens.shape[1] - period
    then = tokens[:, max(0, start - hour) : start].mean(axis=1) / bin_s
    ratio = np.clip(last_hour / np.maximum(then, 1e-9), LEAST_RATIO, MOST_RATIO)
    coming = tokens[:, start : start + ahead]
    each = max(1, min(round(WINDOW_S / bin_s), coming.shape[1]))
    whole = coming.shape[1] // each * each
    windows = coming[:, :whole].reshape(len(coming), -1, each).mean(axis=2) / bin_s
    return np.asarray(windows.max(axis=1) * ratio, np.float64)


def usual_tps(tokens: FloatArray, bin_s: float) -> FloatArray:
    """(P,), tokens/s that are usual at this time: the mean of the hours before and after it, a season ago.

    Without a season to look back to, the mean of the last hour.

    Args:
        tokens: (P, T) tokens in bins that end now.
        bin_s: Length of a bin.
    """
    hour = max(1, round(HOUR_S / bin_s))
    period = round(season_s(tokens.shape[1] * bin_s) / bin_s)
    now = tokens.shape[1] - period if period else tokens.shape[1]
    return np.asarray(tokens[:, max(0, now - hour) : now + hour].mean(axis=1) / bin_s, np.float64)


def unrest(tokens: FloatArray, bin_s: float) -> FloatArray:
    """(P,), root mean square of the log ratio of the load of one window to that of the next, in the last day.

    Args:
        tokens: (P, T) tokens in bins that end now.
        bin_s: Length of a bin.
    """
    each = max(1, round(WINDOW_S / bin_s))
    whole = min(tokens.shape[1], round(DAY_S / bin_s)) // each * each
    if whole < 2 * each:
        return np.zeros(len(tokens))
    windows = tokens[:, tokens.shape[1] - whole :].reshape(len(tokens), -1, each).sum(axis=2)
    steps = np.diff(np.log1p(windows), axis=1)
    return np.asarray(np.sqrt(np.square(steps).mean(axis=1)), np.float64)
