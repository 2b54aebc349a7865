"""Matrix products of a model, composed from measured kernels, and the roofline fitted to them."""

from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator
from scipy.optimize import least_squares

from serving_gym.calibration.fitting.data import table
from serving_gym.calibration.models import ModelSpec

Array = NDArray[np.float64]

TOKENS: Array = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192], dtype=np.float64)
MAX_DECODE_BATCH = 256
MAX_MEASURED, LARGEST_HEAD = 16384, 65536  # matrix sides on the full grid, and one more for the output head
# Expert load in production is skewed; the tables hold two power laws, and these stand between them.
EXPERT_LOADS = ("power_law_1.01", "power_law_1.2")
MS = 1e-3
GEMM_DTYPE = {"bf16": "bfloat16", "fp4": "nvfp4"}
# Tables of experts by bytes per weight, the best match first.
EXPERT_DTYPES = {
    2.0: ("bfloat16",),
    1.0: ("fp8_block", "fp8"),
    4.5 / 8: ("nvfp4",),
    4.25 / 8: ("w4a16_mxfp4", "int4_wo"),
}


@cache
def gemm_surface(system: str, dtype: str) -> tuple[RegularGridInterpolator, int]:
    """Log-log interpolation of GEMM time over (m, n, k), and the number of rows behind it."""
    frame = table("aic_gemm")
    frame = frame[frame.system == system]
    wanted = GEMM_DTYPE.get(dtype, dtype)
    frame = frame[frame.gemm_dtype == (wanted if (frame.gemm_dtype == wanted).any() else GEMM_DTYPE["bf16"])]
    times = frame.groupby(["m", "n", "k"]).latency_ms.min()
    inner = sorted(k for k in frame.k.unique() if k <= MAX_MEASURED)
    outer = sorted(n for n in frame.n.unique() if n <= MAX_MEASURED or n == LARGEST_HEAD)
    grid = pd.MultiIndex.from_product([TOKENS.astype(int), outer, inner])
    cube = times.reindex(grid).ffill().to_numpy(float).reshape(len(TOKENS), len(outer), len(inner))
    axes = tuple(np.log(np.array(axis, dtype=np.float64)) for axis in (TOKENS, outer, inner))
    surface = RegularGridInterpolator(axes, np.log(cube), bounds_error=False, fill_value=None)
    return surface, int(np.isfinite(cube).sum())


def gemm_s(system: str, dtype: str, tokens: Array, n: float, k: float) -> Array:
    """Time of (tokens x k) times (k x n), s, shape of `tokens`."""
    surface, _ = gemm_surface(system, dtype)
    points = np.stack(
        [np.log(tokens), np.full_like(tokens, np.log(n)), np.full_like(tokens, np.log(k))], axis=-1
    )
    return np.asarray(np.exp(surface(points)) * MS)


def dense_matrices_s(model: ModelSpec, system: str, tp: int) -> Array:
    """All dense matrices of an iteration at each of `TOKENS`, s; the head runs for the sequences only."""
    dtype, hidden = model.compute_dtype, float(model.hidden)
    heads, kv_heads = model.num_heads / tp, max(model.num_kv_heads / tp, 1.0)
    layer = gemm_s(system, dtype, TOKENS, (heads + 2 * kv_heads) * model.head_dim, hidden)
    layer = layer + gemm_s(system, dtype, TOKENS, hidden, heads * model.head_dim)
    if model.intermediate:
        inner = (model.mlp_matrices - 1) * model.intermediate
        layer = layer + gemm_s(system, dtype, TOKENS, inner / tp, hidden)
        layer = layer + gemm_s(system, dtype, TOKENS, hidden, model.intermediate / tp)
    if model.num_experts:
        layer = layer + gemm_s(system, "bf16", TOKENS, float(model.num_experts), hidden)
    head = gemm_s(system, "bf16", np.minimum(TOKENS, MAX_DECODE_BATCH), model.vocab / tp, hidden)
    return np.asarray(model.num_layers * layer + head)


def expert_rows(model: ModelSpec, system: str, width: int, expert_parallel: bool) -> pd.DataFrame:
    """Measurements of one expert layer, split over `width` GPUs within (TP) or between (EP) experts."""
    frame = table("aic_moe")
    frame = frame[
        (frame.system == system)
        & (frame.hidden_size == model.hidden)
        & (frame.inter_size == model.expert_intermediate)
        & (frame.num_experts == model.num_experts)
        & (frame.topk == model.experts_per_token)
        & (frame.moe_tp_size == (1 if expert_parallel else width))
        & (frame.moe_ep_size == (width if expert_parallel else 1))
        & frame.distribution.isin(EXPERT_LOADS)
    ]
    measured = [name for name in EXPERT_DTYPES[model.expert_dtype_bytes] if (frame.moe_dtype == name).any()]
    return frame[frame.moe_dtype == measured[0]] if measured else frame.iloc[:0]


def expert_matrices_s(
    model: ModelSpec, system: str, width: int, expert_parallel: bool = False
) -> tuple[Array, Array, int]:
    """All expert layers of an iteration at the measured ones of `TOKENS`: (tokens, s, table rows used)."""
    frame = expert_rows(model, system, width, expert_parallel)
    mean = frame.groupby("num_tokens").latency_ms.mean()
    mean = mean[mean.index.isin(TOKENS.astype(int))]
    return (
        mean.index.to_numpy(float),
        np.asarray(model.num_layers * mean.to_numpy(float) * MS),
        len(frame),
    )


def fit_roofline(
    times: Array, memory_s: Array, arithmetic_s: Array, start: tuple[float, ...], low: float
) -> tuple[Array, float]:
    """Fits `constant + (memory^p + arithmetic^p)^(1/p)` to times on log error.

    Args:
        times: (tokens,), composed times, s.
        memory_s: (tokens,), time at full bandwidth, s.
        arithmetic_s: (tokens,), time at peak arithmetic, s.
        start: Constant (s), bandwidth ratio, arithmetic ratio, sharpness to start from.
        low: Smallest sharpness allowed; 1 is a sum, more overlaps memory with arithmetic, less adds a hump between.

    Returns:
        (fitted parameters in the order of `start`, median absolute error as a ratio).
    """

    def predicted(x: Array) -> Array:
        first, second = memory_s / x[1], arithmetic_s / x[2]
        return np.asarray(x[0] + (first ** x[3] + second ** x[3]) ** (1.0 / x[3]))

    bounds = ([0.0, 0.05, 0.05, low], [5e-3, 1.0, 1.0, 8.0])
    fit = least_squares(
        lambda x: np.log(predicted(x) / times), start, bounds=bounds, x_scale=[1e-4, 0.1, 0.1, 1.0]
    )
    return fit.x, float(np.median(np.abs(predicted(fit.x) / times - 1.0)))
