"""The profile of Llama-2-7B on one A40: its dense layers were measured, its attention and its engine were not.

Vidur's tables hold every matrix and element-wise kernel of a layer on an A40. Attention takes the efficiencies of the
A100, the nearest relation that was measured (one architecture, other memory), and the host terms are those of vLLM 0.6
on other GPUs. The scale of the matrices that belongs to that engine is relative to other kernel tables and is left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from serving_gym.calibration.coefficients import RATIO_TOKENS, LatencyCoefficients
from serving_gym.calibration.deployments import ENGINE
from serving_gym.calibration.engines import Engine, get_engine
from serving_gym.calibration.fitting.data import data_path
from serving_gym.calibration.fitting.kernels import RATIO_RANGE, fit_kernels
from serving_gym.calibration.fitting.matrices import MS, Array, fit_roofline
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.latency import smooth_max
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import Profile, dump_profile, profile_file_name

FILE = "profiles/vidur_dense_layers.parquet"
DEVICE, TABLE_MODEL = "a40", "meta-llama/Llama-2-7b-hf"
MODEL, GPU, RELATIVE, ENGINE_NAME = "llama-2-7b", "A40", "A100-80GB", "vllm-0.6"
MATRICES = ("attn_pre_proj_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_down_proj_ms")
ELEMENTWISE = ("input_layernorm_ms", "attn_rope_ms", "post_attention_layernorm_ms", "mlp_act_ms", "add_ms")
SMALL_TOKENS = 64  # up to here the element-wise kernels take their launch alone
START = (1e-3, 0.8, 0.7, 3.0)  # constant (s), bandwidth, arithmetic, sharpness that a fit starts from


@dataclass(frozen=True)
class LayerTimes:
    """One pass through the layers at several numbers of tokens.

    Attributes:
        tokens: (n,).
        matrices_s: (n,), all matrices of all layers, s.
        elementwise_s: (n,), all other kernels but attention, s.
        rows: Table rows behind them.
    """

    tokens: Array
    matrices_s: Array
    elementwise_s: Array
    rows: int

    def at(self, chosen: Array) -> LayerTimes:
        """Some of the numbers of tokens, by a mask or by indices."""
        return replace(
            self,
            tokens=self.tokens[chosen],
            matrices_s=self.matrices_s[chosen],
            elementwise_s=self.elementwise_s[chosen],
        )


def layer_times() -> LayerTimes:
    """Measured times of the model's layers on one A40.

    Raises:
        ValueError: The reference data are not at hand.
    """
    frame = pd.read_parquet(data_path(FILE))
    frame = frame[(frame.device == DEVICE) & (frame.model == TABLE_MODEL) & (frame.tensor_parallel == 1)]
    times = frame.groupby("num_tokens")[[*MATRICES, *ELEMENTWISE]].median()
    layers = get_model(MODEL).num_layers
    return LayerTimes(
        times.index.to_numpy(float),
        times[list(MATRICES)].sum(axis=1).to_numpy(float) * layers * MS,
        times[list(ELEMENTWISE)].sum(axis=1).to_numpy(float) * layers * MS,
        len(frame),
    )


def fit_layers(times: LayerTimes, relative: LatencyCoefficients) -> LatencyCoefficients:
    """Coefficients without an engine; the output head, not in the tables, is taken to be as efficient as the layers.

    Args:
        times: Of the layers.
        relative: Coefficients of the relation that lends its attention.
    """
    model = get_model(MODEL)
    dense, _ = fit_roofline(times.matrices_s, *bounds_s(times.tokens), START, 1.0)
    small = times.tokens <= SMALL_TOKENS
    launch_s = float(np.median(times.elementwise_s[small]))
    per_token_s = float(np.median((times.elementwise_s[~small] - launch_s) / times.tokens[~small]))
    smooth = replace(
        relative,
        layer_s=(float(dense[0]) + launch_s) / model.num_layers,
        token_s=relative.token_s + per_token_s,
        dense_bandwidth_ratio=float(dense[1]),
        dense_flops_ratio=float(dense[2]),
        roofline_sharpness=float(dense[3]),
        matrix_ratios=(),
    )
    table = np.clip((times.matrices_s - dense[0]) / matrices_s(smooth, times.tokens), *RATIO_RANGE)
    ratios = np.interp(np.log2(RATIO_TOKENS), np.log2(times.tokens), table)
    return replace(smooth, matrix_ratios=tuple(float(value) for value in ratios))


def bounds_s(tokens: Array) -> tuple[Array, Array]:
    """Least time of the layers' matrices by the data sheet: weights read, and multiplied; (tokens,) each, s."""
    model, gpu = get_model(MODEL), get_gpu(GPU)
    read_s = model.dense_params * model.weight_dtype_bytes / gpu.bandwidth
    return np.full_like(tokens, read_s), tokens * model.dense_flops_per_token / gpu.peak_flops(
        model.compute_dtype
    )


def matrices_s(coefficients: LatencyCoefficients, tokens: Array) -> Array:
    """The layers' matrices, without the output head, by the coefficients' smooth form, s."""
    read_s, arithmetic_s = bounds_s(tokens)
    c = coefficients
    return smooth_max(
        read_s / c.dense_bandwidth_ratio, arithmetic_s / c.dense_flops_ratio, c.roofline_sharpness
    )


def layers_s(coefficients: LatencyCoefficients, tokens: Array) -> Array:
    """What the coefficients say of a pass through the layers without attention, prefill alone, s."""
    c = coefficients
    ratio = np.interp(np.log2(tokens), np.log2(RATIO_TOKENS), c.matrix_ratios)
    return matrices_s(c, tokens) * ratio + get_model(MODEL).num_layers * c.layer_s + tokens * c.token_s


def held_out(times: LayerTimes, relative: LatencyCoefficients) -> dict[str, Any]:
    """Error on every other number of tokens when the fit sees the rest."""
    odd = np.arange(len(times.tokens)) % 2 == 1
    seen, unseen = times.at(~odd), times.at(odd)
    fitted = fit_layers(seen, replace(relative, token_s=0.0))
    error = np.abs(layers_s(fitted, unseen.tokens) / (unseen.matrices_s + unseen.elementwise_s) - 1.0)
    figures = {"ape_median": np.median(error), "ape_mean": error.mean(), "ape_p90": np.quantile(error, 0.9)}
    return {
        "method": "every other number of tokens left out of the fit; nothing was ever measured end to end",
        "dense_layers": {"n": int(odd.sum()), **{name: round(float(v), 4) for name, v in figures.items()}},
    }


def dense_layer_profile() -> Profile:
    """The profile.

    Raises:
        ValueError: The reference data are not at hand.
    """
    model, gpu, times = get_model(MODEL), get_gpu(GPU), layer_times()
    attention = fit_kernels(model, get_gpu(RELATIVE), 1)
    host = replace(get_engine(ENGINE_NAME, MODEL), matrix_scale=Engine().matrix_scale, layer_s=0.0)
    return Profile(
        model=model,
        gpu=gpu,
        source=ENGINE,
        coefficients={1: host.applied(fit_layers(times, attention.coefficients), 1)},
        provenance={
            "method": "dense layers fitted to their measured kernels; attention as efficient as on the A100, host "
            "terms of vLLM 0.6 on other GPUs (calibration/fitting/dense_layers.py)",
            "kernels": {
                "files": [FILE],
                "repository": "microsoft/vidur",
                "licence": "MIT",
                "rows": {1: times.rows},
            },
            "attention": {"gpu": RELATIVE, "repository": "ai-dynamo/aiconfigurator", "licence": "Apache-2.0"},
            "engine": ENGINE_NAME,
            "overheads": {
                name: float(f"{value:.5g}")
                for name, value in asdict(host).items()
                if name.endswith("_s") and value
            },
            "notes": ["no attention kernel and no engine was ever measured on an A40"],
        },
        held_out=held_out(times, attention.coefficients),
    )


def write_dense_layer_profile(folder: Path) -> Path:
    """Fits the profile and writes it under `folder`; returns the file."""
    profile = dense_layer_profile()
    path = folder / "profiles" / profile_file_name(profile.model.name, profile.gpu.name)
    path.write_text(dump_profile(profile), encoding="utf-8")
    return path
