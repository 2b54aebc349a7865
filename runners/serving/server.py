"""Serves a policy over HTTP: a state is posted, an action is returned.

    POST /decide  {"state": STATE, "chosen": PLACE or null}
                  -> {"action": ACTION, "applies": true, "us": 150.0, "error": "", "place": ..., "priority": ...}
    POST /reset   {"seed": INTEGER}
    GET  /status

`runners.serving.wire` defines STATE. If `applies` is false, the response is only recorded, and the front end
should follow its own choice. A malformed request gets status 400 with one sentence under `error`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from serving_gym.runners.serving.host import Answer
from serving_gym.runners.serving.wire import state_from_json

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService


class HttpListener:
    """The HTTP server.

    Args:
        service: The policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.
    """

    environments = ("routing",)
    default_port = 8300

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        self.service, self.address, self.port = service, address, port
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Starts listening; returns the address."""
        from aiohttp import web

        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_post("/decide", self._decide)
        app.router.add_post("/reset", self._reset)
        app.router.add_get("/status", self._status)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, self.port).start()
        self.port = self._runner.addresses[0][1]
        return f"http://{self.address}:{self.port}"

    async def stop(self) -> None:
        """Stops listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _decide(self, request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            body = await _object(request)
            spec = self.service.host.spec
            state = state_from_json(body.get("state"), len(spec.fleet), spec.slos)  # type: ignore[arg-type]
            if state.request is None:
                raise ValueError("state.request is null: there is nothing to decide")
            chosen = body.get("chosen")
            if chosen is not None and (isinstance(chosen, bool) or not isinstance(chosen, int)):
                raise ValueError(f"chosen must be a place or null, got {chosen!r}")
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response(_plain(await self.service.decide(state, chosen)))

    async def _reset(self, request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            seed = (await _object(request)).get("seed", 0)
            if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
                raise ValueError(f"seed must be a whole number from 0 on, got {seed!r}")
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        self.service.host.reset(seed)
        return web.json_response(self.service.host.status())

    async def _status(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.json_response(self.service.host.status())


def _plain(answer: Answer) -> dict[str, Any]:
    """An answer in the wire form."""
    return {
        "action": answer.action,
        "applies": answer.applies,
        "us": answer.us,
        "error": answer.error,
        "place": answer.place,
        "priority": answer.priority,
    }


async def _object(request: web.Request) -> dict[str, Any]:
    """The JSON body of an HTTP request.

    Raises:
        ValueError: it is not a JSON object.
    """
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError:
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError(f"the body must be an object, got {type(body).__name__}")
    return body
