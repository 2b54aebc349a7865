"""Time of a decision of `runners.serve`, as a client in another process measures it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE
from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.serving.wire import state_form
from serving_gym.runners.speed.measurement import Measurement

PLACES, IN_FLIGHT = 64, 1000
_DECISIONS, _WARM = 1500, 200
_CHANGED, _READ = 100, 8  # requests with new tokens, and engines with new gauges, from decision to decision
_WORDS = ("env=routing", "cluster=fleet_mixed_x64", "policy=jsq", "port=0")
_PERCENTILES = (99, 50)


class _Caller:
    """Asks about a state that changes, in one form.

    Args:
        form: json (whole states as rows), bytes (whole states, tables as base64) or session (changes).
    """

    def __init__(self, form: str) -> None:
        self.form = form
        self._rng = np.random.default_rng(0)
        self._rows = np.zeros(IN_FLIGHT, IN_FLIGHT_DTYPE)
        self._rows["index"], self._rows["place"] = np.arange(IN_FLIGHT), np.arange(IN_FLIGHT) % PLACES
        self._rows["input_tokens"], self._rows["predicted_tokens"] = 1000, 200
        self._engines = [
            {"num_running": 16, "kv_capacity_blocks": 9000, "kv_capacity_tokens": 144_000}
        ] * PLACES
        self._step = 0
        self._session: dict[str, Any] = {}

    def ask(self, connection: http.client.HTTPConnection) -> float:
        """Seconds of a decision, without writing the question."""
        self._step += 1
        body = json.dumps(self._question(connection)).encode()
        begun_s = time.perf_counter()
        said = _post(connection, "/v1/decide", body)
        took_s = time.perf_counter() - begun_s
        self._session |= {"since": said.get("n", 0)}
        if said["by"] != "policy":
            raise ValueError(f"the service answers by its {said['by']}: {said['error']}")
        return took_s

    def _question(self, connection: http.client.HTTPConnection) -> dict[str, Any]:
        request = {"index": IN_FLIGHT + self._step, "arrival_s": 0.01 * self._step, "input_tokens": 500}
        news = {"now_s": 0.01 * self._step, "request": request}
        if self.form == "session":
            if "session" not in self._session:
                whole = json.dumps({"state": self._whole(news)}).encode()
                said = _post(connection, "/v1/session", whole)
                self._session = {"session": said["session"], "since": said["n"]}
            return {**self._session, "changes": {**news, **self._changes()}}
        return {"state": self._whole(news)}

    def _whole(self, news: dict[str, Any]) -> dict[str, Any]:
        if self.form == "json":
            names = IN_FLIGHT_DTYPE.names or ()
            in_flight: Any = [dict(zip(names, row, strict=True)) for row in self._rows.tolist()]
        else:
            in_flight = state_form("routing").fields["in_flight"].write(self._rows)
        return {**news, "engines": self._engines, "in_flight": in_flight}

    def _changes(self) -> dict[str, Any]:
        """The oldest request ends, one comes, and some go on."""
        first = self._step  # of those in flight, by index; the last one is new
        longer = [*(first + self._rng.choice(IN_FLIGHT - 1, _CHANGED, replace=False)), first + IN_FLIGHT - 1]
        engines = self._rng.choice(PLACES, _READ, replace=False)
        return {
            "in_flight": {
                "remove": [first - 1],
                "set": {
                    "index": [int(index) for index in longer],
                    "place": [int(index) % PLACES for index in longer],
                    "input_tokens": [1000] * len(longer),
                    "generated_tokens": [self._step % 200] * len(longer),
                },
            },
            "engines": {"rows": engines.tolist(), "set": {"num_running": [17] * _READ}},
        }


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> dict[str, Any]:
    connection.request("POST", path, body)
    response = connection.getresponse()
    said: dict[str, Any] = json.loads(response.read())
    if response.status != 200:
        raise ValueError(f"the service answers {response.status}: {said.get('error')}")
    return said


@contextlib.contextmanager
def _service() -> Iterator[http.client.HTTPConnection]:
    """A connection to a service that has one core to itself, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "runners.serve", *_WORDS, f"out={folder}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            os.sched_setaffinity(process.pid, cores[:1])
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise ValueError("the service did not start")
            address = line.split()[-1].partition("://")[2]
            os.sched_setaffinity(0, cores[1:] or cores)
            yield http.client.HTTPConnection(address, timeout=30)
        finally:
            os.sched_setaffinity(0, cores)
            process.terminate()
            process.communicate(timeout=60)


def decisions(config: BenchConfig) -> Iterator[Measurement]:
    """Percentiles of the time of a decision about 64 places and 1,000 requests in flight, by form of the states."""
    for form in ("json", "bytes", "session"):
        params = {"form": form, "places": PLACES, "in_flight": IN_FLIGHT}
        runs: list[np.ndarray] = []
        for percentile in _PERCENTILES:
            yield Measurement(
                "serve.ms", "ms", {**params, "p": percentile}, _percentile(form, percentile, runs)
            )


def _percentile(form: str, percentile: int, runs: list[Any]) -> Callable[[], float]:
    """A run: the first percentile's asks, the others' take its times."""

    def run() -> float:
        if percentile == _PERCENTILES[0]:
            runs.append(_times(form))
            return float(np.percentile(runs[-1], percentile))
        return float(np.percentile(runs.pop(0), percentile))

    return run


def _times(form: str) -> Any:
    """(decisions,), milliseconds."""
    caller = _Caller(form)
    with _service() as connection:
        times_s = [caller.ask(connection) for _ in range(_WARM + _DECISIONS)]
        connection.close()
    return 1e3 * np.array(times_s[_WARM:])
