"""Writes what was fitted to serving runs: engines, and one profile for each model, GPU and engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from serving_gym.calibration.deployments import FITTED
from serving_gym.calibration.engines import Engine, dump_engine
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.kernels import FOLDER, RELATIVES, kernel_file_name
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import Profile, dump_profile, profile_file_name
from serving_gym.runners.profile_fitting.hierarchy import Fit, keys_of, profile_with
from serving_gym.runners.validation.runs import ServingRun
from serving_gym.runners.validation.score import Score, summary

SOURCES = {
    "closed_loop": {
        "file": "silicon/aic_e2e_vllm_agg.csv.gz",
        "repository": "ai-dynamo/aiconfigurator",
        "licence": "Apache-2.0",
    },
    "open_loop": {
        "file": "silicon/blis_vllm_stage_latency.csv",
        "repository": "inference-sim/training, inference-sim/sim-to-real-accuracy-validation",
        "licence": "none stated; only fitted parameters are published",
    },
    "replicas": {
        "file": "silicon/apex_vllm_dp_tp_h100.csv",
        "repository": "microsoft/apex_plus",
        "licence": "MIT",
    },
}
FORM_OF_ENGINE = {"vllm-0.6": "replicas", "vllm-0.15": "open_loop"}
KERNELS = {"repository": "ai-dynamo/aiconfigurator", "licence": "Apache-2.0"}
METHOD = (
    "kernel tables composed into the model's layers; what the engine adds fitted to measured runs, each simulated, "
    "from the engine over the model and the GPU to the deployment (runners/profile_fitting/hierarchy.py)"
)
HELD_OUT = (
    "seen: a part of the configurations of each deployment left out of the fit; unseen: a part of the deployments "
    "(model x GPU x width) left out as a whole; `all` counts every dense model, or every mixture of experts, measured "
    "in this form, `here` this model, GPU and engine"
)
TARGETS = ("tpot", "ttft", "ttft_p99", "e2e")


def rounded(figures: dict[str, float]) -> dict[str, float]:
    """Errors to four digits."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}


def errors(scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    """Errors of each target."""
    found = {}
    for target in TARGETS:
        members = [score for score in scores if score.target == target]
        if members:
            found[target] = rounded(summary(members))
    return found


def kind_of(engine: str, model: str) -> tuple[str, bool]:
    """What held-out errors are pooled over: form of the measurements, and whether the model is a mixture of experts."""
    return form_of(engine), get_model(model).num_experts > 0


def form_of(engine: str) -> str:
    """Form of the measurements of an engine."""
    return FORM_OF_ENGINE.get(engine, "closed_loop")


def held_out(seen: Sequence[Score], unseen: Sequence[Score], key: tuple[str, str, str]) -> dict[str, Any]:
    """Held-out errors as a profile states them.

    Args:
        seen: Scores of left-out configurations.
        unseen: Scores of left-out deployments.
        key: Model, GPU and engine of the profile.
    """
    kind = kind_of(key[2], key[0])
    result: dict[str, Any] = {"method": HELD_OUT}
    for name, scores in (("seen", seen), ("unseen", unseen)):
        alike = [s for s in scores if kind_of(s.deployment.engine, s.deployment.model) == kind]
        here = [s for s in alike if (s.deployment.model, s.deployment.gpu, s.deployment.engine) == key]
        result[name] = {"all": errors(alike), "here": errors(here)}
    return result


def provenance(runs: Sequence[ServingRun], key: tuple[str, str, str]) -> dict[str, Any]:
    """Where the coefficients of one profile come from."""
    _, gpu, engine = key
    rows = sum(len(run.stages) for run in runs)
    return {
        "method": METHOD,
        "kernels": {"table": f"{FOLDER}/{kernel_file_name(RELATIVES.get(gpu, gpu))}", **KERNELS},
        "end_to_end": [{**SOURCES[form_of(engine)], "rows": rows}],
    }


def engine_profiles(
    fit: Fit, runs: Sequence[ServingRun], seen: Sequence[Score], unseen: Sequence[Score]
) -> list[Profile]:
    """One profile for each model, GPU and engine with runs."""
    groups: dict[tuple[str, str, str], list[ServingRun]] = {}
    for run in runs:
        d = run.deployment
        if not d.expert_parallel:
            groups.setdefault((d.model, d.gpu, d.engine), []).append(run)
    profiles = []
    for key, members in sorted(groups.items()):
        deployments = {run.deployment.tp: run.deployment for run in members}
        profiles.append(
            Profile(
                get_model(key[0]),
                get_gpu(key[1]),
                FITTED,
                {tp: profile_with(d, fit.of(d)).coefficients[tp] for tp, d in deployments.items()},
                provenance(members, key),
                held_out(seen, unseen, key),
                key[2],
                fit.overheads[keys_of(members[0].deployment)[2]],
                {tp: fit.of(d).frontend for tp, d in deployments.items()},
            )
        )
    return profiles


def write_engines(fit: Fit, folder: Path) -> Path:
    """Writes the overheads that stand for what was never measured: of each engine, and of each model on it."""
    wanted: dict[str, Engine] = {key: value for key, value in fit.overheads.items() if key.count("|") == 1}
    path = folder / "engines.yaml"
    before = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    overheads = {key: dump_engine(wanted[key]) for key in sorted(wanted)}
    content = {**before, "method": METHOD, "overheads": overheads}
    path.write_text(yaml.safe_dump(content, sort_keys=False, width=110), encoding="utf-8")
    return path


def write_profiles(profiles: Sequence[Profile], folder: Path) -> list[Path]:
    """Writes profiles under their names."""
    written = []
    for profile in profiles:
        name = profile_file_name(profile.model.name, profile.gpu.name, profile.engine)
        path = folder / "profiles" / name
        path.write_text(dump_profile(profile), encoding="utf-8")
        written.append(path)
    return written
