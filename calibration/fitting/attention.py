"""Attention and collectives: latency and per-unit costs from measured kernels, on relative error."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from serving_gym.calibration.fitting.data import table
from serving_gym.calibration.fitting.matrices import MAX_DECODE_BATCH, MS
from serving_gym.calibration.models import ModelSpec

Array = NDArray[np.float64]

MAX_PREFILL_TOKENS = 16384
MIN_LENGTH = 64  # shorter contexts cost their launch alone
DTYPE_COLUMN = {"aic_allreduce_vllm": "allreduce_dtype", "aic_nccl": "nccl_dtype"}
SIXTEEN_BIT = ("bfloat16", "half")
SMALLEST_MESSAGE, LARGEST_MESSAGE = 2**11, 2**28  # bytes: one small token to a full prefill batch


def relative_nnls(columns: Array, times: Array) -> Array:
    """Non-negative least squares on relative error: coefficients of `columns` (rows, terms) for `times` (rows,)."""
    solution, _ = nnls(columns / times[:, None], np.ones(len(times)))
    return np.asarray(solution)


def attention_rows(
    name: str, model: ModelSpec, system: str, tp: int, window: int
) -> tuple[Array, Array, Array, tuple[float, float]]:
    """Attention measurements of one layer at the engine's heads per GPU.

    Where the table lacks the model's number of heads, the nearest measured number stands in; compressed keys and
    values count by their size.

    Returns:
        (batch, length, time in s, wanted over measured query and key/value heads); arrays are (rows,).
    """
    frame = table(name)
    frame = frame[
        (frame.system == system)
        & (frame.head_dim == model.head_dim)
        & (frame.kv_cache_dtype == "bfloat16")
        & (frame.window_size.fillna(0) == window)
    ]
    heads = nearest_value(frame.num_heads, model.num_heads / tp)
    frame = frame[frame.num_heads == heads]
    wanted = max(model.num_kv_heads / tp, 1.0)
    measured = nearest_value(frame.num_key_value_heads, wanted)
    frame = frame[frame.num_key_value_heads == measured]
    if model.latent_kv:
        wanted = model.latent_kv / (2.0 * model.head_dim)
    times = frame.groupby(["batch_size", "isl", "step"]).latency_ms.min().reset_index()
    length = times["isl"] + times["step"]
    return (
        times["batch_size"].to_numpy(float),
        length.to_numpy(float),
        times["latency_ms"].to_numpy(float) * MS,
        (model.num_heads / tp / heads, wanted / measured),
    )


def nearest_value(column: "pd.Series[float]", wanted: float) -> float:
    """The value of a column that is nearest to what is wanted."""
    return float(min(column.unique(), key=lambda value: abs(value - wanted)))


def fit_decode_attention(model: ModelSpec, system: str, tp: int) -> tuple[Array, Array, int]:
    """One layer of decode attention as constant + per sequence + per token of context.

    Returns:
        (full-attention terms, sliding-window terms, rows); terms are (constant, per sequence, per context token), s.
    """
    rows, fits = 0, []
    for window in (0, model.sliding_window):
        batch, length, times, scale = attention_rows("aic_attention_decode", model, system, tp, window)
        keep = (batch <= MAX_DECODE_BATCH) & (length >= max(window, MIN_LENGTH))
        context = np.zeros_like(length) if window else batch * length
        terms = relative_nnls(np.stack([np.ones_like(batch), batch, context], axis=-1)[keep], times[keep])
        fits.append(terms * np.array([1.0, 1.0, scale[1]]))
        rows += int(keep.sum())
    return fits[0], fits[1], rows


def fit_prefill_attention(model: ModelSpec, system: str, tp: int) -> tuple[Array, Array, int]:
    """One layer of prefill attention as constant + per token + per query-key pair.

    Returns:
        (full-attention terms, sliding-window terms, rows); terms are (constant, per token, per pair), s.
    """
    rows, fits = 0, []
    for window in (0, model.sliding_window):
        batch, length, times, scale = attention_rows("aic_attention_prefill", model, system, tp, window)
        keep = (batch * length <= MAX_PREFILL_TOKENS) & (length >= MIN_LENGTH)
        pairs = np.zeros_like(length) if window else batch * length * (length + 1) / 2
        terms = relative_nnls(
            np.stack([np.ones_like(batch), batch * length, pairs], axis=-1)[keep], times[keep]
        )
        fits.append(terms * np.array([1.0, 1.0, scale[0]]))
        rows += int(keep.sum())
    return fits[0], fits[1], rows


def fit_collective(name: str, system: str, gpus: int, column: str, value: str) -> tuple[float, float, int]:
    """One collective on 16-bit elements as latency + message bytes / bandwidth.

    Args:
        name: Kernel table.
        system: GPU system of the table.
        gpus: GPUs that take part.
        column: Column that tells collectives of the table apart.
        value: The one wanted.

    Returns:
        (latency in s, bandwidth in bytes/s, rows).
    """
    frame = table(name)
    frame = frame[(frame.system == system) & (frame.num_gpus == gpus) & (frame[column] == value)]
    frame = frame[frame[DTYPE_COLUMN[name]].isin(SIXTEEN_BIT)]
    message = frame.message_size.to_numpy(float) * 2.0
    inside = (message >= SMALLEST_MESSAGE) & (message <= LARGEST_MESSAGE)
    times = frame.latency_ms.to_numpy(float)[inside] * MS
    columns = np.stack([np.ones_like(times), message[inside]], axis=-1)
    latency, per_byte = relative_nnls(columns, times)
    return float(latency), float(1.0 / per_byte), len(times)
