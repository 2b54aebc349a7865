"""A policy in a process of its own: one that hangs or holds the interpreter stops neither the listeners nor the clock.

The process is started by `spawn`, gets states and returns judgements by a pipe, one at a time and in their order, and
ends with this process. One that does not answer for `hang_s` is killed and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from serving_gym.runners.serving.host import Judgement, PolicyHost

_START_S = 300.0  # longest time until a policy is loaded
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_NICE_EXIT_S = 2.0

MakeHost = Callable[[], PolicyHost]


@dataclass
class _Waiting:
    message: bytes
    future: asyncio.Future[Judgement]


class PolicyWorker:
    """The process of a policy.

    Attributes:
        restarts: How often it was started again.
        loaded: Whether the policy is loaded and answers.

    Args:
        make_host: Builds the policy; called in the process, so it must be picklable.
        hang_s: Longest time of a decision, seconds.
        most_waiting: Most questions that wait; further ones are not taken.
    """

    def __init__(self, make_host: MakeHost, hang_s: float, most_waiting: int = 1000) -> None:
        self._make_host, self._hang_s, self._most = make_host, hang_s, most_waiting
        self._queue: deque[_Waiting] = deque()
        self._asked: _Waiting | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
        self._closed = self.loaded = False
        self.restarts = 0
        self.on_restart: Callable[[str], None] = lambda reason: None

    async def start(self) -> None:
        """Starts the process and waits until the policy is loaded.

        Raises:
            ValueError: The policy cannot be loaded.
        """
        self._spawn()
        assert self._ready is not None
        try:
            async with asyncio.timeout(_START_S):
                await self._ready
        except TimeoutError:
            await self.close()
            raise ValueError(f"the policy was not loaded within {_START_S:g} s") from None
        except BaseException:  # one who waits no more leaves no process behind
            await self.close()
            raise

    def ask(self, state: Any) -> asyncio.Future[Judgement]:
        """What the policy will say about a state. Cancel it if it comes too late.

        Raises:
            OverflowError: Too many questions wait.
        """
        return self._send(("ask", state))

    def reset(self, seed: int) -> asyncio.Future[Judgement]:
        """Resets the policy, after the questions that wait."""
        return self._send(("reset", seed))

    def _send(self, message: tuple[str, Any]) -> asyncio.Future[Judgement]:
        while self._queue and self._queue[0].future.done():
            self._queue.popleft()
        if len(self._queue) >= self._most:
            raise OverflowError(f"more than {self._most} questions wait for the policy")
        future: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(pickle.dumps(message, protocol=5), future))
        self._next()
        return future

    async def close(self) -> None:
        """Ends the process; questions that wait are cancelled."""
        self._closed, self.loaded = True, False
        waiting = [*self._queue, *([self._asked] if self._asked else [])]
        self._queue.clear()
        for each in waiting:
            each.future.cancel()
        self._stop()

    async def drain(self, most_s: float) -> None:
        """Waits for the questions that it has, and ends the process."""
        open_ones = [each.future for each in (*self._queue, *([self._asked] if self._asked else []))]
        if open_ones:
            await asyncio.wait(open_ones, timeout=most_s)
        await self.close()

    # -- the process ---------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        loop = asyncio.get_running_loop()
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._ready: asyncio.Future[None] | None = None if self.restarts else loop.create_future()
        self._process = context.Process(
            target=_work, args=(far, self._make_host, os.getpid()), name="policy", daemon=True
        )
        self._process.start()
        far.close()
        loop.add_reader(self._pipe.fileno(), self._read)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._asked = None
        if self._process is None:
            return
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        self._pipe.close()
        self._process.kill()
        self._process.join(_NICE_EXIT_S)
        self._process = None

    def _again(self, reason: str) -> None:
        """Replaces the process; the question that it had gets no answer from it."""
        asked = self._asked
        self._stop()
        if asked is not None and not asked.future.done():
            asked.future.set_result(Judgement(None, None, 0.0, reason))
        if self._closed:
            return
        self.restarts += 1
        self.loaded = False
        self.on_restart(reason)
        self._spawn()

    def _next(self) -> None:
        """Sends the next question, if the process is free."""
        if self._asked is not None or not self.loaded:
            return
        while self._queue and self._queue[0].future.done():
            self._queue.popleft()
        if not self._queue:
            return
        self._asked = self._queue.popleft()
        try:
            self._pipe.send_bytes(self._asked.message)
        except OSError:
            self._again("the policy's process ended")
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            self._hang_s, self._again, f"the policy did not answer for {self._hang_s:g} s"
        )

    def _read(self) -> None:
        try:
            said = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self._lost()
            return
        if not self.loaded:
            self._begin(str(said))
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asked, self._asked = self._asked, None
        if asked is not None and not asked.future.done():
            asked.future.set_result(said)
        self._next()

    def _begin(self, error: str) -> None:
        """The policy is loaded, or cannot be."""
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            if error:
                ready.set_exception(ValueError(error))
            else:
                ready.set_result(None)
        self.loaded = not error
        self._next()

    def _lost(self) -> None:
        """The process ended by itself."""
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ValueError("the policy's process ended while it was loaded"))
            self._stop()
            return
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        loop = asyncio.get_running_loop()
        wait_s = min(
            0.1 * 2.0**self.restarts, 30.0
        )  # a policy that ends its process at once is not started in a loop
        asked, self._asked = self._asked, None
        self.loaded = False
        if asked is not None and not asked.future.done():
            asked.future.set_result(Judgement(None, None, 0.0, "the policy's process ended"))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(wait_s, self._again, "the policy's process ended")


def _work(pipe: Connection, make_host: MakeHost, parent: int) -> None:
    """Answers until the parent is gone."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_IGN
        )  # the parent stops this process, and the kernel does if that is killed
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        return
    try:
        host = make_host()
    except Exception as error:  # noqa: BLE001 -- the parent says it
        pipe.send_bytes(pickle.dumps(str(error) or type(error).__name__))
        return
    gc.collect()
    gc.freeze()  # as in the parent
    pipe.send_bytes(pickle.dumps(""))
    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, value = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(pickle.dumps(_answer(host, kind, value), protocol=5))


def _answer(host: PolicyHost, kind: str, value: Any) -> Judgement:
    if kind == "ask":
        return host.judge(value)
    begun_s = time.perf_counter()
    try:
        host.reset(value)
    except Exception as error:  # noqa: BLE001 -- the parent says it
        return Judgement(None, None, 0.0, f"{type(error).__name__}: {error}")
    return Judgement(None, None, 1e6 * (time.perf_counter() - begun_s))
