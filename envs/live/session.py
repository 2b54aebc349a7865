"""The part of the live body that lives in the loop's thread: servers, scraping, replay, and what they show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from envs.backend import SLO
from envs.live.gauges import NOTHING
from envs.live.ledger import Ledger
from envs.live.observation import Snapshot, fill_row
from envs.live.prompts import Prompts
from envs.live.replay import Replay
from envs.live.routers import Candidate, Router
from envs.live.scraper import Scraper
from envs.live.servers import Server, probe
from envs.live.settings import LiveSettings

if TYPE_CHECKING:
    import aiohttp

    from envs.workload.schema import Workload

EMPTY_WITHIN_S = 30.0
_POLL_S = 0.2


class LiveSession:
    """Attached servers, and one run after another on them.

    Args:
        settings: how to deal with the servers.
        max_num_seqs: most running requests of each server, in the order of the addresses.
        order: queue order of the servers, fcfs or priority.
        router: built-in router; None: requests wait until somebody sends them.
        on_arrival: told each row of the workload once it has arrived, and been routed where there is a router.
        on_return: told each row whose server was lost before its first token; None: it is routed anew.

    Attributes:
        servers: what the servers say they are, by engine.
        ledger: books of the present run.
        replay: the present run.
        scraper: readings of `/metrics`.
        in_service: whether a server is to get requests; all are unless somebody says otherwise.
    """

    servers: tuple[Server, ...]
    ledger: Ledger
    replay: Replay
    scraper: Scraper

    def __init__(
        self,
        settings: LiveSettings,
        max_num_seqs: Sequence[int],
        order: str,
        router: str | None,
        on_arrival: Callable[[int], None],
        on_return: Callable[[int], None] | None = None,
    ) -> None:
        self.settings, self.max_num_seqs, self.order, self.router = settings, max_num_seqs, order, router
        self.on_arrival, self.on_return = on_arrival, on_return
        self.in_service: Callable[[int], bool] = lambda server: True
        self._client: aiohttp.ClientSession | None = None
        self._scraping: asyncio.Task[None] | None = None
        self._replaying: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the present run's clock has started."""
        return self._replaying is not None

    @property
    def trouble(self) -> BaseException | None:
        """What ended the present run before its time."""
        if self.scraper.missing is not None:
            return self.scraper.missing
        task = self._replaying
        if task is not None and self.replay.failure is not None:
            return self.replay.failure
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    async def attach(self, urls: tuple[str, ...]) -> None:
        """Asks every server that is in service what it is; the others are taken to be as the first of them.

        Raises:
            ValueError: one does not answer as vLLM does, or none is in service.
        """
        import aiohttp

        connector = aiohttp.TCPConnector(limit=0)  # an open loop: the client never holds a request back
        self._client = aiohttp.ClientSession(connector=connector, read_bufsize=1 << 18)
        self.scraper = Scraper(urls, self.settings.scrape_interval_s, self.settings.stale_after_s)
        model = self.settings.model
        asked = [number for number in range(len(urls)) if self.in_service(number)]
        if not asked:
            raise ValueError("no server is in service")
        answers = await asyncio.gather(*(probe(self._client, urls[number], model) for number in asked))
        known = dict(zip(asked, answers, strict=True))
        self.servers = tuple(
            known.get(number) or replace(answers[0], url=url) for number, url in enumerate(urls)
        )

    async def detach(self) -> None:
        """Drops what is in flight and lets go of the servers."""
        await self._stop()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def drop(self) -> None:
        """Drops what is in flight."""
        await self._stop()

    async def prepare(self, workload: Workload, slos: tuple[SLO, ...]) -> None:
        """Drops what is in flight, waits until the servers are empty, and opens new books.

        Raises:
            ValueError: a server cannot be read, or does not become empty.
        """
        assert self._client is not None
        await self._stop()
        await self._wait_until_empty(self._client)
        self._base = [NOTHING if reading is None else reading.gauges for reading in self.scraper.readings]
        self.ledger = Ledger(workload, slos, len(self.servers))
        self.scraper.before_reading = lambda server: len(self.ledger.engines[server].in_flight)
        self.replay = Replay(
            session=self._client,
            servers=self.servers,
            ledger=self.ledger,
            prompts=Prompts(workload, self.settings.vocab_size, self.settings.salt),
            router=None if self.router is None else Router(self.router),
            candidates=self.candidates,
            send_priority=self.order == "priority",
            silence_s=self.settings.silence_s,
            on_arrival=self.on_arrival,
            on_return=self.on_return,
            on_unreachable=self.scraper.suspect,
        )
        self._scraping = asyncio.create_task(self.scraper.run(self._client))

    def begin(self) -> None:
        """Starts the clock and the arrivals."""
        self._replaying = asyncio.get_running_loop().create_task(self.replay.run())

    def fill_rows(self, rows: NDArray[np.void], now_s: float) -> None:
        """Fills the first rows of ENGINE_STATE_DTYPE, one a server, as of `now_s`, seconds since the run began."""
        for number, server in enumerate(self.servers):
            load, most = self.ledger.engines[number], self.max_num_seqs[number]
            fill_row(rows[number], server, self._snapshot(number), load, most, now_s)

    def gauges_s(self) -> float:
        """When the oldest of the present readings was asked for, seconds since the run began."""
        asked_s = [reading.at_s for reading in self.scraper.readings if reading is not None]
        return min(min(asked_s) - self.replay.begun_s, self.replay.now_s) if self.begun else 0.0

    def stale(self) -> tuple[int, ...]:
        """Engines without a fresh reading."""
        return self.scraper.stale(time.monotonic())

    async def _stop(self) -> None:
        """Ends replay, streams and scraping."""
        for task in (self._replaying, self._scraping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._replaying is not None:
            await self.replay.abort()
        self._replaying = self._scraping = None

    async def _wait_until_empty(self, client: aiohttp.ClientSession) -> None:
        deadline_s = time.monotonic() + EMPTY_WITHIN_S
        while True:
            await self.scraper.read_all(client)
            for number, (url, problem) in enumerate(
                zip(self.scraper.urls, self.scraper.problems, strict=True)
            ):
                if problem and self.in_service(number):
                    raise ValueError(f"cannot read {url}/metrics: {problem}")
            busy = [
                0 if reading is None or not self.in_service(number) else reading.gauges.num_requests
                for number, reading in enumerate(self.scraper.readings)
            ]
            if not any(busy):
                return
            if time.monotonic() > deadline_s:
                raise ValueError(
                    f"{self.scraper.urls[busy.index(max(busy))]} still has {max(busy)} requests after "
                    f"{EMPTY_WITHIN_S:g} s; is somebody else using it?"
                )
            await asyncio.sleep(_POLL_S)

    def candidates(self) -> list[Candidate]:
        """Engines as the router sees them; one out of service or whose last reading failed is passed over."""
        return [
            Candidate(
                available=self.in_service(number) and not self.scraper.problems[number],
                most_tokens=server.most_tokens,
                requests=len(load.in_flight),
                tokens=load.pending_tokens + load.context_tokens,
            )
            for number, (server, load) in enumerate(zip(self.servers, self.ledger.engines, strict=True))
        ]

    def _snapshot(self, number: int) -> Snapshot:
        reading = self.scraper.readings[number]
        return Snapshot(
            gauges=NOTHING if reading is None else reading.gauges,
            base=self._base[number],
            in_flight_then=0 if reading is None else reading.in_flight,
            fresh=number not in self.stale(),
            answering=not self.scraper.problems[number],
        )
