"""What is known of a profile, in one sentence: whether it was measured, and how far it is expected to be off."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from serving_gym.calibration.deployments import NEAR_WIDTHS, TABLES
from serving_gym.calibration.engines import engine_key, family_of, load_carried, load_engines
from serving_gym.calibration.hardware import GPUS
from serving_gym.calibration.kernels import RELATIVES
from serving_gym.calibration.lookup import read_yaml
from serving_gym.calibration.profile import Profile

ERRORS_FILE = "transfer_errors.yaml"
_FAMILIES = {"dense": "dense models", "moe": "mixtures of experts"}
_TARGETS = ("tpot", "ttft", "e2e")


@cache
def transfer_errors() -> Mapping[str, Any]:
    """Errors of transferred profiles by relation, family (`dense`, `moe`) and target, as committed.

    Written by `runners.calibrate part=transfers`.
    """
    file = resources.files("serving_gym.calibration") / ERRORS_FILE
    errors: Mapping[str, Any] = read_yaml(file.read_text(encoding="utf-8"))["left_out"]
    return errors


@cache
def measured_gpus(engine: str) -> Mapping[str, tuple[str, ...]]:
    """GPUs with a committed profile under an engine, by model."""
    names = {gpu.lower(): gpu for gpu in GPUS}
    found: dict[str, list[str]] = {}
    for file in (resources.files("serving_gym.calibration") / "profiles").iterdir():
        parts = file.name.removesuffix(".yaml").split("_")
        if parts[2:] == [engine]:
            found.setdefault(parts[0], []).append(names[parts[1]])
    return {model: tuple(sorted(gpus)) for model, gpus in sorted(found.items())}


def relation(profile: Profile) -> str:
    """The nearest thing that overheads of a transferred profile under a named engine were measured at.

    `width`: the same model and GPU at another width; `gpu`: the same model on another GPU; `model`: other models on
    this engine; `version`: one model on this engine, others on the version before it.
    """
    key = engine_key(profile.engine, profile.model.name)
    if key in load_carried():
        return "version"
    gpus = measured_gpus(profile.engine).get(profile.model.name)
    return "model" if gpus is None else "width" if profile.gpu.name in gpus else "gpu"


def expected_errors(profile: Profile) -> dict[str, float]:
    """Median absolute errors to be expected, ratios by target; empty where nothing was kept aside to tell."""
    if profile.kind == "fitted":
        aside = profile.held_out.get("seen", {}).get("all", {})
    elif (
        profile.kind == "transferred"
        and profile.source != TABLES
        and _engine_known(profile)
        and _family(profile)
    ):
        aside = transfer_errors()[relation(profile)][_family(profile)]
    else:
        aside = {}
    return {target: aside[target]["ape_median"] for target in _TARGETS if target in aside}


def describe(profile: Profile, tp: int) -> str:
    """One sentence on where iteration times of an engine of `tp` GPUs come from, and their expected error."""
    name = f"{profile.model.name} on {tp} x {profile.gpu.name}"
    engine = f" by {profile.engine}" if profile.engine else ""
    errors = ", ".join(f"{target.upper()} {error:.0%}" for target, error in expected_errors(profile).items())
    known = f"{_origin(profile)}{'; expected error ' if errors else ''}{errors.replace('%', ' %')}"
    return f"{name}{engine}: {profile.kind} ({known})"


def _origin(profile: Profile) -> str:
    """What times were measured on."""
    if profile.kind == "measured":
        ran = profile.provenance.get("engine", "a live engine")
        date = profile.provenance.get("date", "")
        return f"on {ran}{', ' if date else ''}{date}"
    if profile.kind == "fitted":
        return "to published runs of it" if profile.engine else "to published tables and runs"
    if profile.kind == "roofline":
        return "assumed efficiencies, no kernel of it was measured"
    if profile.source == TABLES:
        return "published tables of it, front end of other models and GPUs"
    return f"{_kernels(profile)}, {_overheads(profile)}"


def _family(profile: Profile) -> str:
    """`dense` or `moe`; empty where only models of the other kind were measured on the engine."""
    family = family_of(profile.engine, profile.model.name)
    used = engine_key(profile.engine, profile.model.name)
    other = used != family and used.endswith(("|dense", "|moe"))
    return "" if other else family.split("|")[1]


def _engine_known(profile: Profile) -> bool:
    """Whether its engine is a committed one; one's own profile may name any, or none."""
    return profile.engine in {key.split("|")[0] for key in load_engines()}


def _kernels(profile: Profile) -> str:
    """Which kernels a transferred profile has."""
    if profile.gpu.name in RELATIVES:
        return f"kernels by the efficiencies of {RELATIVES[profile.gpu.name]}"
    return "kernels of neighbouring widths" if profile.source == NEAR_WIDTHS else "kernels measured"


def _overheads(profile: Profile) -> str:
    """Whose overheads a transferred profile has."""
    if not _engine_known(profile):
        return "overheads of other models and GPUs"
    key = engine_key(profile.engine, profile.model.name)
    carried = load_carried().get(key)
    if carried is not None:
        before, family = carried.family.split("|")
        step = f"{carried.model} on {' and '.join(carried.gpus)}"
        return (
            f"overheads of {step}"
            if family == "dense"
            else f"overheads of {before}'s {_FAMILIES[family]} with the step of {step}"
        )
    near = relation(profile)
    if near == "width":
        return "overheads of other widths"
    if near == "gpu":
        gpus = " and ".join(measured_gpus(profile.engine)[profile.model.name])
        return f"overheads of {profile.model.name} on {gpus}"
    return f"overheads of other {_FAMILIES[key.split('|')[1]]}"
