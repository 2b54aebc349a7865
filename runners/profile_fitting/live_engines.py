"""Overheads of an engine that only one model was measured on, live: fitted to it, and carried to all other models.

The overheads of the measured model are those that bring its kernels to its measured iteration times. Those of other
models are the ones they have on the version before, moved by the step that the measured model took between the two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from serving_gym.calibration.deployments import Deployment, kernels_or_roofline, load_engine_profile
from serving_gym.calibration.engines import Carried, Engine, dump_engine, parse_engine
from serving_gym.calibration.fitting.bayes import Array, Prior
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.profile import Profile
from serving_gym.runners.profile_fitting.hierarchy import SCALE_NAMES, priors_of, to_engine, to_values

ENGINE, BEFORE, MODEL = "vllm-0.24", "vllm-0.15", "llama-3.1-8b"
GPUS = ("H100", "H200")
TP = 1
# The iterations that measured traffic is made of: sequences, context of each, chunk of a prompt; tokens.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (250, 1000, 2000, 4000)
CHUNKS = (32, 64, 128, 256, 320, 512, 1024, 2048, 4096, 8192)
BESIDE = (0, 8, 32, 64)
SPREAD = 0.03  # standard deviation of the log error of a measured profile's iterations (its held-out error)
PRIOR_SHARE = 0.5  # of the priors' widths: one model at one width cannot tell all overheads apart
FRONT_END = ("frontend_s", "frontend_token_s")  # measured, not fitted
FACTORS = ("attention_ratio", "kv_ratio", *SCALE_NAMES)  # what a step multiplies; to all else it adds


def iterations(model: LatencyModel) -> Array:
    """(n,) times of a grid of iterations, s: those that only decode, and those with a prompt."""
    decode = [model.iteration_s(batch, batch * context) for batch in BATCHES for context in CONTEXTS]
    mixed = [
        model.iteration_s(batch, batch * context, [(0, chunk)])
        for batch in BESIDE
        for context in CONTEXTS[: len(CONTEXTS) if batch else 1]
        for chunk in CHUNKS
    ]
    return np.array(decode + mixed)


def nearest_to(priors: Sequence[Prior], residuals: Callable[[dict[str, float]], Array]) -> dict[str, float]:
    """Most probable parameters of a smooth model: exact derivatives and bounds, unlike `fitting.bayes.fit_map`."""
    mean = np.array([prior.mean for prior in priors])
    width = np.array([prior.width for prior in priors])
    low = (np.array([prior.low for prior in priors]) - mean) / width

    def named(z: Array) -> dict[str, float]:
        values = mean + width * z
        return {prior.name: float(value) for prior, value in zip(priors, values, strict=True)}

    start = np.maximum(low + 1e-3, 0.0)
    found = least_squares(lambda z: np.concatenate([residuals(named(z)), z]), start, bounds=(low, np.inf))
    return {name: round(value, 12) for name, value in named(found.x).items()}


def fit_to_profiles(profiles: Sequence[Profile], start: Engine) -> Engine:
    """Overheads that bring kernels to the iteration times of measured profiles of one GPU each.

    Args:
        profiles: Measured profiles.
        start: Overheads of the same model on the version before, the prior.
    """
    means = to_values(start)
    priors = [
        replace(prior, mean=means[prior.name], width=PRIOR_SHARE * prior.width)
        for prior in priors_of(BEFORE, MODEL)
        if prior.name not in FRONT_END
    ]
    measured = np.log(np.concatenate([iterations(profile.latency_model(TP)) for profile in profiles]))

    def residuals(values: dict[str, float]) -> Array:
        overheads = overheads_of(values)
        models = [profile_around(profile, overheads) for profile in profiles]
        return (np.log(np.concatenate([iterations(model) for model in models])) - measured) / SPREAD

    front_ends = [profile.frontends[TP] for profile in profiles]
    return replace(
        overheads_of(nearest_to(priors, residuals)),
        frontend_s=float(np.mean([known.fixed_s for known in front_ends])),
        frontend_token_s=float(np.mean([known.token_s for known in front_ends])),
        frontend_request_s=float(np.mean([known.request_s for known in front_ends])),
        async_scheduling=all(profile.async_scheduling for profile in profiles),
    )


def overheads_of(values: Mapping[str, float]) -> Engine:
    """Overheads inside iterations from fitted values, without a front end."""
    return to_engine({**dict.fromkeys(FRONT_END, 0.0), **values}, ENGINE)


def profile_around(profile: Profile, overheads: Engine) -> LatencyModel:
    """Kernels of a measured profile's model and GPU with overheads around them."""
    kernels, _ = kernels_or_roofline(Deployment(profile.model.name, profile.gpu.name, TP, ENGINE))
    return LatencyModel(profile.model, profile.gpu, TP, overheads.applied(kernels, TP))


def carried(family: Engine, before: Engine, after: Engine) -> Engine:
    """Overheads of a family on a version where one model of all was measured.

    Args:
        family: Those of the family on another version.
        before: Those of the measured model there.
        after: Those of the measured model on this version; what lies outside of iterations is host work, and its own.
    """
    base, first, second = to_values(family), to_values(before), to_values(after)
    low = {prior.name: prior.low for prior in priors_of(BEFORE, MODEL)}
    moved: dict[str, Any] = {
        name: max(
            base[name] * second[name] / first[name]
            if name in FACTORS
            else base[name] + second[name] - first[name],
            low[name],
        )
        for name in low
    }
    scale = tuple(moved.pop(name) for name in SCALE_NAMES)
    return replace(after, **{**moved, "matrix_scale": scale, **{name: second[name] for name in FRONT_END}})


def live_engine(known: Mapping[str, Engine]) -> tuple[dict[str, Engine], dict[str, Carried]]:
    """Overheads of the engine measured live by their keys, and which of them were carried.

    Args:
        known: Overheads of the other engines by `ENGINE|dense`, `|moe` and `|MODEL`.
    """
    profiles = [load_engine_profile(MODEL, gpu, ENGINE) for gpu in GPUS]
    before = known[f"{BEFORE}|{MODEL}"]
    after = fit_to_profiles([profile for profile in profiles if profile is not None], before)
    families = {f"{ENGINE}|{family}": f"{BEFORE}|{family}" for family in ("dense", "moe")}
    overheads = {key: carried(known[origin], before, after) for key, origin in families.items()}
    origins = {key: Carried(origin, MODEL, GPUS) for key, origin in families.items()}
    return {f"{ENGINE}|{MODEL}": after, **overheads}, origins


def write_live_engine(folder: Path) -> Path:
    """Adds the engine measured live to the others in `engines.yaml`."""
    path = folder / "engines.yaml"
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    overheads, origins = live_engine({key: parse_engine(values) for key, values in raw["overheads"].items()})
    added = {key: dump_engine(engine) for key, engine in overheads.items()}
    raw["overheads"] = dict(sorted({**raw["overheads"], **added}.items()))
    raw["carried"] = {
        key: {"family": origin.family, "model": origin.model, "gpus": list(origin.gpus)}
        for key, origin in sorted(origins.items())
    }
    path.write_text(yaml.safe_dump(raw, sort_keys=False, width=110), encoding="utf-8")
    return path
