"""An asyncio loop in a thread of its own, so that tokens are timed on time while a policy thinks."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


_TURN_S = 0.0005  # thread switch interval, s; Python's default of 5 ms is the whole time budget of a router


class LoopThread:
    """Runs coroutines in a background thread; meanwhile the process has a shorter thread switch interval."""

    _running: ClassVar[int] = 0
    _usual_turn_s: ClassVar[float] = 0.005

    def __init__(self) -> None:
        if LoopThread._running == 0:
            LoopThread._usual_turn_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_TURN_S, LoopThread._usual_turn_s))
        LoopThread._running += 1
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="serving-gym-live", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and waits for its result; an interrupted wait cancels it."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Calls a function in the loop's thread, without interleaving, and waits for its result."""

        async def task() -> T:
            return function()

        return self.run(task())

    @property
    def alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the loop and its thread."""
        if not self.alive:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        LoopThread._running -= 1
        if LoopThread._running == 0:
            sys.setswitchinterval(LoopThread._usual_turn_s)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
