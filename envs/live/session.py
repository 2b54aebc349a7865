"""The part of the live backend in the loop's thread: servers, scraping, replay and observation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.gauges import NOTHING, Gauges
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.observation import Snapshot, fill_row
from serving_gym.envs.live.prompts import Prompts
from serving_gym.envs.live.replay import Replay
from serving_gym.envs.live.routers import Candidate, Chooser, Router
from serving_gym.envs.live.scraper import Scraper
from serving_gym.envs.live.servers import Server, open_client, probe
from serving_gym.envs.live.settings import LiveSettings

if TYPE_CHECKING:
    import aiohttp

    from serving_gym.envs.workload.schema import Workload

EMPTY_WITHIN_S = 30.0
_POLL_S = 0.2


class LiveSession:
    """Attached servers, and successive runs on them.

    Args:
        settings: connection settings.
        max_num_seqs: most running requests of each server, in the order of the addresses.
        order: queue order of the servers, fcfs or priority.
        router: built-in router, or another one; None: requests wait until they are sent explicitly.
        on_arrival: called with each row that has arrived, after routing if there is a router.
        on_return: called with each row whose server was lost before its first token; None: it is routed again.

    Attributes:
        servers: server information, by engine; the expected information if a server was not probed yet.
        ledger: records of the present run.
        replay: the present run.
        scraper: readings of `/metrics`.
        in_service: whether a server takes requests; by default all do.
        server_is_coming: whether a server is starting that requests may wait for; by default none is.
        on_hung: called with a server that makes no progress, and why it is taken to hang.
        on_record: called with the record of each request of the next runs that has ended.
        longest: longest request of a row, prompt and answer, tokens; by default what one of the servers takes, within
            `settings.max_model_len`.
    """

    servers: list[Server]
    ledger: Ledger
    replay: Replay
    scraper: Scraper

    def __init__(
        self,
        settings: LiveSettings,
        max_num_seqs: Sequence[int],
        order: str,
        router: str | Chooser | None,
        on_arrival: Callable[[int], None],
        on_return: Callable[[int], None] | None = None,
    ) -> None:
        self.settings, self.max_num_seqs, self.order = settings, max_num_seqs, order
        self._router = router
        self.on_arrival, self.on_return = on_arrival, on_return
        self.in_service: Callable[[int], bool] = lambda server: True
        self.server_is_coming: Callable[[], bool] = lambda: False
        self.longest: Callable[[int], int] = self._longest
        self.on_hung: Callable[[int, str], None] = lambda server, reason: None
        self.on_record: Callable[[dict[str, Any]], None] | None = None
        self._client: aiohttp.ClientSession | None = None
        self._scraping: asyncio.Task[None] | None = None
        self._replaying: asyncio.Task[None] | None = None
        self._base: list[Gauges] = []

    @property
    def begun(self) -> bool:
        """Whether the present run's clock has started."""
        return self._replaying is not None

    @property
    def now_s(self) -> float:
        """Seconds since the present run began; 0 before."""
        return self.replay.now_s if self.begun else 0.0

    @property
    def trouble(self) -> BaseException | None:
        """The error that ended the present run early."""
        if self._replaying is not None and self.replay.failure is not None:
            return self.replay.failure
        for task in (self._replaying, self._scraping):
            if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None

    async def attach(self, urls: tuple[str, ...]) -> None:
        """Reads the information of every server.

        Raises:
            ValueError: one does not answer as vLLM does.
        """
        client = self._open(urls)
        self.servers = list(await asyncio.gather(*(probe(client, url, self.settings.model) for url in urls)))

    async def expect(self, servers: Sequence[Server]) -> None:
        """Registers servers that may start later; each is probed when it has started."""
        self._open(tuple(server.url for server in servers))
        self.servers = list(servers)

    async def learn(self, number: int) -> None:
        """Reads the information of a server that has just started; its counters begin at zero.

        Raises:
            ValueError: it does not answer as vLLM does.
        """
        assert self._client is not None
        self.servers[number] = await probe(self._client, self.servers[number].url, self.settings.model)
        self.scraper.forget(number)
        if self._base:
            self._base[number] = NOTHING

    def _open(self, urls: tuple[str, ...]) -> aiohttp.ClientSession:
        self._client = open_client()
        self.scraper = Scraper(urls, self.settings.scrape_interval_s, self.settings.stale_after_s)
        return self._client

    async def detach(self) -> None:
        """Drops requests in flight and disconnects from the servers."""
        await self._stop()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def drop(self) -> None:
        """Drops requests in flight."""
        await self._stop()

    async def prepare(self, workload: Workload, slos: tuple[SLO, ...]) -> None:
        """Drops requests in flight, waits until the servers are empty, and begins a new ledger.

        Raises:
            ValueError: a server cannot be read, or does not become empty.
        """
        assert self._client is not None
        await self._stop()
        await self._wait_until_empty(self._client)
        self._base = [NOTHING if reading is None else reading.gauges for reading in self.scraper.readings]
        self.ledger = Ledger(workload, slos, len(self.servers))
        self.ledger.on_end = self.on_record
        self.scraper.before_reading = lambda server: len(self.ledger.engines[server].in_flight)
        self.replay = Replay(
            session=self._client,
            servers=self.servers,
            ledger=self.ledger,
            prompts=Prompts(workload, self.settings.vocab_size, self.settings.salt),
            router=self._route_of(self._router),
            longest=lambda row: self.longest(row),
            send_priority=self.order == "priority",
            silence_s=self.settings.silence_s,
            server_is_coming=lambda: self.server_is_coming(),
            on_arrival=self.on_arrival,
            on_return=self.on_return,
            on_unreachable=self.scraper.suspect,
        )
        self._scraping = asyncio.create_task(self.scraper.run(self._client))

    def _longest(self, row: int) -> int:
        most = max(server.most_tokens for server in self.servers)
        return min(most, self.settings.max_model_len or most)

    def _route_of(self, router: str | Chooser | None) -> Callable[[int], int] | None:
        """The function that chooses the engine of a row; a built-in router is reset."""
        if router is None:
            return None
        if isinstance(router, str):
            built_in = Router(router)
            return lambda row: built_in.choose(self.candidates(), self.replay.tokens(row))
        return lambda row: router(self.candidates(), self.replay.tokens(row), row)

    def begin(self) -> None:
        """Starts the clock and the arrivals."""
        self._replaying = asyncio.get_running_loop().create_task(self.replay.run())

    def fill_rows(self, rows: NDArray[np.void], now_s: float) -> None:
        """Fills the first rows of ENGINE_STATE_DTYPE, one per server, as of `now_s`, seconds since the run began."""
        for number, server in enumerate(self.servers):
            load, most = self.ledger.engines[number], self.max_num_seqs[number]
            fill_row(rows[number], server, self._snapshot(number), load, most, now_s)

    def gauges_s(self) -> float:
        """Time of the oldest present reading, seconds since the run began."""
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
        begun_s = time.monotonic()
        deadline_s = begun_s + EMPTY_WITHIN_S
        while True:
            await self.scraper.read_all(client, within_s=EMPTY_WITHIN_S)
            if self._some_unreadable(time.monotonic() - begun_s > self.settings.stale_after_s):
                await asyncio.sleep(_POLL_S)
                continue
            busy = [
                0 if reading is None or not self.in_service(number) else reading.gauges.num_requests
                for number, reading in enumerate(self.scraper.readings)
            ]
            if not any(busy):
                return
            if time.monotonic() > deadline_s:
                raise ValueError(
                    f"{self.scraper.urls[busy.index(max(busy))]} still has {max(busy)} requests after "
                    f"{EMPTY_WITHIN_S:g} s; is another client using it?"
                )
            await asyncio.sleep(_POLL_S)

    def _some_unreadable(self, last_time: bool) -> bool:
        """Whether a server in service has shown a page that cannot be read, which may be another one the next time.

        Raises:
            ValueError: a server does not answer, or this was the last time.
        """
        scraper = self.scraper
        for number in filter(self.in_service, range(len(scraper.urls))):
            problem = scraper.unreadable[number] or scraper.problems[number]
            if problem and (last_time or not scraper.unreadable[number]):
                raise ValueError(f"cannot read {scraper.urls[number]}/metrics: {problem}")
        return any(
            scraper.unreadable[number] and self.in_service(number) for number in range(len(scraper.urls))
        )

    def candidates(self) -> list[Candidate]:
        """Engines as the router's candidates; those out of service or with a failed reading are unavailable."""
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
