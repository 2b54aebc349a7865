"""Kernels at a tensor-parallel width that no kernel table covers, from the widths that one does.

Kernels were measured at widths 1, 2, 4 and 8, as far as the model fits there. An engine of three GPUs, or a pipeline
stage of one GPU of a model that one GPU does not hold, lies between or below them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from math import log2

import numpy as np

from serving_gym.calibration.coefficients import LatencyCoefficients
from serving_gym.calibration.kernels import RELATIVES, load_kernels


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
