"""Scrapes the servers' metrics at regular intervals and records the age of each reading."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving_gym.envs.live.gauges import Gauges, MetricNames
from serving_gym.envs.live.http import HttpClient, http_errors, read_text, why
from serving_gym.envs.live.metric_names import VLLM, usual_names
from serving_gym.envs.live.servers import MOST_PAGE_BYTES

_HEALTH_EVERY_S = 1.0
_HEALTHY = (200, 204)
_NO_SUCH_PAGE = (401, 403, 404, 405)  # a server that does not show its health to us may have it all the same
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
    the last good reading is older than `stale_after_s`. `/health` is asked for once a second; a server that says it is
    not well has a problem, one without such a page has not.

    Args:
        urls: servers.
        interval_s: time between two readings of a server, seconds.
        stale_after_s: age from which a reading is stale, seconds.

    Attributes:
        names: names of each server's metrics.
        readings: last successful reading of each server.
        problems: why a server does not answer as it should, by server; empty if it does.
        unreadable: why the last page could not be read, by server; empty if it could.
        ill: what a server's `/health` says, by server; empty if it is well or says nothing.
        before_reading: returns own requests on a server; called at the start of each reading.
        on_answer: called with a server whenever it answers, with its reading, if that could be read.
    """

    def __init__(self, urls: Sequence[str], interval_s: float, stale_after_s: float) -> None:
        self.urls = tuple(urls)
        self.interval_s = interval_s
        self.stale_after_s = stale_after_s
        self.names = [MetricNames(VLLM, usual_names(VLLM))] * len(self.urls)
        self.readings: list[Reading | None] = [None] * len(self.urls)
        self.problems = [""] * len(self.urls)
        self.unreadable = [""] * len(self.urls)
        self.ill = [""] * len(self.urls)
        self.before_reading: Callable[[int], int] = lambda server: 0
        self.on_answer: Callable[[int, Reading | None], None] = lambda server, reading: None

    def stale(self, now_s: float) -> tuple[int, ...]:
        """Servers without a fresh reading at `now_s`, monotonic seconds."""
        return tuple(
            server
            for server, reading in enumerate(self.readings)
            if reading is None or self.unreadable[server] or now_s - reading.at_s > self.stale_after_s
        )

    def answering(self, server: int) -> bool:
        """Whether a server answers as it should."""
        return not self.problems[server] and not self.ill[server]

    def suspect(self, server: int, problem: str) -> None:
        """Marks a server as unreachable until the next successful reading."""
        self.problems[server] = problem

    def forget(self, server: int) -> None:
        """Drops what is known of a server, as another one has taken its place."""
        self.readings[server] = None
        self.problems[server] = self.unreadable[server] = self.ill[server] = ""

    async def run(self, client: HttpClient) -> None:
        """Reads every server again and again until cancelled."""
        numbers = range(len(self.urls))
        async with asyncio.TaskGroup() as group:
            for server in numbers:
                group.create_task(self._follow(client, server))
                group.create_task(self._follow_health(client, server))

    async def read_all(self, client: HttpClient, within_s: float) -> None:
        """Reads every server once, and waits `within_s` seconds for an answer."""
        await asyncio.gather(*(self._read(client, server, within_s) for server in range(len(self.urls))))

    async def _follow(self, client: HttpClient, server: int) -> None:
        due_s = time.monotonic()
        within_s = max(self.stale_after_s, self.interval_s)
        while True:
            await self._read(client, server, within_s)
            due_s = max(due_s + self.interval_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def _follow_health(self, client: HttpClient, server: int) -> None:
        every_s = max(self.interval_s, _HEALTH_EVERY_S)
        while True:
            await self._ask_health(client, server, max(self.stale_after_s, every_s))
            await asyncio.sleep(every_s)

    async def _ask_health(self, client: HttpClient, server: int, within_s: float) -> None:
        try:
            async with client.get(self.urls[server], "/health", within_s) as response:
                status = response.status
        except http_errors():  # that it does not answer is seen by its metrics
            return
        if status in _HEALTHY:
            self.ill[server] = ""
            self.on_answer(server, None)
        elif status not in _NO_SUCH_PAGE:
            if not self.ill[server]:
                _log.warning(
                    "%s/health answers HTTP %d; until it is well, nothing is sent there",
                    self.urls[server],
                    status,
                )
            self.ill[server] = f"/health answers HTTP {status}"

    async def _read(self, client: HttpClient, server: int, within_s: float) -> None:
        url, names = self.urls[server], self.names[server]
        asked_s, in_flight = time.monotonic(), self.before_reading(server)
        try:
            async with client.get(url, names.family.path, within_s) as response:
                if response.status != 200:
                    self._note_problem(server, f"{names.family.path} answers HTTP {response.status}")
                    self.on_answer(server, None)
                    return
                text = await read_text(response, MOST_PAGE_BYTES)
            gauges = names.read(text, url)
        except http_errors() as error:
            self._note_problem(server, why(error))
        except ValueError as error:  # of the page
            self._note_unreadable(server, str(error))
            self.on_answer(server, None)
        else:
            reading = Reading(gauges, asked_s, in_flight)
            self.readings[server] = reading
            self.problems[server] = self.unreadable[server] = ""
            self.on_answer(server, reading)

    def _note_problem(self, server: int, problem: str) -> None:
        self.unreadable[server] = ""
        self.problems[server] = problem

    def _note_unreadable(self, server: int, reason: str) -> None:
        self.unreadable[server] = reason
        reading = self.readings[server]
        if reading is not None and time.monotonic() - reading.at_s <= self.stale_after_s:
            return
        if not self.problems[server]:
            _log.warning("%s; until it can be read again, nothing is sent to that server", reason)
        self.problems[server] = reason
