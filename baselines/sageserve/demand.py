"""What SageServe expects: token rates of the next hour by region and model (section 6.3).

ARIMA forecasts the prompt tokens/s of interactive requests by windows of the next hour. On top of every window comes
beta, a share of the non-interactive load of the past hour, "to handle transient bursts and to offer spare capacity for
NIW requests". The non-interactive load is the mean rate of its prompt tokens over that hour (the public code takes the
largest single entry instead).
"""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.common.forecasting.series import FloatArray
from serving_gym.envs.autoscaling.state import EndpointState
from serving_gym.envs.interface.scaling import Traffic

HOUR_S = 3600.0


def interactive_tps(endpoint: EndpointState, window_s: float) -> FloatArray:
    """(T,), prompt tokens/s of interactive requests by window of the past.

    Args:
        endpoint: The endpoint.
        window_s: Length of a window, seconds.
    """
    return endpoint.history.rebinned("input_tokens", window_s) / window_s


def coming_tps(coming: Traffic, window_s: float, windows: int) -> FloatArray:
    """(windows,), expected prompt tokens/s of interactive requests to come; 0 after the last arrival.

    Args:
        coming: Expected traffic from now on.
        window_s: Length of a window, seconds, a multiple of the bins'.
        windows: How many.
    """
    each = round(window_s / coming.bin_s)
    tokens = np.zeros(each * windows)
    known = coming.rows["input_tokens"][: len(tokens)]
    tokens[: len(known)] = known
    return tokens.reshape(windows, each).sum(axis=1) / window_s


def buffer_tps(endpoint: EndpointState, beta: float) -> float:
    """Tokens/s that are added for bursts and non-interactive requests.

    Args:
        endpoint: The endpoint.
        beta: Share of the non-interactive load of the past hour.
    """
    past = endpoint.history.last(HOUR_S)
    seconds = len(past) * endpoint.history.bin_s
    return beta * float(past["niw_input_tokens"].sum()) / seconds if seconds else 0.0


def present_tps(endpoint: EndpointState, over_s: float) -> float:
    """Prompt tokens/s of interactive requests that were observed lately.

    Args:
        endpoint: The endpoint.
        over_s: How far to look back, seconds.
    """
    traffic = endpoint.recent if len(endpoint.recent) else endpoint.history
    rows = traffic.last(over_s)
    return float(np.sum(rows["input_tokens"])) / (len(rows) * traffic.bin_s) if len(rows) else 0.0
