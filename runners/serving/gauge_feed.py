"""Gauges of a fleet's endpoints, scraped from their `/metrics`, for a `FleetView`."""

from __future__ import annotations

import asyncio
import logging
import time

from serving_gym.envs.live.access import access_by_url
from serving_gym.envs.live.http import HttpClient
from serving_gym.envs.live.scraper import Scraper
from serving_gym.envs.live.servers import Server, probe
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.runners.serving.fleet_view import FleetView

_PROBE_EVERY_S = 1.0  # an endpoint that has not answered yet
_log = logging.getLogger(__name__)


class GaugeFeed:
    """Reads what endpoints are, scrapes their gauges, and tells a view.

    An endpoint that does not answer is asked again every second and gets nothing until it does.

    Args:
        view: The view; its endpoints are `names`, in the order of the addresses.
        names: Names of the endpoints.
        settings: Their addresses and credentials, and how often to scrape.
    """

    def __init__(self, view: FleetView, names: tuple[str, ...], settings: LiveSettings) -> None:
        self._view, self._names, self._settings = view, names, settings
        self._servers: list[Server | None] = [None] * len(names)
        self._unprobed = [""] * len(names)  # why
        self._scraper = Scraper(settings.endpoints, settings.scrape_interval_s, settings.stale_after_s)
        self._scraper.before_reading = self._requests_at
        self._client: HttpClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Reads every endpoint once, and from then on at intervals."""
        settings = self._settings
        self._view.seat(self._names)
        self._client = HttpClient(access_by_url(settings.endpoints, settings.access, settings.access_of))
        await self._probe_missing(self._client)
        await self._scraper.read_all(self._client, settings.stale_after_s)
        self.refresh()
        self._tasks = [
            asyncio.create_task(self._scraper.run(self._client)),
            asyncio.create_task(self._keep_probing(self._client)),
        ]

    async def stop(self) -> None:
        """Stops reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def refresh(self) -> None:
        """Tells the view the last readings."""
        stale, scraper = self._scraper.stale(time.monotonic()), self._scraper
        for number, name in enumerate(self._names):
            reading = scraper.readings[number]
            problem = self._unprobed[number] or scraper.problems[number] or scraper.ill[number]
            if reading is None and not problem:
                problem = scraper.unreadable[number] or "it has not answered yet"
            self._view.read(name, reading, number in stale, problem)

    def suspect(self, name: str, problem: str) -> None:
        """An endpoint does not answer requests: nothing is sent there before its next good reading."""
        if name in self._names:
            self._scraper.suspect(self._names.index(name), problem)

    async def _keep_probing(self, client: HttpClient) -> None:
        while True:
            await asyncio.sleep(_PROBE_EVERY_S)
            await self._probe_missing(client)

    async def _probe_missing(self, client: HttpClient) -> None:
        missing = [number for number, server in enumerate(self._servers) if server is None]
        await asyncio.gather(*(self._probe(client, number) for number in missing))

    async def _probe(self, client: HttpClient, number: int) -> None:
        try:
            server = await probe(client, self._settings.endpoints[number], self._settings.model)
        except ValueError as error:
            if not self._unprobed[number]:
                _log.warning("%s; until then nothing is sent there", error)
            self._unprobed[number] = str(error)
            return
        self._servers[number], self._unprobed[number] = server, ""
        self._scraper.names[number] = server.names
        self._view.describe(self._names[number], server)

    def _requests_at(self, number: int) -> int:
        place = self._view.place_of(self._names[number])
        return 0 if place is None else self._view.requests_at(place)
