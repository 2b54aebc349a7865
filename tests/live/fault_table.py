"""Tries faults of a server beside one that works: `python -m tests.live.fault_table [WORD ...]`.

The live backend has its defaults. Two servers that speak as vLLM does take 300 requests at 50/s by round robin. A
second into the run one of them gets a fault, which lasts. Printed are the requests that got no answer, and the time
until nothing more is sent to that server.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.workload.schema import Workload
from tests.live.fake_server import RUNNING, Behaviour, FakeServer

_STEP_S = 0.05
_MOST_S = 120.0


@dataclass(frozen=True)
class Fault:
    """A fault of a server.

    Attributes:
        name: What it is.
        changes: What it changes in the server's behaviour.
        kills: Whether the server ends.
    """

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    kills: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a fault came to.

    Attributes:
        lost: Requests without an answer.
        reasons: Why, with their numbers.
        noticed_s: Time from the fault until nothing is sent to the server, seconds; NaN: never.
    """

    lost: int
    reasons: dict[str, int]
    noticed_s: float


def _renamed(page: str) -> str:
    return page.replace(RUNNING, "vllm:other")


FAULTS = (
    Fault("the process ends", kills=True),
    Fault("the process stands still (SIGSTOP)", {"frozen": True}),
    Fault("the engine stands still, its pages answer", {"stuck": True}),
    Fault("`/health` answers 503", {"health_status": 503}),
    Fault("HTTP 500", {"status": 500}),
    Fault("HTTP 503", {"status": 503}),
    Fault("HTTP 429", {"status": 429}),
    Fault("HTTP 502 with a page that is no text", {"status": 502, "error_body": b"\xff\xfe\x00" * 9000}),
    Fault("HTTP 307 to another server", {"status": 307, "headers": {"Location": "http://127.0.0.1:9/"}}),
    Fault("`completion_tokens: 1e999`", {"garbage": '{"usage": {"completion_tokens": 1e999}}'}),
    Fault("JSON that is 100,000 deep", {"garbage": "[" * 100_000}),
    Fault("an error object in the stream", {"garbage": '{"error": {"message": "dead", "code": 500}}'}),
    Fault("comments for ever, no token", {"hang_after": 0, "chatter": ": here\n\n"}),
    Fault("streams break off before a token", {"break_after": 0}),
    Fault("streams break off after a token", {"break_after": 1}),
    Fault("half a page of `/metrics`", {"rewrite_page": lambda page: page[: len(page) // 2]}),
    Fault("NaN in `/metrics`", {"rewrite_page": lambda page: page.replace(" 0.0\n", " NaN\n")}),
    Fault("a metric is renamed", {"rewrite_page": _renamed}),
    Fault("`/metrics` answers 500", {"metrics_status": 500}),
)


def try_fault(fault: Fault, **settings: Any) -> Verdict:
    """Serves a stream over two servers, one of which gets a fault.

    Args:
        fault: which.
        settings: of the live backend, in place of the defaults.
    """
    requests = 300
    workload = Workload(
        arrival_s=np.arange(requests) * 0.02,
        input_tokens=np.full(requests, 20),
        output_tokens=np.full(requests, 6),
    )
    first, second = FakeServer(Behaviour(first_token_s=0.05)), FakeServer(Behaviour(first_token_s=0.05))
    with first, second:
        spec = ClusterSpec(num_gpus=2, router="round_robin", order="fcfs")
        with LiveBackend(
            spec, (SLO(0.5, 0.05),), LiveSettings((first.url, second.url), **settings)
        ) as backend:
            backend.reset(workload)
            backend.advance(1.0)
            begun_s = time.monotonic()
            if fault.kills:
                first._loop.run(first._runner.cleanup())
            for name, value in fault.changes.items():
                setattr(first.behaviour, name, value)
            noticed_s = _watch(backend, begun_s)
            records = backend.results()
            return Verdict(
                int((records.outcome != FINISHED).sum()), backend.client_health().failed, noticed_s
            )


def _watch(backend: LiveBackend, begun_s: float) -> float:
    """Serves what is left; returns when the first server was left alone for the first time."""
    noticed_s = float("nan")
    while not backend.idle and backend.now_s < _MOST_S:
        backend.advance(backend.now_s + _STEP_S)
        if np.isnan(noticed_s) and not _takes_requests(backend):
            noticed_s = time.monotonic() - begun_s
    return noticed_s


def _takes_requests(backend: LiveBackend) -> bool:
    def look() -> bool:
        return backend._session.candidates()[0].available

    return backend._loop.call(look)


def main(
    report: Callable[[str], object] = print, faults: tuple[Fault, ...] = FAULTS, **settings: Any
) -> None:
    """Prints the table."""
    report("| fault | lost of 300 | noticed after, s | why |\n|---|---|---|---|")
    for fault in faults:
        verdict = try_fault(fault, **settings)
        why = "; ".join(f"{reason} ({number})" for reason, number in verdict.reasons.items())
        report(f"| {fault.name} | {verdict.lost} | {verdict.noticed_s:.1f} | {why} |")


if __name__ == "__main__":
    for name in ("serving_gym", "aiohttp.server"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    chosen = tuple(fault for fault in FAULTS if all(word in fault.name for word in sys.argv[1:]))
    main(faults=chosen)
