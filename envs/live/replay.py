"""Sends a workload's requests when they are due, whether or not earlier ones are done: an open loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.prompts import Prompts
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.stream import StreamEnd, completion_request, stream_completion

if TYPE_CHECKING:
    import aiohttp

_POOL_INTERVAL_S = 0.05
MOST_ATTEMPTS = 4  # times that a request is sent in all, if servers are lost before its first token


class Replay:
    """One run of a workload over some servers. Lives in the loop's thread.

    Args:
        session: HTTP client.
        servers: engines, by slot; one that is started anew may be replaced by what it says of itself then.
        ledger: books of the run.
        prompts: texts of the requests.
        router: chooses the engine of a row, -1: none can take it; None: requests wait in the pool until somebody sends
            them.
        send_priority: whether the servers' queues know priorities.
        silence_s: longest silence of a server, or wait for one, before a request fails, seconds.
        server_is_coming: whether one is on its way, for which requests wait longer than that.
        on_arrival: told each row once it has arrived, and been routed where there is a router; not one that is refused.
        on_return: told each row that lost its engine before its first token; None: it goes to the router again.
        on_unreachable: told the engine that could not be reached, and why.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        servers: Sequence[Server],
        ledger: Ledger,
        prompts: Prompts,
        router: Callable[[int], int] | None,
        send_priority: bool,
        silence_s: float,
        server_is_coming: Callable[[], bool],
        on_arrival: Callable[[int], None],
        on_return: Callable[[int], None] | None,
        on_unreachable: Callable[[int, str], None],
    ) -> None:
        self.session, self.servers, self.ledger, self.prompts = session, servers, ledger, prompts
        self.router, self.server_is_coming = router, server_is_coming
        self.send_priority, self.silence_s, self.on_arrival = send_priority, silence_s, on_arrival
        self.on_return, self.on_unreachable = on_return, on_unreachable
        self.pool: deque[int] = deque()  # rows that no engine could take yet
        self.begun_s = float("nan")  # monotonic
        self.failure: BaseException | None = None  # an error of our own in a stream, which ends the run
        self._streams: dict[int, asyncio.Task[None]] = {}  # by row
        self._recalled: set[int] = set()  # rows whose streams are being broken off for another engine
        self._bodies: dict[int, dict[str, object]] = {}  # of requests that no engine has
        self._attempts: dict[int, int] = {}  # how often a row has been sent

    @property
    def now_s(self) -> float:
        """Seconds since the first arrival was possible; 0 before."""
        return max(time.monotonic() - self.begun_s, 0.0) if self.begun_s == self.begun_s else 0.0

    @property
    def idle(self) -> bool:
        """Whether every request has arrived and is done."""
        everyone = self.ledger.arrived == len(self.ledger.workload)
        return everyone and not self.pool and not self._streams

    async def run(self) -> None:
        """Sends everything, from now on; ends when the last request is done."""
        self.begun_s = time.monotonic()
        pool = asyncio.create_task(self._serve_pool()) if self.router is not None else None
        try:
            for row, arrival_s in enumerate(self.ledger.workload.arrival_s):
                body = self._body(row) if self._fits(row) else {}  # drawn ahead, so that sending is on time
                await asyncio.sleep(max(self.begun_s + float(arrival_s) - time.monotonic(), 0.0))
                self._arrive(row, body)
            while not self.idle:
                await asyncio.sleep(_POOL_INTERVAL_S)
        finally:
            if pool is not None:
                pool.cancel()

    async def abort(self) -> None:
        """Drops every stream; the servers notice and free what they held."""
        streams = tuple(self._streams.values())
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    def recall(self, engine: int) -> None:
        """Takes back what an engine has not given a token for yet; it goes to the router, or the pool, again."""
        for row in sorted(self.ledger.engines[engine].in_flight):
            self.recall_row(row)

    def recall_row(self, row: int) -> bool:
        """Takes one request back. Returns whether it could be: a request that has a token stays where it is."""
        if row not in self._streams or self.ledger.generated[row]:
            return False
        self._recalled.add(row)
        self._streams[row].cancel()
        return True

    def _body(self, row: int) -> dict[str, object]:
        workload = self.ledger.workload
        priority = int(workload.priority[row]) if self.send_priority else None
        tokens = self.prompts.token_ids(row)
        return completion_request("", tokens, int(workload.output_tokens[row]), priority)

    def _arrive(self, row: int, body: dict[str, object]) -> None:
        self.ledger.book_arrival(row)
        if not self._fits(row):
            reason = (
                f"may grow to {self.tokens(row)} tokens where no engine holds more than {self._longest()}"
            )
            self.ledger.book_loss(row, True, reason, self.now_s)
            return
        self._bodies[row] = body
        if not self._route(row):
            self.pool.append(row)
        self.on_arrival(row)

    def _fits(self, row: int) -> bool:
        return self.tokens(row) <= self._longest()

    def _longest(self) -> int:
        return max(server.most_tokens for server in self.servers)

    def tokens(self, row: int) -> int:
        """Tokens a request may grow to, as its client declares."""
        workload = self.ledger.workload
        return int(workload.input_tokens[row]) + int(workload.max_output_tokens[row])

    def _route(self, row: int) -> bool:
        """Sends a request where the router says; False: nowhere."""
        engine = -1 if self.router is None else self.router(row)
        if engine >= 0:
            self._send(row, engine)
        return engine >= 0

    def send(self, row: int, engine: int, priority: int | None = None) -> None:
        """Sends a pooled request to an engine.

        Args:
            row: of the workload.
            engine: where to.
            priority: instead of its own, where the servers know priorities.
        """
        self.pool.remove(row)
        if priority is not None and self.send_priority:
            self._bodies[row]["priority"] = priority
        self._send(row, engine)

    def drop(self, row: int, reason: str) -> None:
        """Refuses a pooled request."""
        self.pool.remove(row)
        self._bodies.pop(row)
        self.ledger.book_loss(row, True, reason, self.now_s)

    def _send(self, row: int, engine: int) -> None:
        self.ledger.book_sent(row, engine, self.now_s)
        self._attempts[row] = self._attempts.get(row, 0) + 1
        stream = asyncio.create_task(self._follow(row, engine, self._bodies.pop(row)))
        self._streams[row] = stream
        stream.add_done_callback(lambda stream: self._end_stream(row, stream))

    def _end_stream(self, row: int, stream: asyncio.Task[None]) -> None:
        if self._streams.get(row) is stream:  # it has not been sent elsewhere meanwhile
            del self._streams[row]
        if not stream.cancelled() and stream.exception() is not None:
            self.failure = stream.exception()

    async def _follow(self, row: int, engine: int, body: dict[str, object]) -> None:
        server = self.servers[engine]
        end = StreamEnd(reason="aborted")
        try:
            end = await stream_completion(
                self.session,
                server.url,
                body | {"model": server.model},
                lambda tokens, at_s: self.ledger.book_tokens(row, tokens, at_s - self.begun_s),
                self.silence_s,
            )
        finally:
            recalled = row in self._recalled
            self._recalled.discard(row)
            if recalled and not self.ledger.generated[row]:
                self._attempts[row] -= 1
                self._take_back(row, body)
            elif end.lost and not self.ledger.generated[row] and self._attempts[row] < MOST_ATTEMPTS:
                self.on_unreachable(engine, end.reason)
                self._take_back(row, body)
            else:
                self.ledger.book_end(row, end.refused, end.reason, end.server_ttft_s, self.now_s)

    def _take_back(self, row: int, body: dict[str, object]) -> None:
        """A request has lost its server and had no token yet: it is as if it had not been sent."""
        self.ledger.book_return(row, self.now_s)
        self._bodies[row] = body
        if not self._route(row):
            self.pool.append(row)
            if self.on_return is not None:
                self.on_return(row)

    async def _serve_pool(self) -> None:
        """Offers pooled requests to the router again, in order; one that has waited too long fails."""
        while True:
            await asyncio.sleep(_POOL_INTERVAL_S)
            for row in tuple(self.pool):
                waited_s = self.now_s - float(self.ledger.workload.arrival_s[row])
                if not self._route(row):
                    if waited_s <= self.silence_s or self.server_is_coming():
                        continue
                    reason = f"no server could take it for {self.silence_s:g} s"
                    self._bodies.pop(row)
                    self.ledger.book_loss(row, False, reason, self.now_s)
                self.pool.remove(row)
