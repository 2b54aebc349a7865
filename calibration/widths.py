"""Kernels at a tensor-parallel width that no kernel table covers, from the widths that one does.

Kernels were measured at widths 1, 2, 4 and 8, as far as the model fits there. An engine of three GPUs, or a pipeline
stage of one GPU of a model that one GPU does not hold, lies between or below them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from math import log2

import numpy as np

from serving_gym.calibration.coefficients import LatencyCoefficients
from serving_gym.calibration.kernels import RELATIVES, find_kernels, load_kernels


def kernels_near(model: str, gpu: str, tp: int) -> LatencyCoefficients | None:
    """Coefficients at a width without kernels of its own, or None where nothing near was measured.

    Between two measured widths every coefficient is interpolated in the logarithm of the width; below the smallest one
    it is the smallest one's (source: ours). Above the largest one there is nothing near: the next GPU is in another
    machine.

    Args:
        model: Name of the model.
        gpu: Name of the GPU.
        tp: GPUs of the engine, or of one of its pipeline stages.
    """
    at = {
        width: coefficients
        for (name, width, split), coefficients in load_kernels(RELATIVES.get(gpu, gpu)).items()
        if name == model.removesuffix("-kv8") and split == "tp"
    }
    above = min((width for width in at if width >= tp), default=None)
    if above is None:
        return None
    below = max((width for width in at if width <= tp), default=above)
    share = log2(tp / below) / log2(above / below) if above > below else 0.0
    return _between(at[below], at[above], share)


def kernels_of_ranks(
    model: str, gpu: str, width: int, attention_ranks: int, expert_parallel: bool
) -> LatencyCoefficients | None:
    """Coefficients of data-parallel attention, or None where no table covers it.

    Attention, dense matrices and their collectives are those of an engine as wide as one rank, experts and their
    exchange those of all GPUs.

    Args:
        model: Name of the model.
        gpu: Name of the GPU.
        width: GPUs of the engine.
        attention_ranks: Ranks, of equally many GPUs.
        expert_parallel: Whether experts are spread over the GPUs rather than split.
    """
    whole = find_kernels(model, gpu, width, expert_parallel)
    rank = find_kernels(model, gpu, width // attention_ranks, of_rank=True)
    if whole is None or rank is None:
        return None
    return replace(
        whole,
        sequence_s=rank.sequence_s,
        token_s=rank.token_s,
        dense_bandwidth_ratio=rank.dense_bandwidth_ratio,
        dense_flops_ratio=rank.dense_flops_ratio,
        roofline_sharpness=rank.roofline_sharpness,
        kv_bandwidth_ratio=rank.kv_bandwidth_ratio,
        attention_flops_ratio=rank.attention_flops_ratio,
        all_reduce_s=rank.all_reduce_s,
        all_reduce_bandwidth=rank.all_reduce_bandwidth,
    )


def _between(first: LatencyCoefficients, second: LatencyCoefficients, share: float) -> LatencyCoefficients:
    """Every coefficient `share` of the way from one to the other."""
    mixed = {
        field.name: (1.0 - share) * getattr(first, field.name) + share * getattr(second, field.name)
        for field in fields(LatencyCoefficients)
        if field.name != "matrix_ratios"
    }
    ones = (1.0,) * max(len(first.matrix_ratios), len(second.matrix_ratios))
    ends = [np.array(kernels.matrix_ratios or ones) for kernels in (first, second)]
    ratios = tuple(float(ratio) for ratio in (1.0 - share) * ends[0] + share * ends[1])
    return replace(first, **mixed, matrix_ratios=ratios)
