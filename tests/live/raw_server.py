"""A server that answers each request with bytes that need not be HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType

from serving_gym.envs.live.loop import LoopThread


class RawServer:
    """Answers with `answer(path)`, and closes the connection; use it in a `with` block.

    Attributes:
        answer: What it answers.
        loop: The loop in which it runs.
    """

    def __init__(self, answer: Callable[[str], bytes]) -> None:
        self.answer = answer
        self.loop = LoopThread()

    def __enter__(self) -> RawServer:
        self.loop.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.write(self.answer(head.split(" ")[1]))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()


def http(body: bytes, status: int = 200, headers: bytes = b"", told_bytes: int | None = None) -> bytes:
    """An answer of HTTP with a body, whose length may be told wrongly."""
    length = len(body) if told_bytes is None else told_bytes
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n%s" % (status, length, headers, body)
