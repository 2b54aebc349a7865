"""Runs the designed load on a server and turns its log into a profile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibration.hardware import GpuSpec
from calibration.measuring.cells import Cell, cells_of
from calibration.measuring.composition import ContradictionError, Step, steps_of
from calibration.measuring.drive import Driver
from calibration.measuring.fit import errors_of, fit_coefficients
from calibration.measuring.loads import Limits, Load, designed_loads, held_out
from calibration.measuring.log import IterationLog
from calibration.models import ModelSpec
from calibration.profile import Profile
from envs.live.servers import Server, probe

METHOD = (
    "designed load on a running server; iteration times from the stamps of its per-iteration log, batches and contexts "
    "reconstructed from the load; physical form fitted by relative error (calibration/measuring)"
)
HELD_OUT_METHOD = (
    "a quarter of the configurations of the designed load kept out of the fit, with all their iterations"
)
_LOG_SETTLES_S = 0.2
_LONE_REQUESTS = 20
_LONE_PROMPT = 32  # tokens


@dataclass(frozen=True)
class Measurement:
    """What a server's log said.

    Attributes:
        server: The server.
        loads: Configurations of the design.
        steps: (place in the design, iteration) of every iteration whose length is known.
        iterations: Lines of the log.
        contradictions: Runs thrown away, with the reason.
        front_end_s: (n,), time to first token of a lone request beyond its iteration, seconds.
        elapsed_s: Length of the measurement.
    """

    server: Server
    loads: Sequence[Load]
    steps: Sequence[tuple[int, Step]]
    iterations: int
    contradictions: Sequence[str]
    front_end_s: Sequence[float] = field(default_factory=tuple)
    elapsed_s: float = 0.0


async def measure(
    url: str,
    log_file: Path,
    limits: Callable[[Server], Limits],
    vocab_size: int,
    repeats: int = 3,
    model: str | None = None,
    on_load: Callable[[Load], object] = lambda load: None,
) -> Measurement:
    """Puts the designed load on a server, several times over.

    Args:
        url: the server; nobody else may use it meanwhile.
        log_file: file its standard output goes to, with iteration details and fine stamps.
        limits: what the engine can take, given what the server says.
        vocab_size: token ids of prompts lie below it.
        repeats: rounds through the design.
        model: name the server serves; None: the only one.
        on_load: told every configuration once it is done.

    Raises:
        ValueError: nobody answers, the log is not as needed, or the server loses a request.
    """
    import aiohttp

    begun_s = time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        server = await probe(session, url, model)
        loads = designed_loads(limits(server))
        driver, log = Driver(session, server, vocab_size), IterationLog(log_file)
        await driver.run(loads[0])  # warms up
        await asyncio.sleep(_LOG_SETTLES_S)
        if not log.new_iterations():
            raise ValueError(
                f"{log_file} says nothing of iterations: start the server with --enable-logging-iteration-details "
                "and its standard output in that file"
            )
        steps, contradictions, iterations = [], [], 0
        for _, (number, load) in ((r, entry) for r in range(repeats) for entry in enumerate(loads)):
            sent = await driver.run(load)
            await asyncio.sleep(_LOG_SETTLES_S)
            lines = log.new_iterations()
            iterations += len(lines)
            try:
                steps += [(number, step) for step in steps_of(sent, lines)]
            except ContradictionError as error:
                contradictions.append(f"{load.name}: {error}")
            on_load(load)
        front_end_s = await _lone_requests(driver, log)
    elapsed_s = time.monotonic() - begun_s
    return Measurement(server, loads, steps, iterations, contradictions, front_end_s, elapsed_s)


async def _lone_requests(driver: Driver, log: IterationLog) -> list[float]:
    """Time to first token of requests on an idle server beyond their one iteration: HTTP, queues between processes."""
    ahead = []
    for _ in range(_LONE_REQUESTS):
        sent_s = time.monotonic()
        await driver.run(Load(injected=1, injected_prompt=_LONE_PROMPT))
        ttft_s = time.monotonic() - sent_s
        await asyncio.sleep(_LOG_SETTLES_S)
        lines = log.new_iterations()
        if len(lines) == 1:
            ahead.append(ttft_s - lines[0].elapsed_s)
    return ahead


def profile_of(
    measurement: Measurement, model: ModelSpec, gpu: GpuSpec, tp: int, when: str, command: str
) -> Profile:
    """Fits a profile.

    Args:
        measurement: What the log said.
        model: The served model.
        gpu: The hardware of one rank.
        tp: Ranks of the engine.
        when: Date of the measurement.
        command: What was typed.

    Raises:
        ValueError: the measurement does not suffice.
    """
    cells = cells_of(measurement.steps)
    fitted = [cell for cell in cells if not held_out(cell.load)]
    kept_out = [cell for cell in cells if held_out(cell.load)]
    coefficients = fit_coefficients(model, gpu, tp, fitted)
    return Profile(
        model=model,
        gpu=gpu,
        source="measured",
        coefficients={tp: coefficients},
        provenance=_provenance(
            measurement, cells, errors_of(model, gpu, tp, coefficients, fitted), when, command
        ),
        held_out={
            "method": HELD_OUT_METHOD,
            "configurations": len({cell.load for cell in kept_out}),
            **errors_of(model, gpu, tp, coefficients, kept_out),
        },
    )


def _provenance(
    measurement: Measurement, cells: Sequence[Cell], fitted: dict[str, Any], when: str, command: str
) -> dict[str, Any]:
    ahead = measurement.front_end_s
    return {
        "method": METHOD,
        "engine": f"vLLM {measurement.server.version}",
        "date": when,
        "command": command,
        "minutes": round(measurement.elapsed_s / 60.0, 1),
        "configurations": len(measurement.loads),
        "iterations": measurement.iterations,
        "iterations_used": sum(cell.count for cell in cells),
        "stalls_left_out": sum(cell.stalls for cell in cells),
        "runs_thrown_away": list(measurement.contradictions),
        "fit": fitted,
        # No part of the coefficients: the simulator's first token comes with the iteration's end.
        "front_end_s": {"p50": _round(np.median(ahead)), "p90": _round(np.percentile(ahead, 90))}
        if ahead
        else {},
        "notes": [
            "per-layer overhead is part of fixed_s, as one model cannot tell them apart",
            "collectives and experts are the roofline's assumptions",
        ],
    }


def _round(seconds: float) -> float:
    return float(f"{seconds:.4g}")
