"""Runs the designed load on a server and turns its log into a profile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from serving_gym.calibration.coefficients import roofline_coefficients
from serving_gym.calibration.hardware import GpuSpec
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.models import ModelSpec
from serving_gym.calibration.profile import Profile
from serving_gym.envs.live.http import HttpClient
from serving_gym.envs.live.servers import Server, probe
from serving_gym.runners.measuring.composition import ContradictionError, Step, steps_of
from serving_gym.runners.measuring.drive import Driver
from serving_gym.runners.measuring.fit import errors_of, fit_coefficients
from serving_gym.runners.measuring.front_end import Probe, fit_front_end, probe_front_end
from serving_gym.runners.measuring.intervals import Interval, intervals_of
from serving_gym.runners.measuring.loads import Limits, Load, designed_loads, held_out
from serving_gym.runners.measuring.log import IterationLog, check_log

METHOD = (
    "designed load on a running server; iterations from the stamps of its per-iteration log, batches and contexts "
    "reconstructed from the load; physical form fitted by relative error of the length of stretches of iterations "
    "(calibration/measuring)"
)
PULL = 0.02  # of `fit_coefficients`
HELD_OUT_METHOD = (
    "a quarter of the configurations of the designed load kept out of the fit, with all their iterations"
)
_LOG_SETTLES_S = 0.2


@dataclass(frozen=True)
class Measurement:
    """What a server's log said.

    Attributes:
        server: The server.
        loads: Configurations of the design.
        runs: Of every run of a configuration, its place in the design and its iterations.
        contradictions: Runs thrown away, with the reason.
        probes: Requests for one token, for what happens outside of iterations.
        elapsed_s: Length of the measurement.
        beside: Servers of the machine that did the same work meanwhile.
    """

    server: Server
    loads: Sequence[Load]
    runs: Sequence[tuple[int, Sequence[Step]]]
    contradictions: Sequence[str]
    probes: Sequence[Probe] = field(default_factory=tuple)
    elapsed_s: float = 0.0
    beside: int = 0


async def measure(
    url: str,
    log_file: Path,
    limits: Callable[[Server], Limits],
    vocab_size: int,
    repeats: int = 3,
    model: str | None = None,
    on_load: Callable[[Load], object] = lambda load: None,
    beside: Sequence[str] = (),
) -> Measurement:
    """Puts the designed load on a server, several times over.

    Args:
        url: the server; it must have no other clients meanwhile.
        log_file: file its standard output goes to, with iteration details and fine stamps.
        limits: what the engine can take, given what the server says.
        vocab_size: token ids of prompts lie below it.
        repeats: rounds through the design.
        model: name the server serves; None: the only one.
        on_load: called with every finished configuration.
        beside: servers that do the same work meanwhile, as they will share the machine with it.

    Raises:
        ValueError: no server answers, the log is not as needed, or the server loses a request.
    """
    begun_s = time.monotonic()
    async with HttpClient() as session:
        server = await probe(session, url, model)
        known = limits(server)
        loads = designed_loads(known)
        driver, log = Driver(session, server, vocab_size), IterationLog(log_file)
        log.new_iterations()  # what others did before
        await driver.run(loads[0])  # warms up
        await asyncio.sleep(_LOG_SETTLES_S)
        check_log(log.new_iterations(), log_file)
        runs, contradictions = [], []
        async with _loaded(
            [await probe(session, other, model) for other in beside], session, vocab_size, loads
        ):
            for _, (number, load) in ((r, entry) for r in range(repeats) for entry in enumerate(loads)):
                sent = await driver.run(load)
                await asyncio.sleep(_LOG_SETTLES_S)
                try:
                    runs.append((number, steps_of(sent, log.new_iterations())))
                except ContradictionError as error:
                    contradictions.append(f"{load.name}: {error}")
                on_load(load)
            probes = await probe_front_end(driver, known)
    elapsed_s = time.monotonic() - begun_s
    return Measurement(server, loads, runs, contradictions, probes, elapsed_s, len(beside))


@asynccontextmanager
async def _loaded(
    servers: Sequence[Server], session: HttpClient, vocab_size: int, loads: Sequence[Load]
) -> AsyncIterator[None]:
    """Keeps servers busy with the designed load inside the block."""

    async def work(server: Server) -> None:
        driver = Driver(session, server, vocab_size)
        for load in cycle(loads):
            await driver.run(load)

    tasks = [asyncio.create_task(work(server)) for server in servers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    lost = [error for error in ended if isinstance(error, ValueError)]
    if lost:
        raise lost[0]


def profile_of(
    measurement: Measurement,
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int,
    when: str,
    command: str,
    asynchronous: bool = False,
) -> Profile:
    """Fits a profile.

    Args:
        measurement: What the log said.
        model: The served model.
        gpu: The hardware of one rank.
        tp: Ranks of the engine.
        when: Date of the measurement.
        command: What was typed.
        asynchronous: Whether the server schedules asynchronously.

    Raises:
        ValueError: the measurement does not suffice.
    """
    cut = [(number, intervals_of(steps)) for number, steps in measurement.runs]
    fitted = [interval for number, intervals in cut for interval in intervals if not held_out(number)]
    kept_out = [interval for number, intervals in cut for interval in intervals if held_out(number)]
    prior = replace(roofline_coefficients(gpu), layer_s=0.0)  # of one model nothing is said of layers
    coefficients = fit_coefficients(model, gpu, tp, prior, PULL, fitted)
    latency = LatencyModel(model, gpu, tp, coefficients)
    front_end = fit_front_end(latency, measurement.probes, asynchronous)
    return Profile(
        model=model,
        gpu=gpu,
        source="measured",
        coefficients={tp: coefficients},
        frontends={tp: front_end},
        async_scheduling=asynchronous,
        provenance=_provenance(measurement, [*fitted, *kept_out], errors_of(latency, fitted), when, command),
        held_out={
            "method": HELD_OUT_METHOD,
            "configurations": len({number for number, _ in measurement.runs if held_out(number)}),
            **errors_of(latency, kept_out),
        },
    )


def _provenance(
    measurement: Measurement, intervals: Sequence[Interval], fitted: dict[str, Any], when: str, command: str
) -> dict[str, Any]:
    return {
        "method": METHOD,
        "engine": f"vLLM {measurement.server.version}",
        "date": when,
        "command": command,
        "minutes": round(measurement.elapsed_s / 60.0, 1),
        "configurations": len(measurement.loads),
        "iterations": sum(len(steps) for _, steps in measurement.runs),
        "iterations_used": sum(len(interval.steps) for interval in intervals),
        "stretches": len(intervals),
        "runs_thrown_away": list(measurement.contradictions),
        "fit": fitted,
        "front_end_requests": len(measurement.probes),
        "notes": [
            "per-layer overhead is part of fixed_s, as one model cannot tell them apart",
            "collectives and experts are the roofline's assumptions",
            *(["the other servers of the machine did the same work meanwhile"] if measurement.beside else []),
        ],
    }
