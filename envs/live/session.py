"""The part of the live backend in the loop's thread: servers, scraping, replay and observation."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.access import access_by_url
from serving_gym.envs.live.client_health import ClientHealth, LagMeter, client_health
from serving_gym.envs.live.gauges import NOTHING, Gauges
from serving_gym.envs.live.health import Health
from serving_gym.envs.live.http import HttpClient
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.neighbours import Neighbours, one_server_twice
from serving_gym.envs.live.observation import Snapshot, fill_row
from serving_gym.envs.live.prompts import Prompts
from serving_gym.envs.live.replay import Replay
from serving_gym.envs.live.routers import Candidate, Chooser, Router
from serving_gym.envs.live.scraper import Reading, Scraper
from serving_gym.envs.live.servers import Server, probe
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.stream import StreamEnd

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload

EMPTY_WITHIN_S = 30.0
_POLL_S = 0.2
_STOOD_STILL_S = 0.5  # a loop that is so late has stood still itself, and blames no server
_log = logging.getLogger(__name__)


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
        health: which servers are hung or fail.
        on_hung: called in the loop's thread with a server that is hung, and why; its requests without a token have gone
            elsewhere. Whoever owns its process may start it again.
        request_timeout_s: time from its arrival after which a request is ended, whatever it has, seconds; None: never.
        decisions: number of decisions that were taken out of a policy's hands, and of all; (0, 0): none is asked.
        serves: which servers can serve a row; by default all.
        in_service: whether a server takes requests; by default all do.
        server_is_coming: whether a server is starting that requests may wait for; by default none is.
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
        self.request_timeout_s: float | None = None
        self.decisions: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.serves: Callable[[int], Collection[int]] = lambda row: range(len(self.servers))
        self._client: HttpClient | None = None
        self._watching: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._remarks: list[str] = []
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
        for task in (self._replaying, self._scraping, self._watching, self._measuring):
            if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None

    async def attach(self, urls: tuple[str, ...]) -> None:
        """Reads the information of every server.

        Raises:
            ValueError: one does not answer as vLLM does, or credentials cannot be read.
        """
        client = self._open(urls)
        self.servers = list(await asyncio.gather(*(probe(client, url, self.settings.model) for url in urls)))
        self.scraper.names = [server.names for server in self.servers]
        self._remarks = await one_server_twice(urls)
        for remark in self._remarks:
            _log.warning("%s", remark)

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
        self.scraper.names[number] = self.servers[number].names
        self.scraper.forget(number)
        self.health.forget(number, time.monotonic())
        if self._base:
            self._base[number] = NOTHING

    def _open(self, urls: tuple[str, ...]) -> HttpClient:
        self._client = HttpClient(access_by_url(urls, self.settings.access, self.settings.access_of))
        self.scraper = Scraper(urls, self.settings.scrape_interval_s, self.settings.stale_after_s)
        self.scraper.on_answer = self._on_answer
        self._start_judging()
        return self._client

    def _start_judging(self) -> None:
        self.health = Health(self.scraper.urls, self.settings.hung_after_s, time.monotonic())
        self._neighbours = Neighbours(self.scraper.urls)

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
        self._start_judging()
        self._base = [NOTHING if reading is None else reading.gauges for reading in self.scraper.readings]
        self.ledger = Ledger(workload, slos, len(self.servers))
        self.ledger.on_end = self.on_record
        self.scraper.before_reading = lambda server: len(self.ledger.engines[server].in_flight)
        self.replay = Replay(
            client=self._client,
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
            timeout_s=self.request_timeout_s,
            watch=self,
            has_other=self._has_other,
        )
        self._meter = LagMeter()
        self._scraping = asyncio.create_task(self.scraper.run(self._client))
        self._watching = asyncio.create_task(self._watch_servers())
        self._measuring = asyncio.create_task(self._meter.run())

    def _longest(self, row: int) -> int:
        most = max(server.most_tokens for server in self.servers)
        return min(most, self.settings.max_model_len or most)

    def _route_of(self, router: str | Chooser | None) -> Callable[[int], int] | None:
        """The function that chooses the engine of a row; a built-in router is reset."""
        if router is None:
            return None
        if isinstance(router, str):
            built_in = Router(router)
            return lambda row: built_in.choose(self.candidates(row), self.replay.tokens(row))
        return lambda row: router(self.candidates(row), self.replay.tokens(row), row)

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
        for task in (self._replaying, self._scraping, self._watching, self._measuring):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._replaying is not None:
            await self.replay.abort()
        self._replaying = self._scraping = self._watching = self._measuring = None

    async def _wait_until_empty(self, client: HttpClient) -> None:
        begun_s = time.monotonic()
        deadline_s = begun_s + EMPTY_WITHIN_S
        while True:
            await self.scraper.read_all(client, within_s=EMPTY_WITHIN_S)
            if self._some_unreadable(time.monotonic() - begun_s > self.settings.stale_after_s):
                await asyncio.sleep(_POLL_S)
                continue
            busy = [
                0 if reading is None or not self.in_service(number) else reading.gauges.num_requests or 0
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
                page = f"{scraper.urls[number]}{scraper.names[number].family.path}"
                raise ValueError(f"cannot read {page}: {problem}")
        return any(
            scraper.unreadable[number] and self.in_service(number) for number in range(len(scraper.urls))
        )

    def candidates(self, row: int = -1) -> list[Candidate]:
        """Engines as the router's candidates.

        Those out of service, hung, or with a failed reading are unavailable; those ejected too, unless no other is
        left, and those that have failed the row, unless no other can serve it.

        Args:
            row: the request that is to be sent; -1: any.
        """
        there = self.serves(row) if row >= 0 else range(len(self.servers))
        usable = {number for number in range(len(self.servers)) if self._usable(number)}
        able, now_s = usable.intersection(there), time.monotonic()
        ejected = {number for number in able if self.health.ejected(number, now_s)}
        if able - ejected:
            usable -= ejected
        if row in self.replay.tried:
            tokens, tried = self.replay.tokens(row), self.replay.tried[row]
            if any(tokens <= self.servers[n].most_tokens for n in usable.intersection(there) - tried):
                usable -= tried
        return [
            Candidate(
                available=number in usable,
                most_tokens=server.most_tokens,
                requests=len(load.in_flight),
                tokens=load.pending_tokens + load.context_tokens,
            )
            for number, (server, load) in enumerate(zip(self.servers, self.ledger.engines, strict=True))
        ]

    def _usable(self, number: int) -> bool:
        return self.in_service(number) and self.scraper.answering(number) and not self.health.hung(number)

    def _has_other(self, row: int) -> bool:
        """Whether an engine that has not failed a row could take it now."""
        tried, tokens = self.replay.tried.get(row, set()), self.replay.tokens(row)
        candidates = self.candidates(row)
        return any(
            candidates[number].available and tokens <= candidates[number].most_tokens and number not in tried
            for number in self.serves(row)
        )

    # -- what servers do -----------------------------------------------------------------------------------------------

    def sent(self, engine: int) -> None:
        """A request is about to be sent to an engine."""
        self.health.note_sent(engine, len(self.ledger.engines[engine].in_flight), time.monotonic())

    def token(self, engine: int, at_s: float) -> None:
        """An engine has sent a token at a monotonic time, seconds."""
        self.health.note_tokens(engine, at_s)

    def ended(self, engine: int, end: StreamEnd) -> None:
        """A stream has ended by itself."""
        if not end.reason:
            self.health.note_success(engine)
        elif end.lost:
            self.health.note_failure(engine, end.reason, time.monotonic())
            if not end.reached:
                self.scraper.suspect(engine, end.reason)

    def _on_answer(self, number: int, reading: Reading | None) -> None:
        self.health.note_answer(number, None if reading is None else reading.gauges, time.monotonic())
        if reading is not None and self.begun and self.in_service(number) and not self.health.hung(number):
            self._neighbours.note(number, reading, len(self.ledger.engines[number].in_flight))

    async def _watch_servers(self) -> None:
        """Judges the servers several times a second; what a hung one has not begun goes elsewhere."""
        every_s = min(_POLL_S, self.settings.hung_after_s / 4)
        while True:
            due_s = time.monotonic() + every_s
            await asyncio.sleep(every_s)
            now_s = time.monotonic()
            if now_s - due_s > _STOOD_STILL_S:
                self.health.pass_over(now_s - due_s)
            for number in range(len(self.servers)):
                self._judge(number, now_s)

    def _judge(self, number: int, now_s: float) -> None:
        in_flight = sorted(self.ledger.engines[number].in_flight)
        reason = self.health.judge(
            number, self.in_service(number), len(in_flight), self.scraper.ill[number], now_s
        )
        if not reason:
            return
        moved = sum(self.replay.recall_row(row) for row in in_flight)
        self._neighbours.forget(number)
        _log.warning(
            "%s is hung: %s; it gets nothing until it works again, and %d of its %d requests, which have no token, go "
            "elsewhere",
            self.scraper.urls[number],
            reason,
            moved,
            len(in_flight),
        )
        self.on_hung(number, reason)

    def client_health(self) -> ClientHealth:
        """What the client itself has added to the present run."""
        return client_health(
            self.ledger,
            self._meter,
            self.decisions(),
            {server.url: f"{server.kind} {server.version}" for server in self.servers},
            self._neighbours,
            self._remarks,
        )

    def _snapshot(self, number: int) -> Snapshot:
        reading = self.scraper.readings[number]
        return Snapshot(
            gauges=NOTHING if reading is None else reading.gauges,
            base=self._base[number],
            in_flight_then=0 if reading is None else reading.in_flight,
            fresh=number not in self.stale(),
            answering=self.scraper.answering(number) and not self.health.hung(number),
        )
