"""Sends a workload's requests when they are due: an open loop, but for turns of sessions, which wait for answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from serving_gym.envs.interface.metrics import FINISHED, PATIENCE, REASON_NAMES, TIMEOUT, TOO_LONG
from serving_gym.envs.live.http import HttpClient
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.prompts import Prompts
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.stream import StreamEnd, completion_request, stream_completion
from serving_gym.envs.live.turns import Turns

_POOL_INTERVAL_S = 0.05
_FIRST_PAUSE_S = 0.1  # before a request is sent again to a server that has failed it; doubles each time
_log = logging.getLogger(__name__)
MOST_ATTEMPTS = 4  # most attempts to send a request, if servers fail before its first token


class StreamWatch(Protocol):
    """Told of what engines do with requests; times are monotonic seconds."""

    def sent(self, engine: int) -> None:
        """A request is about to be sent."""

    def token(self, engine: int, at_s: float) -> None:
        """A token has come."""

    def ended(self, engine: int, end: StreamEnd) -> None:
        """A stream has ended by itself."""


class Replay:
    """One run of a workload over several servers. Runs in the loop's thread.

    A client that has no token when its patience is over hangs up: its connection is closed; so is that of a request
    which has not ended `timeout_s` after its arrival. A request that a server
    fails before its first token is sent to another one, or after a pause to the same, up to `MOST_ATTEMPTS` times.

    Args:
        client: HTTP client.
        servers: engines, by slot; entries are replaced when a server restarts.
        ledger: records of the run.
        prompts: texts of the requests.
        router: chooses the engine of a row, -1: none can take it; None: requests wait in the pool until somebody sends
            them.
        longest: longest request that a row's servers take, prompt and answer, tokens.
        send_priority: whether the servers' queues know priorities.
        silence_s: longest time without a token, or without a server, before a request fails, seconds.
        server_is_coming: whether a server is starting, for which requests wait longer than that.
        on_arrival: called with each row that has arrived, after routing if there is a router; not for refused ones.
        on_return: called with each row that lost its engine before its first token; None: it is routed again.
        timeout_s: time from its arrival after which a request is ended, whatever it has, seconds; None: never.
        watch: told of what engines do with requests.
        has_other: whether another engine than those that have failed a row could take it now.

    Attributes:
        tried: engines that have failed a row, by row; only rows that are still to be served.
        on_give_up: called with each row whose client hangs up while no engine has it.
    """

    def __init__(
        self,
        client: HttpClient,
        servers: Sequence[Server],
        ledger: Ledger,
        prompts: Prompts,
        router: Callable[[int], int] | None,
        longest: Callable[[int], int],
        send_priority: bool,
        silence_s: float,
        server_is_coming: Callable[[], bool],
        on_arrival: Callable[[int], None],
        on_return: Callable[[int], None] | None,
        timeout_s: float | None,
        watch: StreamWatch,
        has_other: Callable[[int], bool],
    ) -> None:
        self.client, self.servers, self.ledger, self.prompts = client, servers, ledger, prompts
        self.router, self.longest, self.server_is_coming = router, longest, server_is_coming
        self.send_priority, self.silence_s, self.on_arrival = send_priority, silence_s, on_arrival
        self.on_return, self.watch, self.has_other = on_return, watch, has_other
        self.timeout_s = timeout_s
        self.on_give_up: Callable[[int], None] = lambda row: None
        self.pool: deque[int] = deque()  # rows that no engine could take yet
        self.begun_s = float("nan")  # monotonic
        self.failure: BaseException | None = None  # an internal error in a stream, which ends the run
        self._streams: dict[int, asyncio.Task[None]] = {}  # by row
        self._recalled: set[int] = set()  # rows whose streams are being cancelled to move to another engine
        self._bodies: dict[int, dict[str, object]] = {}  # of requests that no engine has
        self._attempts: dict[int, int] = {}  # how often a row has been sent
        self.tried: dict[int, set[int]] = {}
        self._pauses: dict[int, asyncio.TimerHandle] = {}  # of pooled rows that are not to be sent yet
        self._turns = Turns(ledger.workload)
        self._coming: set[asyncio.Task[None]] = set()  # turns whose delay runs
        self._limits: dict[
            int, list[asyncio.TimerHandle]
        ] = {}  # patience and timeout of rows that have not ended
        self._ended: dict[int, int] = {}  # rows whose streams are being cancelled: PATIENCE or TIMEOUT
        self._tells_tokens = True  # whether servers answer with token ids, as far as is known

    @property
    def now_s(self) -> float:
        """Seconds since the first arrival was possible; 0 before."""
        return max(time.monotonic() - self.begun_s, 0.0) if self.begun_s == self.begun_s else 0.0

    @property
    def idle(self) -> bool:
        """Whether every request has arrived and is done, but those that wait for an answer in vain."""
        return not self._turns.left and not self.pool and not self._streams

    async def run(self) -> None:
        """Sends all requests from now on; returns when the last request is done.

        Raises:
            BaseException: an internal error.
        """
        self.begun_s = time.monotonic()
        pool = asyncio.create_task(self._serve_pool()) if self.router is not None else None
        try:
            for row in self._turns.first.tolist():
                await self._come(row, float(self.ledger.arrival_s[row]))
            while not self.idle:
                await asyncio.sleep(_POOL_INTERVAL_S)
        finally:
            if pool is not None:
                pool.cancel()

    async def abort(self) -> None:
        """Cancels every stream; the servers then free their resources."""
        for timer in chain(self._pauses.values(), *self._limits.values()):
            timer.cancel()
        tasks = (*self._coming, *self._streams.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def recall(self, engine: int) -> None:
        """Takes back an engine's requests without a token; they return to the router or the pool."""
        for row in sorted(self.ledger.engines[engine].in_flight):
            self.recall_row(row)

    def recall_row(self, row: int) -> bool:
        """Takes one request back. Returns False if it has a token already and must stay."""
        if row not in self._streams or self.ledger.generated[row]:
            return False
        self._recalled.add(row)
        self._streams[row].cancel()
        return True

    def _body(self, row: int) -> dict[str, object]:
        workload = self.ledger.workload
        priority = int(workload.priority[row]) if self.send_priority else None
        tokens = self.prompts.token_ids(row)
        answer = int(self.ledger.answer_tokens[row])
        return completion_request("", tokens, answer, priority, self._asked_for_tokens(row))

    async def _come(self, row: int, at_s: float) -> None:
        """Lets a request arrive at a time, seconds; its prompt is drawn before, so that sending is on time."""
        body = self._body(row) if self._fits(row) else None
        await asyncio.sleep(max(self.begun_s + at_s - time.monotonic(), 0.0))
        self._arrive(row, at_s, body)

    def _arrive(self, row: int, at_s: float, body: dict[str, object] | None) -> None:
        self._turns.arrive(row)
        self.ledger.book_arrival(row, at_s, self.now_s)
        if body is None:
            self._lose(row, True, REASON_NAMES[TOO_LONG])
            return
        self._limit_time(row, at_s)
        self._bodies[row] = body
        if not self._route(row):
            self.pool.append(row)
        self.on_arrival(row)

    def _limit_time(self, row: int, at_s: float) -> None:
        """Sets the timers of a client's patience, and of the time after which a request is ended."""
        patience_s, loop = self.ledger.workload.patience_s, asyncio.get_running_loop()
        limits_s = {
            PATIENCE: np.inf if patience_s is None else float(patience_s[row]),
            TIMEOUT: np.inf if self.timeout_s is None else self.timeout_s,
        }
        ahead_s = self.begun_s + at_s - time.monotonic() + loop.time()
        timers = [
            loop.call_at(ahead_s + limit_s, self._give_up, row, reason)
            for reason, limit_s in limits_s.items()
            if np.isfinite(limit_s)
        ]
        if timers:
            self._limits[row] = timers

    def _give_up(self, row: int, reason: int) -> None:
        """The patience of a client is over, and it hangs up if it has no token; or a request is ended."""
        if row in self._streams:
            if reason == TIMEOUT or not self.ledger.generated[row]:
                self._ended[row] = reason
                self._streams[row].cancel()
        elif row in self.pool:
            self._unpool(row)
            self._bodies.pop(row)
            self._lose(row, False, REASON_NAMES[reason])
            self.on_give_up(row)

    def _unpool(self, row: int) -> None:
        self.pool.remove(row)
        if (pause := self._pauses.pop(row, None)) is not None:
            pause.cancel()

    def _lose(self, row: int, refused: bool, reason: str) -> None:
        """Books a request that no engine has as refused or failed."""
        self.ledger.book_loss(row, refused, reason, self.now_s)
        self._settle(row)

    def _settle(self, row: int, answer: list[int] | None = None) -> None:
        """A request is done: those that have waited for it come, or never will.

        Args:
            row: the request.
            answer: its answer's tokens, where they are known.
        """
        self.tried.pop(row, None)
        for timer in self._limits.pop(row, ()):
            timer.cancel()
        if self.ledger.outcome[row] != FINISHED:
            self._turns.unanswered(row)
            return
        if answer:
            self.prompts.learn(row, answer, self._turns.descendants(row))
        for follower, at_s in self._turns.answered(row, float(self.ledger.finish_s[row])):
            coming = asyncio.create_task(self._come(follower, at_s))
            self._coming.add(coming)
            coming.add_done_callback(self._end_coming)

    def _end_coming(self, coming: asyncio.Task[None]) -> None:
        self._coming.discard(coming)
        if not coming.cancelled() and coming.exception() is not None:
            self.failure = coming.exception()

    def _fits(self, row: int) -> bool:
        """Whether a prompt leaves room for a token of its answer, which is cut where the room ends."""
        return self.ledger.limit_length(row, self.longest(row))

    def tokens(self, row: int) -> int:
        """Most tokens of a request: as declared by its client, where its servers take that much."""
        return int(self.ledger.workload.input_tokens[row]) + int(self.ledger.max_output_tokens[row])

    def _route(self, row: int) -> bool:
        """Sends a request to the engine that the router chooses; False: none."""
        engine = -1 if self.router is None else self.router(row)
        if engine >= 0:
            self._send(row, engine)
        return engine >= 0

    def send(self, row: int, engine: int, priority: int | None = None) -> None:
        """Sends a pooled request to an engine.

        Args:
            row: of the workload.
            engine: its engine.
            priority: instead of its own, where the servers know priorities.
        """
        self._unpool(row)
        if priority is not None and self.send_priority:
            self._bodies[row]["priority"] = priority
        self._send(row, engine)

    def drop(self, row: int, reason: str) -> None:
        """Refuses a pooled request."""
        self._unpool(row)
        self._bodies.pop(row)
        self._lose(row, True, reason)

    def _send(self, row: int, engine: int) -> None:
        self.watch.sent(engine)
        self.ledger.book_sent(row, engine, self.now_s)
        self._attempts[row] = self._attempts.get(row, 0) + 1
        stream = asyncio.create_task(self._follow(row, engine, self._bodies.pop(row)))
        self._streams[row] = stream
        stream.add_done_callback(lambda stream: self._end_stream(row, stream))

    def _end_stream(self, row: int, stream: asyncio.Task[None]) -> None:
        if self._streams.get(row) is stream:  # it has not been sent to another engine in the meantime
            del self._streams[row]
        if not stream.cancelled() and stream.exception() is not None:
            self.failure = stream.exception()

    async def _follow(self, row: int, engine: int, body: dict[str, object]) -> None:
        server = self.servers[engine]
        end = StreamEnd(reason="aborted")

        def book(tokens: int, at_s: float) -> None:
            self.watch.token(engine, at_s)
            self.ledger.book_tokens(row, tokens, at_s - self.begun_s)

        try:
            end = await stream_completion(
                self.client, server.url, body | {"model": server.model}, book, self.silence_s
            )
            self.watch.ended(engine, end)
        finally:
            ended, recalled = self._ended.pop(row, None), row in self._recalled
            self._recalled.discard(row)
            waits = not self.ledger.generated[row]
            if ended == TIMEOUT or (ended == PATIENCE and waits):
                self._end(row, StreamEnd(reason=REASON_NAMES[ended]))
            elif recalled and waits:
                self._attempts[row] -= 1
                self._take_back(row, body)
            elif end.lost and waits and self._attempts[row] < MOST_ATTEMPTS:
                self.tried.setdefault(row, set()).add(engine)
                self._take_back(row, body)
            else:
                self._end(row, end)

    def _end(self, row: int, end: StreamEnd) -> None:
        """Books the end of a request's stream."""
        self.ledger.book_end(row, end.refused, end.reason, end.server_ttft_s, self.now_s)
        if self._tells_tokens and not end.reason and not end.token_ids and self._asked_for_tokens(row):
            self._tells_tokens = False
            _log.warning(
                "%s does not tell the tokens of its answers (return_token_ids, vLLM 0.10.2 or later): later turns of "
                "sessions have other text in the place of these answers, and find less in prefix caches",
                self.servers[int(self.ledger.engine[row])].url,
            )
        self._settle(row, end.token_ids)

    def _asked_for_tokens(self, row: int) -> bool:
        """Whether later prompts of a session are to hold a request's answer."""
        return self.ledger.workload.hash_ids is not None and bool(self._turns.followers(row))

    def _take_back(self, row: int, body: dict[str, object]) -> None:
        """Called when a request without a token has lost its server: it counts as not sent."""
        self.ledger.book_return(row, self.now_s)
        self._bodies[row] = body
        self.pool.append(row)
        if row not in self.tried or self.has_other(row):
            self._offer_again(row)
            return
        pause_s = _FIRST_PAUSE_S * 2.0 ** (self._attempts[row] - 1)
        self._pauses[row] = asyncio.get_running_loop().call_later(pause_s, self._offer_again, row)

    def _offer_again(self, row: int) -> None:
        """Routes a pooled request, or has somebody decide about it."""
        self._pauses.pop(row, None)
        if self._route(row):
            self.pool.remove(row)
        elif self.on_return is not None:
            self.on_return(row)

    async def _serve_pool(self) -> None:
        """Routes pooled requests again, in order; requests that have waited too long fail."""
        while True:
            await asyncio.sleep(_POOL_INTERVAL_S)
            for row in tuple(self.pool):
                if (
                    row not in self.pool or row in self._pauses
                ):  # its client has hung up, or its time has not come
                    continue
                waited_s = self.now_s - float(self.ledger.arrival_s[row])
                if not self._route(row):
                    if waited_s <= self.silence_s or self.server_is_coming():
                        continue
                    reason = f"no server could take it for {self.silence_s:g} s"
                    self._bodies.pop(row)
                    self._lose(row, False, reason)
                self.pool.remove(row)
