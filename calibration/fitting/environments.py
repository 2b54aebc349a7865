"""The profiles that environments use: a few families of 16-bit and MXFP4 models under current vLLM."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from serving_gym.calibration.fitting.data import Run
from serving_gym.calibration.fitting.endtoend import (
    Overheads,
    fit_overheads,
    held_out_errors,
    kernels_of,
    summary,
    tpot_ratio,
)
from serving_gym.calibration.fitting.plan import Family, Target
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import Profile, dump_profile, profile_file_name

KERNEL_FILES = ("aic_gemm", "aic_attention_prefill", "aic_attention_decode", "aic_allreduce_vllm", "aic_nccl")
MOE_FILES = ("aic_moe",)
RUN_FILES = {
    "silicon/aic_e2e_vllm_agg.csv.gz": {"repository": "ai-dynamo/aiconfigurator", "licence": "Apache-2.0"},
    "silicon/blis_vllm_stage_latency.csv": {
        "repository": "inference-sim/training, inference-sim/sim-to-real-accuracy-validation",
        "licence": "none stated; only fitted parameters are published",
    },
}
METHOD = (
    "kernel tables composed into the model's layers and fitted by the physical form; host, waiting and element-wise "
    "terms fitted to measured TPOT through a steady-state fluid model (calibration/fitting)"
)


def provenance(family: Family, target: Target, runs: Sequence[Run], overheads: Overheads) -> dict[str, Any]:
    """Where the coefficients of one profile come from."""
    kernels = {width: kernels_of(target.model, target.gpu, width) for width in target.widths}
    measured = [
        {"file": name, "rows": sum(run.source == name for run in runs), **origin}
        for name, origin in RUN_FILES.items()
    ]
    files = KERNEL_FILES + (MOE_FILES if get_model(target.model).num_experts else ())
    return {
        "method": METHOD,
        "kernels": {
            "files": [f"profiles/{name}.parquet" for name in files],
            "repository": "ai-dynamo/aiconfigurator",
            "licence": "Apache-2.0",
            "rows": {width: fit.rows for width, fit in kernels.items()},
            "form_ape_median": {width: round(fit.form_error, 4) for width, fit in kernels.items()},
        },
        "end_to_end": [entry for entry in measured if entry["rows"]],
        "engine": family.engine,
        "family": family.name,
        "overheads": {name: float(f"{value:.5g}") for name, value in asdict(overheads).items()},
        "notes": list(family.notes),
    }


def held_out(
    errors: dict[str, list[float]], other: dict[str, list[float]], model: str, gpu: str
) -> dict[str, Any]:
    """Held-out errors of a family as a profile reports them."""
    own = [error for name, values in errors.items() if name.startswith(f"{model}|{gpu}|") for error in values]
    report: dict[str, Any] = {
        "method": "leave one deployment (model x GPU x width) out of the end-to-end fit; never fitted: other GPUs",
        "tpot": summary(list(chain.from_iterable(errors.values()))),
    }
    if own:
        report["tpot_this_model_and_gpu"] = summary(own)
    report["tpot_by_deployment"] = {name: summary(values) for name, values in errors.items()}
    if other:
        report["tpot_never_fitted"] = {name: summary(values) for name, values in other.items()}
    return report


def fit_family(family: Family, folder: Path) -> list[Path]:
    """Fits one family and writes its profiles under `folder`; returns the files."""
    written = []
    runs = family.runs()
    overheads = fit_overheads(runs)[family.engine]
    errors = held_out_errors(runs)
    other: dict[str, list[float]] = {}
    for run in family.other_gpu_runs():
        other.setdefault(run.deployment, []).append(abs(tpot_ratio(overheads, run) - 1.0))
    for target in family.targets:
        coefficients = {
            width: overheads.applied(kernels_of(target.model, target.gpu, width).coefficients, width)
            for width in target.widths
        }
        profile = Profile(
            model=get_model(target.model),
            gpu=get_gpu(target.gpu),
            source="fitted",
            coefficients=coefficients,
            provenance=provenance(family, target, runs, overheads),
            held_out=held_out(errors, other, target.model, target.gpu),
        )
        path = folder / "profiles" / profile_file_name(target.model, target.gpu)
        path.write_text(dump_profile(profile), encoding="utf-8")
        written.append(path)
    return written
