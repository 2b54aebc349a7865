"""Bounds on the connections of an HTTP server: their number, and the time until a request has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Connections:
    """Makes the protocols of connections.

    Args:
        make: Makes the HTTP server's own protocol of a connection.
        most: Most open connections; further ones are closed.
        header_s: Longest time until the header of the first request has come, seconds. Later ones on the same
            connection are bounded by the server's keep-alive time.
        closed: Told why a connection is closed.
    """

    def __init__(
        self, make: Callable[[], Any], most: int, header_s: float, closed: Callable[[str], None]
    ) -> None:
        self._make, self.most, self.header_s, self.closed = make, most, header_s, closed
        self._open: dict[Any, _Connection] = {}

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a connection."""
        return _Connection(self, self._make())

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._open)

    def begun(self, transport: Any) -> None:
        """The header of a request has come."""
        connection = self._open.get(transport)
        if connection is not None:
            connection.wait_no_more()

    def add(self, transport: Any, connection: _Connection) -> bool:
        """Notes a connection; False: there are too many."""
        if len(self._open) >= self.most:
            self.closed("too_many")
            return False
        self._open[transport] = connection
        return True

    def remove(self, transport: Any) -> None:
        """Forgets a connection."""
        self._open.pop(transport, None)


class _Connection(asyncio.Protocol):
    """Passes everything on to the HTTP server's protocol."""

    def __init__(self, connections: Connections, inner: Any) -> None:
        self._connections, self._inner = connections, inner
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if not self._connections.add(transport, self):
            self._transport.abort()
            self._transport = None
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._connections.header_s, self._late)
        self._inner.connection_made(transport)

    def _late(self) -> None:
        self._connections.closed("no_request")
        self._transport.abort()

    def wait_no_more(self) -> None:
        """A request has begun."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.wait_no_more()
        if self._transport is not None:
            self._connections.remove(self._transport)
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._transport is not None else None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
