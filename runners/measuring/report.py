"""What was measured on a running engine: the model it served, its profile's file, and what is printed of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.models import MODELS, ModelSpec
from serving_gym.calibration.profile import Profile, dump_profile, named_profile, profile_file_name
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.runners.measuring.config import CalibrateConfig
from serving_gym.runners.measuring.log import IterationLog
from serving_gym.runners.measuring.model import served_model
from serving_gym.runners.reporting.output import write_text
from serving_gym.runners.reporting.tables import print_table

_SHOWN = ("ape_median", "ape_mean", "ape_p90")
_PLACES = ("out=", "log=", "traffic=", "backend.python=")  # words that name places of a machine
_KINDS = ("decode_stretch", "prefill_stretch")


def measured_model(config: CalibrateConfig, root: str) -> ModelSpec:
    """The model whose weights a server has from `root`, by the words of the command or its config.json."""
    known = config.cluster.model if config.cluster.model in MODELS else None
    has_folder = (Path(root) / "config.json").is_file()
    name = config.model or (None if has_folder else known)
    model = served_model(name, root, config.name or config.cluster.model)
    return replace(model, name=config.name) if config.name else model


def typed(config: CalibrateConfig) -> tuple[str, str]:
    """Date and command for a provenance, without the words that name places of this machine."""
    words = [word for word in sys.argv[1:] if not word.startswith(_PLACES)]
    return config.date or date.today().isoformat(), f"python -m runners.calibrate {' '.join(words)}".strip()


def schedules_async(cluster: ClusterSpec, log: IterationLog) -> bool:
    """Whether a server schedules asynchronously: as the command says, else its log; else it does not."""
    if cluster.async_scheduling is not None:
        return cluster.async_scheduling
    return bool(log.schedules_async())


def write_profile(profile: Profile, config: CalibrateConfig, out: Path) -> Path:
    """Writes a profile, beside the widths of another where that is asked for; returns its file."""
    profile = replace(profile, engine=config.engine)
    file = out / profile_file_name(profile.model.name, profile.gpu.name, config.engine)
    joint = profile if config.widths_of is None else with_width(named_profile(config.widths_of), profile)
    write_text(file, dump_profile(joint))
    return file


def with_width(known: Profile, measured: Profile) -> Profile:
    """A profile with what was measured at one TP degree more; where from, and how far off, is told of each.

    Args:
        known: At other degrees. Its transitions stay; those that were measured go with where they come from.
        measured: At one.

    Raises:
        ValueError: model, hardware or the way of scheduling differ.
    """
    if (known.model, known.gpu) != (measured.model, measured.gpu):
        raise ValueError(
            f"widths_of is a profile of {known.model.name} on {known.gpu.name} with other data than the measured "
            f"{measured.model.name} on {measured.gpu.name}"
        )
    if known.async_scheduling != measured.async_scheduling:
        raise ValueError(
            "widths_of is a profile of an engine that schedules "
            f"{'asynchronously' if known.async_scheduling else 'synchronously'}, unlike the measured one"
        )
    (width,) = measured.coefficients
    logged = {**measured.provenance, "transitions": dict(measured.transitions)}
    return replace(
        known,
        coefficients={**known.coefficients, width: measured.coefficients[width]},
        frontends={**known.frontends, **measured.frontends},
        provenance={**known.provenance, f"tp{width}": logged},
        held_out={**known.held_out, f"tp{width}": dict(measured.held_out)},
    )


def print_profile(profile: Profile, cluster: ClusterSpec) -> None:
    """Errors by kind of what was fitted and of what was kept out, and a few lengths."""
    fitted: dict[str, Any] = profile.provenance["fit"]
    rows = [
        (f"{kind}, {split}", errors[kind]["n"], *(errors[kind][figure] for figure in _SHOWN))
        for split, errors in (("fitted", fitted), ("held out", profile.held_out))
        for kind in _KINDS
        if kind in errors
    ]
    used, minutes = profile.provenance["iterations_used"], profile.provenance["minutes"]
    print_table(f"Error over {used:,} iterations in {minutes} minutes", ("what", "n", *_SHOWN), rows)
    latency = profile.latency_model(cluster.base_width)
    print_table("What the profile says", ("what", "ms"), _examples(latency, cluster, profile))


def _examples(latency: LatencyModel, cluster: ClusterSpec, profile: Profile) -> list[tuple[str, float]]:
    def row(what: str, function: Callable[[], float]) -> tuple[str, float]:
        return what, 1e3 * function()

    took = [(name.removesuffix("_s").replace("_", " "), 1e3 * s) for name, s in profile.transitions.items()]
    most, front_end = cluster.max_num_seqs, profile.frontends[cluster.base_width]
    return [
        row("one request decoding at 256 tokens", lambda: latency.iteration_s(1, 256)),
        row(f"{most} requests decoding at 256 tokens each", lambda: latency.iteration_s(most, 256 * most)),
        row("a prompt of 256 tokens", lambda: latency.iteration_s(0, 0, [(0, 256)])),
        row("the front end of that prompt", lambda: front_end.fixed_s + 256 * front_end.token_s),
        *took,
    ]
