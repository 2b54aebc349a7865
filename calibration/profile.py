"""Calibrated profiles: the coefficients of one model on one GPU, and where they come from."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from serving_gym.calibration.coefficients import LatencyCoefficients, roofline_coefficients
from serving_gym.calibration.engines import Engine, Frontend, dump_engine, parse_engine
from serving_gym.calibration.hardware import GPUS, GpuSpec, get_gpu
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.lookup import nearest, read_yaml
from serving_gym.calibration.memory import check_fits
from serving_gym.calibration.models import ModelSpec, get_model

KINDS = ("measured", "fitted", "transferred", "roofline")


@dataclass(frozen=True)
class Profile:
    """Latency coefficients of one model on one GPU.

    Args:
        model: The model.
        gpu: The GPU.
        source: `fitted` (from measured tables), `measured` (on a live engine), `kernels and engine` (measured kernels
            with the host terms of an engine, never held against a run) or `roofline` (assumed efficiencies, nothing
            measured).
        coefficients: Coefficients by tensor-parallel width; a roofline profile has one entry for any width, keyed 0.
        provenance: Data files, rows, repositories, licences and method, in words and counts.
        held_out: Error on deployments left out of the fit, by target: n, median and 90th percentile (ratios).
        engine: Name of the engine the coefficients belong to; empty for the profiles that environments use.
        overheads: What that engine adds to the kernels at a width without coefficients of its own.
        frontends: What happens to a request outside the engine's iterations, by width.
        transitions: Measured times of an engine's start, stop and so on, s (`runners.measuring.transitions`).
        async_scheduling: Whether the engine put an iteration together while the one before it ran; an engine that is
            simulated under this profile then does (`envs.interface.cluster.ClusterSpec`), and the front end
            has no part of it.
        attention_ranks: Ranks of data-parallel attention of the engine (`LatencyModel`); a profile file has one.
    """

    model: ModelSpec
    gpu: GpuSpec
    source: str
    coefficients: Mapping[int, LatencyCoefficients] = field(hash=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, hash=False)
    held_out: Mapping[str, Any] = field(default_factory=dict, hash=False)
    engine: str = ""
    overheads: Engine | None = None
    frontends: Mapping[int, Frontend] = field(default_factory=dict, hash=False)
    transitions: Mapping[str, float] = field(default_factory=dict, hash=False)
    async_scheduling: bool = False
    attention_ranks: int = 1

    @property
    def kind(self) -> str:
        """How its iteration times are known.

        `measured` on a live engine; `fitted` to published runs or tables of this deployment; `transferred`, the
        overheads or the front end of other models, GPUs or widths around measured kernels; or `roofline`.
        """
        return self.source if self.source in KINDS else "transferred"

    @property
    def widths(self) -> tuple[int, ...]:
        """Tensor-parallel widths with coefficients of their own; empty for a roofline profile."""
        return tuple(sorted(width for width in self.coefficients if width))

    def coefficients_at(self, tp: int) -> LatencyCoefficients:
        """Coefficients at one width.

        Raises:
            ValueError: The profile was not fitted at this width.
        """
        if 0 in self.coefficients:
            return self.coefficients[0]
        if tp not in self.coefficients:
            raise ValueError(
                f"profile {self.model.name} on {self.gpu.name} has no coefficients for tp={tp}; "
                f"allowed: {', '.join(map(str, self.widths))}"
            )
        return self.coefficients[tp]

    def latency_model(
        self,
        tp: int,
        execution: str = "tp",
        base_width: int | None = None,
        shift_threshold_tokens: int | None = None,
    ) -> LatencyModel:
        """Latency model of an engine of `tp` GPUs.

        Args:
            tp: GPUs of the engine.
            execution: `tp`, or `shift` for Shift Parallelism.
            base_width: With `shift`, GPUs that hold whole weights; None: the smallest fitted width (1 for roofline).
            shift_threshold_tokens: With `shift`, tokens above which sequence parallelism runs; None: the faster one.

        Raises:
            ValueError: The width is not in the profile, does not hold the model, or the mode is unknown.
        """
        check_fits(self.model, self.gpu, tp)
        coefficients = self.coefficients_at(tp)
        if execution != "shift":
            return LatencyModel(
                self.model, self.gpu, tp, coefficients, execution, attention_ranks=self.attention_ranks
            )
        width = base_width or min(self.widths, default=1)
        base = LatencyModel(self.model, self.gpu, width, self.coefficients_at(width))
        return LatencyModel(self.model, self.gpu, tp, coefficients, execution, base, shift_threshold_tokens)


def load_profile(model: str, gpu: str) -> Profile:
    """Loads a committed profile, or makes a roofline one and warns when there is none.

    Args:
        model: Name of the model.
        gpu: Name of the GPU.

    Raises:
        ValueError: The model or the GPU is unknown.
    """
    model_spec, gpu_spec = get_model(model), get_gpu(gpu)
    file = (
        resources.files("serving_gym.calibration")
        / "profiles"
        / profile_file_name(model_spec.name, gpu_spec.name)
    )
    if file.is_file():
        return parse_profile(file.read_text(encoding="utf-8"))
    warnings.warn(
        f"no fitted profile for {model} on {gpu}: latency is a roofline estimate (source='roofline')",
        stacklevel=2,
    )
    return Profile(model_spec, gpu_spec, "roofline", {0: roofline_coefficients(gpu_spec)})


def named_profile(name: str) -> Profile:
    """A profile of one's own by its file, or a committed one by its name.

    Raises:
        ValueError: No committed profile is called so, or the file holds no profile.
        OSError: A file in a folder cannot be read.
    """
    folder = resources.files("serving_gym.calibration") / "profiles"
    committed = folder / f"{name.removesuffix('.yaml')}.yaml"
    if Path(name).is_file() or Path(name).name != name:
        return read_profile(name)
    if not committed.is_file():
        known = [entry.name.removesuffix(".yaml") for entry in folder.iterdir()]
        raise ValueError(f"profile={name!r} is neither a file nor a committed profile{nearest(name, known)}")
    return parse_profile(committed.read_text(encoding="utf-8"))


def profile_file_name(model: str, gpu: str, engine: str = "") -> str:
    """File of the profile of one model on one GPU, under one engine where that is named."""
    return f"{model}_{gpu.lower()}{'_' if engine else ''}{engine}.yaml"


def read_profile(file: str | Path) -> Profile:
    """Reads a profile file of one's own.

    Raises:
        ValueError: the file is no profile.
        OSError: the file cannot be read.
    """
    text = Path(file).read_text(encoding="utf-8")
    try:
        return parse_profile(text)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(file)!r} is not a profile: {type(error).__name__} {error}") from error


def parse_profile(text: str) -> Profile:
    """Reads a profile from YAML.

    Model and GPU stand there by name, or in full where no list of this package has them (measured profiles).
    """
    raw = read_yaml(text)
    coefficients = {
        int(width): coefficients_from_yaml(values) for width, values in raw["coefficients"].items()
    }
    return Profile(
        get_model(raw["model"]) if isinstance(raw["model"], str) else ModelSpec(**raw["model"]),
        get_gpu(raw["gpu"]) if isinstance(raw["gpu"], str) else GpuSpec(**raw["gpu"]),
        raw["source"],
        coefficients,
        raw["provenance"],
        raw["held_out"],
        raw.get("engine", ""),
        parse_engine(raw["overheads"]) if "overheads" in raw else None,
        {int(width): Frontend(**values) for width, values in raw.get("frontends", {}).items()},
        raw.get("transitions", {}),
        raw.get("async_scheduling", False),
    )


def coefficients_from_yaml(values: Mapping[str, Any]) -> LatencyCoefficients:
    """Coefficients from plain values."""
    ratios = tuple(values.get("matrix_ratios", ()))
    return LatencyCoefficients(**{**values, "matrix_ratios": ratios})


def coefficients_to_yaml(coefficients: LatencyCoefficients) -> dict[str, Any]:
    """Coefficients as plain values of five significant digits; what is absent is left out."""
    plain = asdict(coefficients)
    ratios = [float(f"{ratio:.4g}") for ratio in plain.pop("matrix_ratios")]
    values: dict[str, Any] = {name: float(f"{value:.5g}") for name, value in plain.items()}
    for name in ("prefill_s", "eager_layer_s"):
        if not values[name]:
            del values[name]
    return values | ({"matrix_ratios": ratios} if ratios else {})


def _listed(model: ModelSpec) -> bool:
    """Whether a model is known by its name alone."""
    try:
        return get_model(model.name) == model
    except ValueError:
        return False


def _front_end(front_end: Frontend) -> dict[str, float]:
    """A front end as plain values; the part per request is left out where there is none."""
    return {name: value for name, value in asdict(front_end).items() if value or name != "request_s"}


def dump_profile(profile: Profile) -> str:
    """Writes a profile as YAML, coefficients to five significant digits."""
    raw: dict[str, Any] = {
        "model": profile.model.name if _listed(profile.model) else asdict(profile.model),
        "gpu": profile.gpu.name if profile.gpu in GPUS.values() else asdict(profile.gpu),
        **({"engine": profile.engine} if profile.engine else {}),
        "source": profile.source,
        "provenance": dict(profile.provenance),
        "held_out": dict(profile.held_out),
        "coefficients": {
            width: coefficients_to_yaml(values) for width, values in sorted(profile.coefficients.items())
        },
    }
    if profile.async_scheduling:
        raw["async_scheduling"] = True
    if profile.frontends:
        raw["frontends"] = {width: _front_end(known) for width, known in sorted(profile.frontends.items())}
    if profile.transitions:
        raw["transitions"] = dict(profile.transitions)
    if profile.overheads:
        raw["overheads"] = dump_engine(profile.overheads)
    return yaml.safe_dump(raw, sort_keys=False, width=110)
