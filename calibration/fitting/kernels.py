"""Coefficients of one engine from kernel measurements, before anything end to end is looked at.

The tables (aiconfigurator, kernels timed inside vLLM containers) are composed into layers of the model at the engine's
width, and the physical form is fitted to the composition: log error, bounded coefficients.
"""

from dataclasses import dataclass, replace

import numpy as np

from serving_gym.calibration.coefficients import RATIO_TOKENS, LatencyCoefficients
from serving_gym.calibration.fitting.attention import (
    fit_collective,
    fit_decode_attention,
    fit_prefill_attention,
)
from serving_gym.calibration.fitting.data import KERNEL_SYSTEM
from serving_gym.calibration.fitting.matrices import (
    TOKENS,
    Array,
    dense_matrices_s,
    expert_matrices_s,
    fit_roofline,
    gemm_surface,
)
from serving_gym.calibration.hardware import GpuSpec
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.models import ModelSpec

UNUSED_BANDWIDTH = 1e12  # bytes/s; a single GPU has no collectives
NO_EXPERTS = (np.empty(0), np.empty(0), 0)
RATIO_RANGE = (0.5, 2.0)  # beyond it a table and the form do not speak of the same thing
MIN_EXPERT_POINTS = 8  # batch sizes that an expert table must cover to be fitted


@dataclass(frozen=True)
class KernelFit:
    """Kernel-level coefficients of one engine and how well the physical form follows the tables.

    Args:
        coefficients: Coefficients with no host overhead yet.
        rows: Table rows behind them.
        form_error: Median absolute error of the physical form against the composed matrix times, ratio.
    """

    coefficients: LatencyCoefficients
    rows: int
    form_error: float


def fit_kernels(
    model: ModelSpec, gpu: GpuSpec, tp: int, expert_parallel: bool = False, ratios: bool = False
) -> KernelFit:
    """Kernel-level coefficients of a model on `tp` GPUs.

    Attention constants of every layer go to `layer_s`. Attention terms that grow with the sequence or the token go to
    `sequence_s` and `token_s`. Experts that no table covers keep the efficiencies assumed for them. With `ratios` the
    coefficients also hold what the tables say beyond the physical form.
    """
    system = KERNEL_SYSTEM[gpu.name]
    memory, peak = tp * gpu.bandwidth, tp * gpu.peak_flops(model.compute_dtype)
    dense_times = dense_matrices_s(model, system, tp)
    dense, error = fit_roofline(
        dense_times,
        np.full_like(TOKENS, model.dense_read_bytes / memory),
        TOKENS * model.dense_flops_per_token / peak,
        (1e-4, 0.8, 0.6, 3.0),
        1.0,
    )
    rows = gemm_surface(system, model.compute_dtype)[1]
    experts = np.array([0.0, 0.6, 0.35, 2.0])
    tokens, expert_times, expert_rows = (
        expert_matrices_s(model, system, tp, expert_parallel) if model.num_experts else NO_EXPERTS
    )
    if len(tokens) >= MIN_EXPERT_POINTS:
        experts, expert_error = fit_roofline(
            expert_times,
            np.array([model.expert_read_bytes(n) for n in tokens]) / memory,
            tokens * model.expert_flops_per_token / peak,
            (1e-3, 0.6, 0.35, 1.0),
            0.6,
        )
        rows, error = rows + expert_rows, max(error, expert_error)
    fit = assemble(model, gpu, tp, dense, experts, rows, error)
    if not ratios:
        return fit
    constant = dense[0] + experts[0]
    measured = dense_times + (
        np.interp(TOKENS, tokens, expert_times) if len(tokens) >= MIN_EXPERT_POINTS else 0
    )
    form = LatencyModel(model, gpu, tp, fit.coefficients).matrices_s(TOKENS)
    if model.num_experts and len(tokens) < MIN_EXPERT_POINTS:
        return fit
    table = np.clip((measured - constant) / form, *RATIO_RANGE)
    return replace(
        fit,
        coefficients=replace(
            fit.coefficients, matrix_ratios=tuple(np.interp(np.log2(RATIO_TOKENS), np.log2(TOKENS), table))
        ),
    )


def assemble(
    model: ModelSpec, gpu: GpuSpec, tp: int, dense: Array, experts: Array, rows: int, error: float
) -> KernelFit:
    """Joins matrix, attention and collective fits into coefficients."""
    system = KERNEL_SYSTEM[gpu.name]
    full, window, decode_rows = fit_decode_attention(model, system, tp)
    prefill, prefill_window, prefill_rows = fit_prefill_attention(model, system, tp)
    layers = np.array([model.full_attention_layers, model.window_layers])
    kv_s, pair_s = layers[0] * full[2], layers[0] * prefill[2]
    reduce_s, reduce_bandwidth, exchange_s, exchange_bandwidth = 0.0, UNUSED_BANDWIDTH, 0.0, UNUSED_BANDWIDTH
    if tp > 1:
        reduce_s, reduce_bandwidth, reduce_rows = fit_collective(
            "aic_allreduce_vllm", system, tp, "backend", "vllm_graph"
        )
        exchange_s, exchange_bandwidth, exchange_rows = fit_collective(
            "aic_nccl", system, tp, "collective", "alltoall"
        )
        rows += reduce_rows + exchange_rows
    attention_constant = float(layers @ np.array([full[0], window[0]]))
    coefficients = LatencyCoefficients(
        fixed_s=0.0,
        layer_s=(attention_constant + float(dense[0] + experts[0])) / model.num_layers,
        sequence_s=float(layers @ np.array([full[1], window[1]])),
        token_s=float(layers @ np.array([prefill[1], prefill_window[1]])),
        dense_bandwidth_ratio=float(dense[1]),
        dense_flops_ratio=float(dense[2]),
        roofline_sharpness=float(dense[3]),
        expert_bandwidth_ratio=float(experts[1]),
        expert_flops_ratio=float(experts[2]),
        expert_sharpness=float(experts[3]),
        kv_bandwidth_ratio=float(model.kv_bytes_per_token / (tp * gpu.bandwidth) / kv_s),
        attention_flops_ratio=float(model.attention_flops_per_pair / (tp * gpu.peak_flops("bf16")) / pair_s),
        all_reduce_s=reduce_s,
        all_reduce_bandwidth=reduce_bandwidth,
        all_to_all_s=exchange_s,
        all_to_all_bandwidth=exchange_bandwidth,
    )
    return KernelFit(coefficients, rows + decode_rows + prefill_rows, error)
