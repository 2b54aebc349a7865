"""Reads the pages of vLLM servers and of `runners.serve`; a page that cannot be read makes its reading stale."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving_gym.envs.live.gauges import Gauges, read_gauges

if TYPE_CHECKING:
    import aiohttp

ENGINE, POLICY = "engine", "policy"
STATUS_PATHS = ("/v1/status", "/status")
_MOST_BYTES = 16 * 2**20  # of a page
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
        rates: Prompt and generated tokens a second between the last two readings of an engine; None before the second.
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
    rates: tuple[float, float] | None = None
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
            prompt = gauges.prompt_tokens - before.prompt_tokens
            generated = gauges.generation_tokens - before.generation_tokens
            if min(prompt, generated) < 0:  # the server was started again
                self.rates = None
            else:
                self.rates = prompt / (at_s - before_s), generated / (at_s - before_s)
        self.gauges = gauges
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


async def read_all(session: aiohttp.ClientSession, watched: Sequence[Watched], within_s: float) -> None:
    """Reads every address once, side by side, and waits at most `within_s` seconds for each page."""
    await asyncio.gather(*(_read(session, each, within_s) for each in watched))


async def _read(session: aiohttp.ClientSession, watched: Watched, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            if watched.kind != ENGINE and await _read_status(session, watched):
                return
            if watched.kind == POLICY:
                raise ValueError(f"{watched.url}{STATUS_PATHS[0]} does not answer as runners.serve does")
            at_s = time.monotonic()
            text = (await _page(session, f"{watched.url}/metrics")).decode("utf-8")
            watched.note_gauges(read_gauges(text, watched.url), at_s)
    except TimeoutError:
        watched.note_failure(f"no answer within {within_s:g} s")
    except Exception as error:  # noqa: BLE001 -- whatever a server sends, the others are watched on
        watched.note_failure(" ".join(f"{type(error).__name__}: {error}".split()).rstrip(": "))


async def _read_status(session: aiohttp.ClientSession, watched: Watched) -> bool:
    """Reads the status of a serving process; returns whether the address is one."""
    import aiohttp

    for path in STATUS_PATHS:
        at_s = time.monotonic()
        try:
            page = await _page(session, f"{watched.url}{path}")
        except aiohttp.ClientResponseError as error:
            if error.status in (404, 405):
                continue
            raise
        status = json.loads(page)
        if isinstance(status, dict) and "policy" in status:
            watched.note_status(status, at_s)
            return True
    return False


async def _page(session: aiohttp.ClientSession, url: str) -> bytes:
    """A page.

    Raises:
        aiohttp.ClientError: It cannot be had, or has another status than 200.
        ValueError: It is too long.
    """
    async with session.get(url, allow_redirects=False) as response:
        response.raise_for_status()
        if response.status != 200:
            raise ValueError(f"{url} answers with status {response.status}")
        page = await response.content.read(_MOST_BYTES + 1)
        while len(page) <= _MOST_BYTES and (more := await response.content.read(_MOST_BYTES)):
            page += more
    if len(page) > _MOST_BYTES:
        raise ValueError(f"{url} sends more than {_MOST_BYTES >> 20} MiB")
    return page


def number_in(status: Mapping[str, Any], *names: str) -> float | None:
    """The first number under one of some names, of an object or of its `counts`; None: there is none."""
    nested = [value for value in status.values() if isinstance(value, Mapping)]
    for name in names:
        for place in (status, *nested):
            value = place.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    return None
