"""Regenerates the committed calibration from the reference tables, part by part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from serving_gym.calibration.engines import Engine, dump_engine, parse_engine
from serving_gym.calibration.fitting import environments
from serving_gym.calibration.fitting.data import data_path
from serving_gym.calibration.fitting.dense_layers import write_dense_layer_profile
from serving_gym.calibration.fitting.kernel_library import write_library
from serving_gym.calibration.fitting.loading import fit_storage_bandwidth
from serving_gym.calibration.fitting.plan import FAMILIES
from serving_gym.calibration.fitting.power import fit_power_shares
from serving_gym.calibration.power import DECODE_SHARE, PREFILL_SHARE
from serving_gym.calibration.transitions import STORAGE_BYTES_PER_S
from serving_gym.runners.profile_fitting.engine_profiles import (
    SOURCES,
    engine_profiles,
    write_engines,
    write_profiles,
)
from serving_gym.runners.profile_fitting.held_out import (
    configuration_folds,
    deployment_folds,
    held_out_scores,
)
from serving_gym.runners.profile_fitting.hierarchy import Fit, fit_hierarchy, log_errors, shortened
from serving_gym.runners.profile_fitting.live_engines import write_live_engine
from serving_gym.runners.profile_fitting.step_profiles import SOURCE as STEPS_SOURCE
from serving_gym.runners.profile_fitting.step_profiles import step_profiles, typical
from serving_gym.runners.profile_fitting.transfers import write_transfer_errors
from serving_gym.runners.validation.forms import read_measurements, read_table
from serving_gym.runners.validation.runs import ServingRun
from serving_gym.runners.validation.score import Score

STEP_FOLDS = 5


@dataclass(frozen=True)
class Request:
    """What to write and where.

    Args:
        folder: Replaces `calibration/`.
        held_out: Whether fits are repeated without each part of the data.
        folds: Parts that end-to-end data are cut into.
        report: Called with progress messages.
    """

    folder: Path
    held_out: bool
    folds: int
    report: Callable[[str], None]


def serving_runs(report: Callable[[str], None]) -> list[ServingRun]:
    """Every measured run that profiles are fitted to."""
    runs: list[ServingRun] = []
    for source in SOURCES.values():
        found = read_measurements(read_table(data_path(source["file"])))
        for reason, count in found.unsupported.items():
            report(f"{source['file']}: {count} rows left out: {reason}")
        for run in found.runs:
            if run.deployment.attention_ranks > 1:
                report(f"{source['file']}: 1 row left out: data-parallel attention is predicted, not fitted")
                continue
            try:
                log_errors(shortened(run), Engine())
            except ValueError as error:
                report(f"{source['file']}: {len(run.stages)} rows left out: {error}")
                continue
            runs.append(run)
    return runs


def fit_kernels_part(request: Request) -> list[Path]:
    """Coefficients of kernels."""
    return write_library(request.folder)


def fit_engines_part(request: Request) -> list[Path]:
    """Engines, and profiles of engines measured end to end."""
    runs = serving_runs(request.report)
    fit = fit_hierarchy([shortened(run) for run in runs], request.report)
    seen: list[Score] = []
    unseen: list[Score] = []
    if request.held_out:
        unseen = held_out_scores(deployment_folds(runs, request.folds), request.report)
        seen = held_out_scores(configuration_folds(runs, request.folds), request.report)
    return write_engine_part(fit, runs, seen, unseen, request.folder)


def write_engine_part(
    fit: Fit, runs: list[ServingRun], seen: list[Score], unseen: list[Score], folder: Path
) -> list[Path]:
    """Writes engines and their profiles."""
    kept = other_engines(folder, set(fit.overheads))
    paths = write_profiles(engine_profiles(fit, runs, seen, unseen), folder)
    return [write_engines(Fit({**kept, **fit.overheads}), folder), *paths]


def other_engines(folder: Path, refitted: set[str]) -> dict[str, Engine]:
    """Overheads that stand in the folder and that this fit does not replace."""
    path = folder / "engines.yaml"
    if not path.is_file():
        return {}
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))["overheads"]
    return {key: parse_engine(value) for key, value in raw.items() if key not in refitted}


def fit_steps_part(request: Request) -> list[Path]:
    """Profiles of the engine measured by iteration, and the overheads that stand for its other deployments."""
    steps = read_measurements(read_table(data_path(STEPS_SOURCE["file"]))).steps
    profiles = step_profiles(steps, STEP_FOLDS)
    engine = typical([c for profile in profiles for c in profile.coefficients.values()])
    key = f"{profiles[0].engine}|dense"
    path = request.folder / "engines.yaml"
    raw = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {"overheads": {}}
    raw["overheads"] = dict(sorted({**raw["overheads"], key: dump_engine(engine)}.items()))
    path.write_text(yaml.safe_dump(raw, sort_keys=False, width=110), encoding="utf-8")
    return [path, *write_profiles(profiles, request.folder)]


def fit_live_part(request: Request) -> list[Path]:
    """The engine that one model was measured on, live."""
    return [write_live_engine(request.folder)]


def transfers_part(request: Request) -> list[Path]:
    """Errors of profiles whose overheads are those of other widths, GPUs, models or versions."""
    return [write_transfer_errors(serving_runs(request.report), request.folder, request.report)]


def fit_environments_part(request: Request) -> list[Path]:
    """The profiles that environments use."""
    fitted = [path for family in FAMILIES for path in environments.fit_family(family, request.folder)]
    return [*fitted, write_dense_layer_profile(request.folder)]


def fit_constants_part(request: Request) -> list[Path]:
    """Reports the constants of `calibration.power` and `calibration.transitions` beside their fits; writes nothing."""
    for degree, (prefill, decode) in fit_power_shares().items():
        request.report(
            f"power at TP {degree}, share of the limit: prefill {prefill:.3f} (constant {PREFILL_SHARE[degree]}), "
            f"decode {decode:.3f} (constant {DECODE_SHARE[degree]})"
        )
    for name, rate in fit_storage_bandwidth().items():
        request.report(
            f"loading {name}: {rate / 1e9:.2f} GB/s (constant {STORAGE_BYTES_PER_S[name] / 1e9:.2f} GB/s)"
        )
    return []


PARTS: Mapping[str, Callable[[Request], list[Path]]] = {
    "kernels": fit_kernels_part,
    "steps": fit_steps_part,
    "engines": fit_engines_part,
    "live": fit_live_part,
    "environments": fit_environments_part,
    "constants": fit_constants_part,
    "transfers": transfers_part,
}
