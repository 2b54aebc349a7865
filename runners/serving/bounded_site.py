"""The HTTP side of a listener: routes behind the token, within bounds on bodies and connections."""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from serving_gym.runners.serving.connections import Connections

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService

_LINGER_S = 1.0  # longest time to read the rest of a body that is refused
_STOP_S = 5.0  # longest time until open exchanges are closed at the end


class BoundedSite:
    """An HTTP server within the bounds of a service.

    Args:
        service: The policy, whose configuration has token, most connections and reading time.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.
        routes: Of `aiohttp.web`.
        most_bytes: Longest body.
        needs_token: Whether a path needs the caller's token, if there is one.
        failure: Makes the body of an answer that is an error, from one sentence.
        sentence: Says what the HTTP server itself has found; by default the status' own words.
        context: TLS; None: none.
        bounds_handlers: Whether a handler of a request with a body must end within the reading time; handlers that
            bound the reading themselves may take longer.
    """

    def __init__(
        self,
        service: PolicyService,
        address: str,
        port: int,
        routes: Sequence[web.RouteDef],
        most_bytes: int,
        needs_token: Callable[[str], bool],
        failure: Callable[[str], dict[str, Any]],
        sentence: Callable[[web.HTTPException], str] = lambda error: error.reason,
        context: ssl.SSLContext | None = None,
        bounds_handlers: bool = False,
    ) -> None:
        self.service, self.address, self.port = service, address, port
        self._routes, self._most_bytes = routes, most_bytes
        self._needs_token, self._failure, self._sentence = needs_token, failure, sentence
        self._context, self._bounds_handlers = context, bounds_handlers
        self._token = service.config.token
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Starts listening; returns the address."""
        from aiohttp import web

        config = self.service.config
        app = web.Application(client_max_size=self._most_bytes, middlewares=[self._checked()])
        app.add_routes(self._routes)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=_STOP_S, keepalive_timeout=60.0, lingering_time=_LINGER_S
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections = Connections(
            self._runner.server, config.max_connections, config.read_s, self._closed
        )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connections, self.address, self.port, backlog=256, ssl=self._context
        )
        self.port = self._server.sockets[0].getsockname()[1]
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self._context else 'http'}://{host}:{self.port}"

    async def stop(self) -> None:
        """Stops listening; open exchanges have five seconds to end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def refusal(self, sentence: str, status: int) -> web.Response:
        """An answer that is an error, which is counted."""
        from aiohttp import web

        self.service.count("refused_requests", status=str(status))
        return web.json_response(self._failure(sentence), status=status)

    def _closed(self, why: str) -> None:
        self.service.count("connections_closed", reason=why)

    def _checked(self) -> Any:
        from aiohttp import web

        Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._connections.begun(request.transport)
            said = request.headers.get("Authorization", "")
            if self._needs_token(request.path) and not may_pass(self._token, said):
                return self.refusal("the bearer token is missing or wrong", 401)
            within_s = self.service.config.read_s if self._bounds_handlers and request.can_read_body else None
            try:
                async with asyncio.timeout(within_s):
                    return await handler(request)
            except TimeoutError:
                if within_s is None:
                    raise
                return self.refusal("the body did not come in time", 408)
            except web.HTTPException as error:
                if error.status < 400:
                    raise
                return self.refusal(self._sentence(error), error.status)

        return checked


def may_pass(token: str | None, said: str) -> bool:
    """Whether a caller that says `said` as its authorization may pass.

    Args:
        token: The token; None: everybody may.
        said: `Bearer TOKEN`.
    """
    return token is None or hmac.compare_digest(said.encode(), f"Bearer {token}".encode())
