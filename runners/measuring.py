"""`runners.calibrate backend=vllm`: from a server to a profile file."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from calibration.latency import LatencyModel
from calibration.measuring.loads import Limits, Load, designed_loads
from calibration.measuring.measure import Measurement, measure, profile_of
from calibration.measuring.model import served_model
from calibration.measuring.transitions import measure_switch, measure_transitions, settled
from calibration.models import MODELS
from calibration.profile import Profile, dump_profile, named_profile, profile_file_name
from envs.backend import ClusterSpec
from envs.live.endpoints import check_endpoints
from envs.live.launcher import LocalServer, ending_on_sigterm
from envs.live.servers import Server
from envs.live.supervision import LocalServers
from envs.live.switching.client import SwitchingClient
from envs.live.switching.launch import switching_server
from envs.live.transitions import Slot, SlotState
from runners.live import check_installed, launch_settings, slots_of
from runners.measure_config import CalibrateConfig
from runners.output import write_json, write_text
from runners.progress import progress_bar
from runners.switching import switching_launch_settings
from runners.tables import print_results_in, print_table

_SHOWN = ("ape_median", "ape_mean", "ape_p90")


def measure_live(config: CalibrateConfig, out: Path) -> None:
    """Measures, fits, writes `NAME_GPU.yaml` and `calibration.json`, and prints what came out."""
    check_installed()
    folder = out / "server"
    times: dict[str, float] = {}
    with ending_on_sigterm(), _servers(config, folder) as (url, log, beside, slot):
        profile = _profile(config, _measured(config, url, log, beside))
        file = _write(profile, config, out)  # a transition that fails afterwards does not lose it
        if slot is not None and config.transitions:
            times |= measure_transitions(slot)
            file = _write(replace(profile, transitions=times), config, out)
    if config.switch_ranks:
        times |= {"switch_s": _switch_s(config, out / "switching")}
        file = _write(replace(profile, transitions=times), config, out)
    write_json(out / "calibration.json", {"provenance": profile.provenance, "held_out": profile.held_out})
    _print(replace(profile, transitions=times), config.cluster)
    print_results_in(file)


def _write(profile: Profile, config: CalibrateConfig, out: Path) -> Path:
    """Writes a profile, beside the widths of another where that is asked for; returns its file."""
    file = out / profile_file_name(profile.model.name, profile.gpu.name)
    joint = profile if config.widths_of is None else with_width(named_profile(config.widths_of), profile)
    write_text(file, dump_profile(joint))
    return file


def with_width(known: Profile, measured: Profile) -> Profile:
    """A profile with what was measured at one TP degree more; where from, and how far off, is told of each.

    Args:
        known: At other degrees. Its transitions stay; those that were measured go with where they come from.
        measured: At one.

    Raises:
        ValueError: model or hardware differ.
    """
    if (known.model, known.gpu) != (measured.model, measured.gpu):
        raise ValueError(
            f"widths_of is a profile of {known.model.name} on {known.gpu.name} with other data than the measured "
            f"{measured.model.name} on {measured.gpu.name}"
        )
    (width,) = measured.coefficients
    told = {**measured.provenance, "transitions": dict(measured.transitions)}
    return replace(
        known,
        coefficients={**known.coefficients, width: measured.coefficients[width]},
        frontends={**known.frontends, **measured.frontends},
        provenance={**known.provenance, f"tp{width}": told},
        held_out={**known.held_out, f"tp{width}": dict(measured.held_out)},
    )


@contextlib.contextmanager
def _servers(
    config: CalibrateConfig, folder: Path
) -> Iterator[tuple[str, Path, tuple[str, ...], Slot | None]]:
    """Address and log of the server to be measured, the addresses of those beside it, and its slot if it has one."""
    if not config.backend.launch:
        urls = check_endpoints(config.backend.endpoints, config.backend.allow_remote)
        yield urls[0], Path(config.log or ""), (), None
        return
    settings = launch_settings(config.backend, config.cluster)
    widths = [config.cluster.base_width] * (1 + config.neighbours)
    own, *others = (replace(settings, slot=slot) for slot in slots_of(config.backend, widths))
    with LocalServers(others, folder / "beside") as beside:
        slot = Slot(LocalServer(own, folder), lambda: 0)
        try:
            slot.start()
            settled(slot, SlotState.READY)
            log = Path(config.log) if config.log else slot.server.log
            yield slot.server.url, log, beside.urls, slot
        finally:
            slot.close()


def _switch_s(config: CalibrateConfig, folder: Path) -> float:
    """How long a switch between DP and TP takes, on a server launched for it, s."""
    cluster = replace(
        config.cluster, num_gpus=config.switch_ranks, base_width=1, max_group=None, router="jsq"
    )
    settings = switching_launch_settings(config.backend, cluster, folder)
    with ending_on_sigterm(), switching_server(settings, folder / "server") as server:
        return measure_switch(SwitchingClient(server.url), config.switch_ranks)


def _measured(config: CalibrateConfig, url: str, log: Path, beside: tuple[str, ...]) -> Measurement:
    with progress_bar(0, "configurations", "load") as bar:

        def on_load(load: Load) -> None:
            bar.update(1)

        def counted(server: Server) -> Limits:
            known = limits_of(config.cluster, server, config.longest_tokens)
            bar.total = config.repeats * len(designed_loads(known))
            return known

        backend = config.backend
        running = measure(
            url, log, counted, backend.vocab_size, config.repeats, backend.model, on_load, beside
        )
        return asyncio.run(running)


def limits_of(cluster: ClusterSpec, server: Server, longest_tokens: int | None) -> Limits:
    """What an engine can take: batch limits as the cluster says, lengths as the server says, or `longest_tokens`."""
    return Limits(
        max_num_seqs=cluster.max_num_seqs,
        max_num_batched_tokens=cluster.max_num_batched_tokens,
        max_model_len=min(server.max_model_len, longest_tokens or server.max_model_len),
        kv_tokens=server.cache.num_blocks * server.cache.block_size,
    )


def _profile(config: CalibrateConfig, measurement: Measurement) -> Profile:
    server = measurement.server
    known = config.cluster.model if config.cluster.model in MODELS else None
    has_folder = (Path(server.root) / "config.json").is_file()
    name = config.model or (None if has_folder else known)
    model = served_model(name, server.root, config.name or config.cluster.model)
    if config.name:
        model = replace(model, name=config.name)
    when = config.date or date.today().isoformat()
    words = " ".join(
        word for word in sys.argv[1:] if not word.startswith(("out=", "log=", "backend.python="))
    )
    command = f"python -m runners.calibrate {words}".strip()
    gpu = config.hardware.spec(config.cluster.gpu)
    return profile_of(measurement, model, gpu, config.cluster.base_width, when, command)


def _print(profile: Profile, cluster: ClusterSpec) -> None:
    fitted: dict[str, Any] = profile.provenance["fit"]
    rows = [
        (f"{kind}, {split}", errors[kind]["n"], *(errors[kind][figure] for figure in _SHOWN))
        for split, errors in (("fitted", fitted), ("held out", profile.held_out))
        for kind in ("decode_step", "prefill_step")
        if kind in errors
    ]
    used, minutes = profile.provenance["iterations_used"], profile.provenance["minutes"]
    print_table(f"Error over {used:,} iterations in {minutes} minutes", ("iterations", "n", *_SHOWN), rows)
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
