"""Gauges of a fleet's endpoints, scraped from their `/metrics`, for a `FleetView`."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from serving_gym.envs.live.scraper import Scraper
from serving_gym.envs.live.servers import open_client
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.runners.serving.fleet_view import FleetView

if TYPE_CHECKING:
    import aiohttp


class GaugeFeed:
    """Scrapes endpoints and tells a view what they say.

    Args:
        view: The view; its endpoints are `names`, in the order of the addresses.
        names: Names of the endpoints.
        settings: Their addresses, and how often to scrape.
    """

    def __init__(self, view: FleetView, names: tuple[str, ...], settings: LiveSettings) -> None:
        self._view, self._names, self._settings = view, names, settings
        self._scraper = Scraper(settings.endpoints, settings.scrape_interval_s, settings.stale_after_s)
        self._scraper.before_reading = self._requests_at
        self._client: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads every endpoint once, and from then on at intervals."""
        self._view.seat(self._names)
        self._client = open_client()
        await self._scraper.read_all(self._client, self._settings.stale_after_s)
        self.refresh()
        self._task = asyncio.create_task(self._scraper.run(self._client))

    async def stop(self) -> None:
        """Stops scraping."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def refresh(self) -> None:
        """Tells the view the last readings."""
        stale = self._scraper.stale(time.monotonic())
        for number, name in enumerate(self._names):
            reading = self._scraper.readings[number]
            problem = self._scraper.problems[number]
            if reading is None and not problem:
                problem = self._scraper.unreadable[number] or "it has not answered yet"
            self._view.read(name, reading, number in stale, problem)

    def suspect(self, name: str, problem: str) -> None:
        """An endpoint does not answer requests: nothing is sent there before its next good reading."""
        if name in self._names:
            self._scraper.suspect(self._names.index(name), problem)

    def _requests_at(self, number: int) -> int:
        place = self._view.place_of(self._names[number])
        return 0 if place is None else self._view.requests_at(place)
