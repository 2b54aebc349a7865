"""Sends a workload's requests when they are due, whether or not earlier ones are done: an open loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from envs.live.ledger import Ledger
from envs.live.prompts import Prompts
from envs.live.routers import Candidate, Router
from envs.live.servers import Server
from envs.live.stream import StreamEnd, completion_request, stream_completion

if TYPE_CHECKING:
    import aiohttp

_POOL_INTERVAL_S = 0.05


class Replay:
    """One run of a workload over some servers. Lives in the loop's thread.

    Args:
        session: HTTP client.
        servers: engines, by slot.
        ledger: books of the run.
        prompts: texts of the requests.
        router: chooses an engine.
        candidates: engines as the router should see them now.
        send_priority: whether the servers' queues know priorities.
        silence_s: longest silence of a server, or wait for one, before a request fails, seconds.
        on_arrival: told each row once it has been routed.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        servers: Sequence[Server],
        ledger: Ledger,
        prompts: Prompts,
        router: Router,
        candidates: Callable[[], list[Candidate]],
        send_priority: bool,
        silence_s: float,
        on_arrival: Callable[[int], None],
    ) -> None:
        self.session, self.servers, self.ledger, self.prompts = session, servers, ledger, prompts
        self.router, self.candidates = router, candidates
        self.send_priority, self.silence_s, self.on_arrival = send_priority, silence_s, on_arrival
        self.pool: deque[int] = deque()  # rows that no engine could take yet
        self.begun_s = float("nan")  # monotonic
        self.failure: BaseException | None = None  # an error of our own in a stream, which ends the run
        self._streams: set[asyncio.Task[None]] = set()
        self._longest = max(server.most_tokens for server in servers)

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
        pool = asyncio.create_task(self._serve_pool())
        try:
            for row, arrival_s in enumerate(self.ledger.workload.arrival_s):
                body = self._body(row) if self._fits(row) else {}  # drawn ahead, so that sending is on time
                await asyncio.sleep(max(self.begun_s + float(arrival_s) - time.monotonic(), 0.0))
                self._arrive(row, body)
            while not self.idle:
                await asyncio.sleep(_POOL_INTERVAL_S)
        finally:
            pool.cancel()

    async def abort(self) -> None:
        """Drops every stream; the servers notice and free what they held."""
        streams = tuple(self._streams)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    def _body(self, row: int) -> dict[str, object]:
        workload = self.ledger.workload
        priority = int(workload.priority[row]) if self.send_priority else None
        tokens = self.prompts.token_ids(row)
        return completion_request("", tokens, int(workload.output_tokens[row]), priority)

    def _arrive(self, row: int, body: dict[str, object]) -> None:
        self.ledger.book_arrival(row)
        if not self._fits(row):
            reason = f"may grow to {self._tokens(row)} tokens where no engine holds more than {self._longest}"
            self.ledger.book_loss(row, refused=True, reason=reason)
        elif not self._dispatch(row, body):
            self.pool.append(row)
        self.on_arrival(row)

    def _fits(self, row: int) -> bool:
        return self._tokens(row) <= self._longest

    def _tokens(self, row: int) -> int:
        """Tokens a request may grow to, as its client declares."""
        workload = self.ledger.workload
        return int(workload.input_tokens[row]) + int(workload.max_output_tokens[row])

    def _dispatch(self, row: int, body: dict[str, object]) -> bool:
        engine = self.router.choose(self.candidates(), self._tokens(row))
        if engine < 0:
            return False
        self.ledger.book_sent(row, engine, self.now_s)
        stream = asyncio.create_task(self._follow(row, engine, body))
        self._streams.add(stream)
        stream.add_done_callback(self._end_stream)
        return True

    def _end_stream(self, stream: asyncio.Task[None]) -> None:
        self._streams.discard(stream)
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
            self.ledger.book_end(row, end.refused, end.reason, end.server_ttft_s, self.now_s)

    async def _serve_pool(self) -> None:
        """Offers pooled requests to the router again, in order; one that has waited too long fails."""
        while True:
            await asyncio.sleep(_POOL_INTERVAL_S)
            for row in tuple(self.pool):
                waited_s = self.now_s - float(self.ledger.workload.arrival_s[row])
                if waited_s > self.silence_s:
                    reason = f"no server could take it for {self.silence_s:g} s"
                    self.ledger.book_loss(row, refused=False, reason=reason)
                elif not self._dispatch(row, self._body(row)):
                    continue
                self.pool.remove(row)
