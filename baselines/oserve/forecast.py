"""Forecasts of how many requests of each type the next span brings (section 5.1, S2; section 6.3).

All forecasters have one interface: they are fitted to counts (T, J), and say from past counts what comes next.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

HISTORY = 50  # section 5.1: "a sequence length of 50"
TRAINING_SHARE = 0.9  # section 5.1: "90% of the data as the training set and 10% as the test set"


class Forecaster(Protocol):
    """Says what the next span brings."""

    history: int  # spans that a forecast looks back

    def fit(self, counts: FloatArray) -> None:
        """Learns from the past.

        Args:
            counts: (T, J), requests by span and type.
        """
        ...

    def predict(self, past: FloatArray) -> FloatArray:
        """(J,), requests of each type in the next span, not negative.

        Args:
            past: (at least 1, J), counts of the spans before it; only the last `history` are looked at, and where there
                are fewer, the first stands for those that are missing.
        """
        ...


class MovingAverage:
    """The mean of the last spans. Source of the window: ours, what the LSTM sees; the text does not give its own.

    Args:
        history: Spans.
    """

    def __init__(self, history: int = HISTORY) -> None:
        if history < 1:
            raise ValueError(f"history must be at least 1, got {history}")
        self.history = history

    def fit(self, counts: FloatArray) -> None:
        """Nothing is learned."""

    def predict(self, past: FloatArray) -> FloatArray:
        """(J,), the mean."""
        return np.asarray(np.asarray(past)[-self.history :].mean(axis=0), np.float64)


def windows(counts: ArrayLike, history: int) -> FloatArray:
    """(T - history, history, J), what precedes each span that has enough before it.

    Args:
        counts: (T, J).
        history: Spans of a window.

    Raises:
        ValueError: There are too few spans for a single window.
    """
    series = np.asarray(counts, np.float64)
    if series.ndim != 2 or len(series) <= history:
        raise ValueError(f"counts must be (more than {history} spans, types), got {series.shape}")
    view = np.lib.stride_tricks.sliding_window_view(series[:-1], history, axis=0)
    return np.ascontiguousarray(view.transpose(0, 2, 1))


def padded(past: ArrayLike, history: int) -> FloatArray:
    """(history, J), the last spans; the first one stands for those that are missing.

    Raises:
        ValueError: There is none.
    """
    series = np.asarray(past, np.float64)[-history:]
    if series.ndim != 2 or not len(series):
        raise ValueError(f"past must be (at least 1 span, types), got {series.shape}")
    return np.concatenate([np.repeat(series[:1], history - len(series), axis=0), series])


def forecasts(forecaster: Forecaster, counts: ArrayLike) -> FloatArray:
    """(T - history, J), forecasts of every span that has enough before it, each from what precedes it.

    Args:
        forecaster: Fitted.
        counts: (T, J).
    """
    return np.stack([forecaster.predict(window) for window in windows(counts, forecaster.history)])


def rrmse(predicted: ArrayLike, actual: ArrayLike) -> FloatArray:
    """(J,), relative root mean square error of each type: root mean square error over mean (reading: ours).

    Args:
        predicted: (T, J).
        actual: (T, J).
    """
    p, a = np.asarray(predicted, np.float64), np.asarray(actual, np.float64)
    error = np.sqrt(((p - a) ** 2).mean(axis=0))
    return np.asarray(
        np.divide(error, a.mean(axis=0), out=np.full(error.shape, np.inf), where=a.mean(axis=0) > 0)
    )


def split(counts: ArrayLike, history: int = HISTORY) -> tuple[FloatArray, FloatArray]:
    """Training and test part of a series; the test part begins with the history of its first span.

    Args:
        counts: (T, J).
        history: Spans of a window.
    """
    series = np.asarray(counts, np.float64)
    cut = int(len(series) * TRAINING_SHARE)
    return series[:cut], series[max(cut - history, 0) :]
