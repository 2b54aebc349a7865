"""Serving engines by version: what each adds to the kernels of a model, and does to a request outside of them."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.coefficients import RATIO_TOKENS, LatencyCoefficients
from serving_gym.calibration.lookup import nearest, read_yaml
from serving_gym.calibration.models import get_model

SCALE_TOKENS = (4, 16, 32, 64, 256, 2048, 8192)
# First release of each engine; a version belongs to the last one at or below it.
_RELEASES = {
    (0, 0): "vllm-0.6",
    (0, 7): "vllm-0.11",
    (0, 12): "vllm-0.12",
    (0, 14): "vllm-0.17",
    (0, 24): "vllm-0.24",
}
_UNDATED = "vllm-0.17"
NEWEST_ENGINE = "vllm-0.24"  # the newest that is calibrated: what clusters run unless told otherwise
FRONT_ENDS = ("included", "none")  # whether what lies between an engine and its clients counts
# Schedulers by name, and that of the engines which have another than the first.
SCHEDULERS = ("v1", "v0")
_OLDER_SCHEDULERS = {"vllm-0.6": "v0"}
# Engines of the published forms that do not state a version in a column.
BENCHMARKED_ENGINES = {"open_loop": "vllm-0.15", "replicas": "vllm-0.6", "steps": "splitwise"}


@dataclass(frozen=True)
class Frontend:
    """What happens to a request outside the iterations that compute it.

    Args:
        fixed_s: HTTP, tokenisation, the first chunk on its way back, s.
        token_s: The same per token of the prompt, s.
        pipeline_iterations: Iterations already decided when an arrival is seen, beside those that the simulated engine
            itself lets it wait for: the one in flight and, where it schedules asynchronously, the next.
        request_s: Per request that decodes in the same engine, whose tokens all pass through one process, s.
    """

    fixed_s: float = 0.0
    token_s: float = 0.0
    pipeline_iterations: float = 0.0
    request_s: float = 0.0


@dataclass(frozen=True)
class Engine:
    """What an engine adds to its kernels.

    Args:
        fixed_s: Host work per iteration that the GPU waits for, s.
        sequence_s: Host work per decoding sequence, s.
        token_s: Element-wise work per token of an iteration with prefill, s.
        all_reduce_s: Waiting at each all-reduce per doubling of the width, s.
        layer_s: Gaps between the kernels of one layer, s.
        prefill_s: Work of an iteration with prefill beyond a decode iteration's: no captured graph, set-up, s.
        eager_layer_s: Launches of one layer where no graph was captured, s.
        matrix_scale: Time of all matrices over that of the kernel tables (another version's, measured in short
            bursts at full clock), at each of `SCALE_TOKENS` tokens of an iteration.
        attention_ratio: Prefill attention arithmetic reached over that of the kernel tables.
        kv_ratio: Decode attention bandwidth reached over that of the kernel tables.
        frontend_s: Delay of a request outside the engine: HTTP, tokenisation, first chunk on its way back, s.
        frontend_token_s: The same per token of the prompt, s.
        pipeline_iterations: Iterations that begin before an arrival is seen, beside the one in flight: with
            asynchronous scheduling the next one is already decided.
        frontend_request_s: Delay per request that decodes in the same engine, s.
        async_scheduling: Whether an engine that is simulated puts an iteration together while the one before it runs
            (`Profile.async_scheduling`); `pipeline_iterations` then has no part of it.
    """

    fixed_s: float = 0.0
    sequence_s: float = 0.0
    token_s: float = 0.0
    all_reduce_s: float = 0.0
    layer_s: float = 0.0
    prefill_s: float = 0.0
    eager_layer_s: float = 0.0
    matrix_scale: tuple[float, ...] = (1.0,) * len(SCALE_TOKENS)
    attention_ratio: float = 1.0
    kv_ratio: float = 1.0
    frontend_s: float = 0.0
    frontend_token_s: float = 0.0
    pipeline_iterations: float = 0.0
    frontend_request_s: float = 0.0
    async_scheduling: bool = False

    @property
    def frontend(self) -> Frontend:
        """What happens to a request outside the iterations that compute it."""
        digits = (self.frontend_s, self.frontend_token_s, self.pipeline_iterations, self.frontend_request_s)
        return Frontend(*(float(f"{value:.4g}") for value in digits))

    def _scale(self) -> NDArray[np.float64]:
        """`matrix_scale` at each of `RATIO_TOKENS`."""
        return np.interp(np.log2(RATIO_TOKENS), np.log2(SCALE_TOKENS), self.matrix_scale)

    def applied(self, kernels: LatencyCoefficients, tp: int) -> LatencyCoefficients:
        """Coefficients of an engine of `tp` GPUs: kernels and overheads together."""
        return replace(
            kernels,
            fixed_s=kernels.fixed_s + self.fixed_s,
            layer_s=max(0.0, kernels.layer_s + self.layer_s),
            sequence_s=kernels.sequence_s + self.sequence_s,
            token_s=kernels.token_s + self.token_s,
            all_reduce_s=max(0.0, kernels.all_reduce_s + self.all_reduce_s * math.log2(tp)),
            prefill_s=kernels.prefill_s + self.prefill_s,
            eager_layer_s=kernels.eager_layer_s + self.eager_layer_s,
            matrix_ratios=tuple(float(x) for x in self._scale() * (kernels.matrix_ratios or 1.0)),
            attention_flops_ratio=min(1.0, kernels.attention_flops_ratio * self.attention_ratio),
            kv_bandwidth_ratio=min(1.0, kernels.kv_bandwidth_ratio * self.kv_ratio),
        )


def engine_of_version(version: str, measured_at: str = "") -> str:
    """The engine that a vLLM version belongs to.

    Args:
        version: As published; blank or a nightly build where it is unknown.
        measured_at: Date of the measurement, ISO; tells the age where the version does not.
    """
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found:
        release = (int(found[1]), int(found[2]))
        return _RELEASES[max(first for first in _RELEASES if first <= release)]
    return "vllm-0.11" if not version and measured_at < "2026" and measured_at else _UNDATED


def scheduler_of(engine: str) -> str:
    """Scheduler of an engine, one of `SCHEDULERS`: vLLM's V1, or the one before it."""
    return _OLDER_SCHEDULERS.get(engine, SCHEDULERS[0])


def parse_engine(values: Mapping[str, Any]) -> Engine:
    """Overheads from plain values."""
    scale = tuple(values.get("matrix_scale", Engine().matrix_scale))
    return Engine(**{**values, "matrix_scale": scale})


def dump_engine(engine: Engine) -> dict[str, Any]:
    """Overheads as plain values of four significant digits; what only live engines have is left out of others."""
    plain = asdict(engine)
    scale = [float(f"{value:.4g}") for value in plain.pop("matrix_scale")]
    asynchronous = {"async_scheduling": True} if plain.pop("async_scheduling") else {}
    if not plain["frontend_request_s"]:
        del plain["frontend_request_s"]
    digits = {name: float(f"{value:.4g}") for name, value in plain.items()}
    return digits | asynchronous | {"matrix_scale": scale}


def family_of(engine: str, model: str) -> str:
    """Models on one engine that share its overheads: dense ones, or mixtures of experts."""
    return f"{engine}|{'moe' if get_model(model).num_experts else 'dense'}"


@dataclass(frozen=True)
class Carried:
    """Where overheads come from that no run was fitted for.

    Args:
        family: The overheads of the version that stood for them, `ENGINE|dense` or `ENGINE|moe`.
        model: The model measured on both versions, whose step from one to the other was added.
        gpus: GPUs it was measured on.
    """

    family: str
    model: str
    gpus: tuple[str, ...]


@cache
def _engines_file() -> dict[str, Any]:
    """The committed file, as plain values."""
    text = (resources.files("serving_gym.calibration") / "engines.yaml").read_text(encoding="utf-8")
    return read_yaml(text)


@cache
def load_engines() -> dict[str, Engine]:
    """The committed overheads by `ENGINE|dense`, `ENGINE|moe` and, where a model was measured, `ENGINE|MODEL`."""
    return {name: parse_engine(values) for name, values in _engines_file()["overheads"].items()}


@cache
def load_carried() -> dict[str, Carried]:
    """Of the committed overheads those that were carried from one version to another, by the same keys."""
    carried = _engines_file().get("carried", {})
    return {
        name: Carried(values["family"], values["model"], tuple(values["gpus"]))
        for name, values in carried.items()
    }


def engine_key(name: str, model: str = "") -> str:
    """Key of the overheads of an engine, those of a model on it where it was measured (`load_engines`).

    Raises:
        ValueError: The engine is unknown.
    """
    engines = load_engines()
    known = {key.split("|")[0] for key in engines}
    if name not in known:
        raise ValueError(f"unknown engine {name!r}{nearest(name, known)}")
    candidates = (f"{name}|{model}", family_of(name, model), f"{name}|dense", f"{name}|moe")
    return next(key for key in candidates if key in engines)


def get_engine(name: str, model: str = "") -> Engine:
    """Overheads of an engine, those of a model on it where it was measured.

    Raises:
        ValueError: The engine is unknown.
    """
    return load_engines()[engine_key(name, model)]
