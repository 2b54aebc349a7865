"""The HTTP side of a listener: routes behind the token, within bounds on bodies and connections."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from serving_gym.runners.serving.connections import Connections

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService

_STOP_S = 2.0


class BoundedSite:
    """An HTTP server of another project's protocol.

    Args:
        service: The policy, whose configuration has token, most connections and reading time.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.
        routes: Of `aiohttp.web`.
        most_bytes: Longest body.
        open_paths: Paths that need no token.
        failure: Makes the body of an answer that is an error, from one sentence.
    """

    def __init__(
        self,
        service: PolicyService,
        address: str,
        port: int,
        routes: Sequence[web.RouteDef],
        most_bytes: int,
        open_paths: Sequence[str],
        failure: Callable[[str], dict[str, Any]],
    ) -> None:
        self.service, self.address, self.port = service, address, port
        self._routes, self._most_bytes = routes, most_bytes
        self._open_paths, self._failure = open_paths, failure
        self._token = service.config.token
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Starts listening; returns the address."""
        from aiohttp import web

        config = self.service.config
        app = web.Application(client_max_size=self._most_bytes, middlewares=[self._checked()])
        app.add_routes(self._routes)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S)
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections = Connections(
            self._runner.server, config.max_connections, config.read_s, self._closed
        )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connections, self.address, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    async def stop(self) -> None:
        """Stops listening; open exchanges have two seconds to end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _closed(self, why: str) -> None:
        self.service.count("connections_closed", reason=why)

    def _checked(self) -> Any:
        from aiohttp import web

        Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._connections.begun(request.transport)
            if request.path not in self._open_paths and not may_pass(
                self._token, request.headers.get("Authorization", "")
            ):
                return self._refusal("the bearer token is missing or wrong", 401)
            try:
                return await handler(request)
            except web.HTTPException as error:
                if error.status < 400:
                    raise
                return self._refusal(error.reason, error.status)

        return checked

    def _refusal(self, sentence: str, status: int) -> web.Response:
        from aiohttp import web

        return web.json_response(self._failure(sentence), status=status)


def may_pass(token: str | None, said: str) -> bool:
    """Whether a caller that says `said` as its authorization may pass.

    Args:
        token: The token; None: everybody may.
        said: `Bearer TOKEN`.
    """
    return token is None or hmac.compare_digest(said.encode(), f"Bearer {token}".encode())
