"""An HTTP server of plain handlers with bounds on connections, bodies and time."""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from serving_gym.runners.serving.connections import Connections

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BODY_BYTES = 4 * 2**20
_STOP_S = 5.0  # longest time until open exchanges are closed at the end


class BoundedHTTP:
    """The server.

    Args:
        service: The policy; its configuration has the bounds.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.
        context: TLS; None: none.
        guarded: Begin of the paths for which the caller's token is needed, if there is one; None: none is.
    """

    def __init__(
        self,
        service: PolicyService,
        address: str,
        port: int,
        context: ssl.SSLContext | None = None,
        guarded: str | None = None,
    ) -> None:
        self.service, self.address, self.port = service, address, port
        self._context, self._guarded, self._token = context, guarded, service.config.token
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self, posts: Mapping[str, Handler], gets: Mapping[str, Handler]) -> str:
        """Starts listening; returns the address.

        Args:
            posts: Handlers of POST by path.
            gets: Handlers of GET by path.
        """
        from aiohttp import web

        config = self.service.config
        app = web.Application(client_max_size=_BODY_BYTES, middlewares=[self._middleware()])
        for path, handler in posts.items():
            app.router.add_post(path, handler)
        for path, handler in gets.items():
            app.router.add_get(path, handler)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S, keepalive_timeout=60.0)
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections = Connections(
            self._runner.server, config.max_connections, config.read_s, self._refused
        )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connections, self.address, self.port, backlog=256, ssl=self._context
        )
        self.port = self._server.sockets[0].getsockname()[1]
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self._context else 'http'}://{host}:{self.port}"

    async def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _refused(self, why: str) -> None:
        self.service.count("connections_closed", reason=why)

    def _middleware(self) -> Any:
        from aiohttp import web

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._connections.begun(request.transport)
            if not self._allowed(request):
                return web.json_response({"error": "the bearer token is missing or wrong"}, status=401)
            try:
                async with asyncio.timeout(self.service.config.read_s if request.can_read_body else None):
                    return await handler(request)
            except TimeoutError:
                return web.json_response({"error": "the body did not come in time"}, status=408)
            except web.HTTPException as error:
                return web.json_response({"error": error.reason}, status=error.status)

        return checked

    def _allowed(self, request: web.Request) -> bool:
        if self._token is None or self._guarded is None or not request.path.startswith(self._guarded):
            return True
        said = request.headers.get("Authorization", "")
        return hmac.compare_digest(said.encode(), f"Bearer {self._token}".encode())
