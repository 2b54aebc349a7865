"""Scrapes the servers' `/metrics` at regular intervals and records the age of each reading."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving_gym.envs.live.gauges import Gauges, read_gauges

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """The last successful reading of a server.

    Attributes:
        gauges: The values.
        at_s: Time of the request, monotonic seconds.
        in_flight: Own requests on the server at that time.
    """

    gauges: Gauges
    at_s: float
    in_flight: int


class Scraper:
    """Keeps the last reading of each server.

    A page that cannot be read makes the reading stale, and the server is read again the next time. It is a problem once
    the last good reading is older than `stale_after_s`.

    Args:
        urls: servers.
        interval_s: time between two readings of a server, seconds.
        stale_after_s: age from which a reading is stale, seconds.

    Attributes:
        readings: last successful reading of each server.
        problems: why a server does not answer as it should, by server; empty if it does.
        unreadable: why the last page could not be read, by server; empty if it could.
        before_reading: returns own requests on a server; called at the start of each reading.
    """

    def __init__(self, urls: Sequence[str], interval_s: float, stale_after_s: float) -> None:
        self.urls = tuple(urls)
        self.interval_s = interval_s
        self.stale_after_s = stale_after_s
        self.readings: list[Reading | None] = [None] * len(self.urls)
        self.problems = [""] * len(self.urls)
        self.unreadable = [""] * len(self.urls)
        self.before_reading: Callable[[int], int] = lambda server: 0

    def stale(self, now_s: float) -> tuple[int, ...]:
        """Servers without a fresh reading at `now_s`, monotonic seconds."""
        return tuple(
            server
            for server, reading in enumerate(self.readings)
            if reading is None or self.unreadable[server] or now_s - reading.at_s > self.stale_after_s
        )

    def suspect(self, server: int, problem: str) -> None:
        """Marks a server as unreachable until the next successful reading."""
        self.problems[server] = problem

    def forget(self, server: int) -> None:
        """Drops what is known of a server, as another one has taken its place."""
        self.readings[server], self.problems[server], self.unreadable[server] = None, "", ""

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Reads every server again and again until cancelled."""
        await asyncio.gather(*(self._follow(session, server) for server in range(len(self.urls))))

    async def read_all(self, session: aiohttp.ClientSession, within_s: float) -> None:
        """Reads every server once, and waits `within_s` seconds for an answer."""
        await asyncio.gather(*(self._read(session, server, within_s) for server in range(len(self.urls))))

    async def _follow(self, session: aiohttp.ClientSession, server: int) -> None:
        due_s = time.monotonic()
        within_s = max(self.stale_after_s, self.interval_s)
        while True:
            await self._read(session, server, within_s)
            due_s = max(due_s + self.interval_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def _read(self, session: aiohttp.ClientSession, server: int, within_s: float) -> None:
        import aiohttp

        asked_s, in_flight = time.monotonic(), self.before_reading(server)
        within = aiohttp.ClientTimeout(total=within_s)
        try:
            async with session.get(f"{self.urls[server]}/metrics", timeout=within) as response:
                response.raise_for_status()
                text = await response.text()
            self.readings[server] = Reading(read_gauges(text, self.urls[server]), asked_s, in_flight)
            self.problems[server] = self.unreadable[server] = ""
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self.unreadable[server] = ""
            self.problems[server] = f"{type(error).__name__}: {error}".rstrip(": ")
        except ValueError as error:  # of the page, or its encoding
            self._note_unreadable(server, str(error))

    def _note_unreadable(self, server: int, reason: str) -> None:
        self.unreadable[server] = reason
        reading = self.readings[server]
        if reading is not None and time.monotonic() - reading.at_s <= self.stale_after_s:
            return
        if not self.problems[server]:
            _log.warning("%s; until it can be read again, nothing is sent to that server", reason)
        self.problems[server] = reason
