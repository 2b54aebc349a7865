"""`runners.calibrate backend=vllm`: from a server to a profile file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from serving_gym.calibration.profile import Profile
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.live.endpoints import check_endpoints
from serving_gym.envs.live.launcher import LocalServer, ending_on_signals
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.supervision import LocalServers
from serving_gym.envs.live.switching.client import SwitchingClient
from serving_gym.envs.live.switching.launch import switching_server
from serving_gym.envs.live.transitions import Slot, SlotState
from serving_gym.runners.live.attach import check_installed
from serving_gym.runners.live.launching import launch_settings, slots_of
from serving_gym.runners.live.switching import switching_launch_settings
from serving_gym.runners.measuring.config import CalibrateConfig
from serving_gym.runners.measuring.loads import Limits, Load, designed_loads
from serving_gym.runners.measuring.log import IterationLog
from serving_gym.runners.measuring.measure import Measurement, measure, profile_of
from serving_gym.runners.measuring.report import (
    measured_model,
    print_profile,
    schedules_async,
    typed,
    write_profile,
)
from serving_gym.runners.measuring.transitions import measure_switch, measure_transitions, settled
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in


def measure_live(config: CalibrateConfig, out: Path) -> None:
    """Measures, fits, writes `NAME_GPU.yaml` and `calibration.json`, and prints what came out."""
    check_installed()
    folder = out / "server"
    times: dict[str, float] = {}
    with ending_on_signals(), _servers(config, folder) as (url, log, beside, slot):
        profile = _profile(config, _measured(config, url, log, beside), log)
        file = write_profile(profile, config, out)  # a transition that fails afterwards does not lose it
        if slot is not None and config.transitions:
            times |= measure_transitions(slot)
            file = write_profile(replace(profile, transitions=times), config, out)
    if config.switch_ranks:
        times |= {"switch_s": _switch_s(config, out / "switching")}
        file = write_profile(replace(profile, transitions=times), config, out)
    write_json(out / "calibration.json", {"provenance": profile.provenance, "held_out": profile.held_out})
    print_profile(replace(profile, transitions=times), config.cluster)
    print_results_in(file)


@contextlib.contextmanager
def _servers(
    config: CalibrateConfig, folder: Path
) -> Iterator[tuple[str, Path, tuple[str, ...], Slot | None]]:
    """Address and log of the server to be measured, the addresses of those beside it, and its slot if it has one."""
    if not config.backend.launch:
        urls = check_endpoints(config.backend.endpoints, config.backend.allow_remote)
        yield urls[0], Path(config.log or ""), (), None
        return
    settings = replace(launch_settings(config.backend, config.cluster), log_iterations=True)
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
    with ending_on_signals(), switching_server(settings, folder / "server") as server:
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


def _profile(config: CalibrateConfig, measurement: Measurement, log: Path) -> Profile:
    model = measured_model(config, measurement.server.root)
    gpu = config.hardware.spec(config.cluster.gpu)
    when, command = typed(config)
    asynchronous = schedules_async(config.cluster, IterationLog(log))
    return profile_of(measurement, model, gpu, config.cluster.base_width, when, command, asynchronous)
