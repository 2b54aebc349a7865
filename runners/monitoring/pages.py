"""Reads the pages of vLLM servers and of `runners.serve`; a page that cannot be read makes its reading stale."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving_gym.envs.live.gauges import Gauges, MetricNames, find_names
from serving_gym.envs.live.http import HttpClient, read_text, why
from serving_gym.envs.live.metric_names import FAMILIES
from serving_gym.envs.live.servers import MOST_PAGE_BYTES

ENGINE, POLICY = "engine", "policy"
STATUS_PATHS = ("/v1/status", "/status")
_NO_SUCH_PAGE = (404, 405)
_REMEMBERED = 60  # readings in a sparkline


@dataclass
class Watched:
    """One address and what was last read there.

    Attributes:
        url: The address, `http://HOST:PORT`.
        kind: ENGINE, POLICY, or "" as long as it has not answered.
        read_s: Time of the last good reading, monotonic seconds; None: there was none.
        problem: Why the last page could not be read; empty if it could.
        readings: Good readings.
        failures: Pages that could not be read.
        gauges: Of an engine, as last read.
        rates: Prompt and generated tokens a second between the last two readings of an engine; None: not known.
        names: By which names an engine tells what is read.
        status: Of a serving process, as last read.
        history: Requests in batch and queue of an engine at the last readings.
    """

    url: str
    kind: str = ""
    read_s: float | None = None
    problem: str = ""
    readings: int = 0
    failures: int = 0
    gauges: Gauges | None = None
    rates: tuple[float | None, float | None] = (None, None)
    names: MetricNames | None = None
    status: dict[str, Any] = field(default_factory=dict)
    history: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def age_s(self, now_s: float) -> float | None:
        """Age of the last good reading, seconds; None: there was none."""
        return None if self.read_s is None else max(now_s - self.read_s, 0.0)

    def is_stale(self, now_s: float, stale_after_s: float) -> bool:
        """Whether the last page could not be read, or the last good reading is too old."""
        age_s = self.age_s(now_s)
        return bool(self.problem) or age_s is None or age_s > stale_after_s

    def note_gauges(self, gauges: Gauges, at_s: float) -> None:
        """Keeps a reading of an engine."""
        before, before_s = self.gauges, self.read_s
        if before is not None and before_s is not None and at_s > before_s:
            self.rates = (
                _rate(before.prompt_tokens, gauges.prompt_tokens, at_s - before_s),
                _rate(before.generation_tokens, gauges.generation_tokens, at_s - before_s),
            )
        self.gauges = gauges
        if gauges.num_requests is not None:
            self.history.append(gauges.num_requests)
        self._note(ENGINE, at_s)

    def note_status(self, status: dict[str, Any], at_s: float) -> None:
        """Keeps a reading of a serving process."""
        self.status = status
        self._note(POLICY, at_s)

    def note_failure(self, problem: str) -> None:
        """Keeps why a page could not be read; what was read before stays."""
        self.failures += 1
        self.problem = problem

    def _note(self, kind: str, at_s: float) -> None:
        self.kind, self.read_s, self.problem = kind, at_s, ""
        self.readings += 1


async def read_all(client: HttpClient, watched: Sequence[Watched], within_s: float) -> None:
    """Reads every address once, side by side, and waits at most `within_s` seconds for each."""
    await asyncio.gather(*(_read(client, each, within_s) for each in watched))


async def _read(client: HttpClient, watched: Watched, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            if watched.kind != ENGINE and await _read_status(client, watched, within_s):
                return
            if watched.kind == POLICY:
                raise ValueError(f"{watched.url}{STATUS_PATHS[0]} does not answer as runners.serve does")
            await _read_gauges(client, watched, within_s)
    except TimeoutError:
        watched.note_failure(f"no answer within {within_s:g} s")
    except Exception as error:  # noqa: BLE001 -- whatever a server sends, the others are watched on
        watched.note_failure(why(error))


async def _read_status(client: HttpClient, watched: Watched, within_s: float) -> bool:
    """Reads the status of a serving process; returns whether the address is one."""
    for path in STATUS_PATHS:
        at_s = time.monotonic()
        page = await _page(client, watched.url, path, within_s)
        status = None if page is None else json.loads(page)
        if isinstance(status, dict) and "policy" in status:
            watched.note_status(status, at_s)
            return True
    return False


async def _read_gauges(client: HttpClient, watched: Watched, within_s: float) -> None:
    """Reads the metrics of an engine, of any server that is known.

    Raises:
        ValueError: There is no such page, or it is of no known server.
    """
    paths = dict.fromkeys(family.path for family in FAMILIES)
    for path in [watched.names.family.path] if watched.names is not None else paths:
        at_s = time.monotonic()
        page = await _page(client, watched.url, path, within_s)
        if page is not None:
            if watched.names is None:
                watched.names = find_names(page, f"{watched.url}{path}")
            watched.note_gauges(watched.names.read(page, watched.url), at_s)
            return
    raise ValueError(f"{watched.url} has neither {STATUS_PATHS[0]} nor {' nor '.join(paths)}")


async def _page(client: HttpClient, url: str, path: str, within_s: float) -> str | None:
    """A page; None: there is none.

    Raises:
        ValueError: It has another status than 200, does not end, or is no text.
    """
    async with client.get(url, path, within_s) as response:
        if response.status in _NO_SUCH_PAGE:
            return None
        if response.status != 200:
            raise ValueError(f"{path} answers HTTP {response.status}")
        return await read_text(response, MOST_PAGE_BYTES)


def _rate(before: int | None, now: int | None, seconds: float) -> float | None:
    """Tokens a second; None: not told, or the server was started again."""
    return None if before is None or now is None or now < before else (now - before) / seconds


def number_in(status: Mapping[str, Any], *names: str) -> float | None:
    """The first number under one of some names, of an object or of its `counts`; None: there is none."""
    nested = [value for value in status.values() if isinstance(value, Mapping)]
    for name in names:
        for place in (status, *nested):
            value = place.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    return None
