"""Time of a request outside its iterations: HTTP, validation, queues between processes.

Requests of known prompts are sent for a single token each, alone and beside others that decode. What an engine's first
token takes beyond the iteration that computes it, by the fitted model, is the front end's: a constant and a part per
token of the prompt. Beside others a request also waits for the iteration in flight, half of one on the average as it
comes at any moment, and for those that were decided before it was seen: with asynchronous scheduling one, which a
simulated engine that schedules so has itself.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.latency import LatencyModel
from serving_gym.runners.measuring.drive import Driver
from serving_gym.runners.measuring.loads import Limits, Load

LONE_PROBES = 10  # of each length
BUSY_PROBES = 16
_BUSY_BATCH, _BUSY_PROMPT = 4, 64
_SHORT, _PAUSE_S = 32, 0.15  # tokens; longest pause between two probes, s
IN_FLIGHT = 0.5  # mean rest of an iteration at a moment of no regard to it


@dataclass(frozen=True, slots=True)
class Probe:
    """A request for one token.

    Attributes:
        prompt: Its length, tokens.
        ttft_s: Time to its token at the client, s.
        decoding: Requests that decoded beside it.
        context_tokens: Their context together, tokens.
    """

    prompt: int
    ttft_s: float
    decoding: int = 0
    context_tokens: float = 0.0


async def probe_front_end(driver: Driver, limits: Limits) -> list[Probe]:
    """Sends the probes; every prompt fits one iteration."""
    longest = min(limits.max_num_batched_tokens, limits.max_model_len - 1)
    probes = []
    for prompt in sorted({min(_SHORT, longest), longest // 3, longest}):
        for _ in range(LONE_PROBES):
            await asyncio.sleep(driver.pause_s(_PAUSE_S))
            probes.append(Probe(prompt, await driver.first_token_s(prompt)))
    return probes + await _busy_probes(driver, limits)


async def _busy_probes(driver: Driver, limits: Limits) -> list[Probe]:
    """Probes at random moments while others decode; none where the engine has no room for both."""
    output = min(limits.max_model_len - _BUSY_PROMPT, limits.kv_tokens // (2 * _BUSY_BATCH)) - 1
    if limits.max_num_seqs <= _BUSY_BATCH or output < _BUSY_PROMPT:
        return []
    probes: list[Probe] = []
    while len(probes) < BUSY_PROBES:
        others = asyncio.create_task(driver.run(Load(_BUSY_BATCH, _BUSY_PROMPT, output)))
        try:
            await asyncio.sleep(2 * _PAUSE_S)  # until they decode
            while not others.done() and len(probes) < BUSY_PROBES:
                ttft_s = await driver.first_token_s(_SHORT)
                if not others.done():
                    context = _BUSY_BATCH * (_BUSY_PROMPT + output / 2)
                    probes.append(Probe(_SHORT, ttft_s, _BUSY_BATCH, context))
                await asyncio.sleep(driver.pause_s(_PAUSE_S))
        finally:
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)
    return probes


def fit_front_end(latency: LatencyModel, probes: Sequence[Probe], asynchronous: bool = False) -> Frontend:
    """The front end by its probes: medians of each kind, as a stalled machine makes some take any time.

    Args:
        latency: What the iterations take.
        probes: What was measured; without any nothing is known and nothing assumed.
        asynchronous: Whether the engine schedules asynchronously, so that the iteration after the one in flight is
            not the front end's.
    """
    beyond: dict[int, list[float]] = defaultdict(list)
    for probe in probes:
        if not probe.decoding:
            beyond[probe.prompt].append(probe.ttft_s - latency.iteration_s(0, 0, [(0, probe.prompt)]))
    if not beyond:
        return Frontend()
    rows = np.array([[1.0, prompt] for prompt in beyond])
    (fixed_s, token_s), _ = nnls(rows, np.maximum([np.median(each) for each in beyond.values()], 0.0))
    waits = [
        (probe.ttft_s - fixed_s - token_s * probe.prompt - _mixed_s(latency, probe)) / _step_s(latency, probe)
        for probe in probes
        if probe.decoding
    ]
    pipeline = max(float(np.median(waits)) - IN_FLIGHT - asynchronous, 0.0) if waits else 0.0
    return Frontend(*(float(f"{value:.4g}") for value in (fixed_s, token_s, pipeline)))


def _mixed_s(latency: LatencyModel, probe: Probe) -> float:
    """The iteration that computes a probe beside others."""
    return latency.iteration_s(probe.decoding, int(probe.context_tokens), [(0, probe.prompt)])


def _step_s(latency: LatencyModel, probe: Probe) -> float:
    """An iteration of those others alone."""
    return latency.iteration_s(probe.decoding, int(probe.context_tokens))
