"""Serves a policy over HTTP.

    POST /v1/decide         {"state": STATE, "chosen": ACTION}  -> ANSWER
    POST /v1/decide/batch   {"decisions": [{"state": STATE}, ...]} -> {"answers": [ANSWER, ...]}
    POST /v1/session        {"state": STATE} -> {"session": NAME, "n": 0}; then to /v1/decide
                            {"session": NAME, "since": 0, "changes": {...}} -> ANSWER with "n": 1
                            (`runners.serving.session`)
    POST /v1/reset          {"seed": NUMBER}
    POST /v1/policy         {"policy": NAME or null}: loads another policy, or reads the same anew
    GET  /v1/schema, /v1/status, /metrics (Prometheus), /version
    GET  /health            200: the policy answers, 503: only its fallback does

Bodies are JSON, or MessagePack with `Content-Type: application/msgpack`. The schema has STATE, ACTION and ANSWER. If
`applies` is false, an answer is only recorded, and the front end should follow its own choice. A malformed request gets
status 400 with one sentence under `error`; 401: the token is missing; 409: open another session; 413: the body is too
long. /decide, /reset and /status are the same as those below /v1.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from serving_gym.runners.serving.bounded_site import BoundedSite
from serving_gym.runners.serving.exchange import Exchange, from_json, from_msgpack
from serving_gym.runners.serving.session import OutOfStepError
from serving_gym.runners.serving.wire import VERSION, schema_of

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MSGPACK = "application/msgpack"
_OPEN_PATHS = ("/health", "/version")  # without a token
_SENTENCE = 500  # characters


class HttpListener:
    """The HTTP server.

    Args:
        service: The policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.
    """

    environments = ("routing", "autoscaling", "dp_tp", "deployment", "sharing")
    default_port = 8300
    checks_token = True

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        self.service, self.address, self.port = service, address, port
        self.exchange = Exchange(service)
        self._site: BoundedSite | None = None

    async def start(self) -> str:
        """Starts listening; returns the address."""
        from aiohttp import web

        service = self.service
        posts = {
            "/v1/decide/batch": self._posted(self.exchange.batch),
            "/v1/session": self._posted(self._open_session),
            "/v1/policy": self._posted(self.exchange.change_policy),
        }
        gets = {
            "/v1/schema": self._schema,
            "/metrics": self._metrics,
            "/health": self._health,
            "/version": self._version,
        }
        for prefix in ("", "/v1"):
            posts[f"{prefix}/decide"] = self._posted(self.exchange.decide)
            posts[f"{prefix}/reset"] = self._posted(self.exchange.reset)
            gets[f"{prefix}/status"] = self._status
        routes = [
            *(web.post(path, handler) for path, handler in posts.items()),
            *(web.get(path, handler) for path, handler in gets.items()),
        ]
        self._site = BoundedSite(
            service,
            self.address,
            self.port,
            routes,
            service.body_bytes,
            lambda path: path not in _OPEN_PATHS,
            lambda why: {"error": why[:_SENTENCE]},
            lambda error: _said(error, service.body_bytes),
        )
        address = await self._site.start()
        self.port = self._site.port
        return address

    async def stop(self) -> None:
        """Stops listening."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    # -- requests ------------------------------------------------------------------------------------------------------

    def _failure(self, sentence: str, status: int) -> web.Response:
        assert self._site is not None, "a request comes to a site that has been started"
        return self._site.refusal(sentence, status)

    def _posted(self, answer: Callable[[Any], Awaitable[dict[str, Any]]]) -> Handler:
        """A handler that reads a body and writes an answer in the same format."""

        async def handle(request: web.Request) -> web.StreamResponse:
            from aiohttp import web

            packed = request.content_type == _MSGPACK
            try:
                async with asyncio.timeout(self.service.config.read_s):
                    body = await request.read()
                value = (from_msgpack(body) if packed else from_json(body)) if body else {}
                said = await answer(value)
            except TimeoutError:
                late = self._failure(f"the body did not come within {self.service.config.read_s:g} s", 408)
                late.force_close()
                return late
            except OutOfStepError as error:
                return self._failure(str(error), 409)
            except ModuleNotFoundError:
                return self._failure("MessagePack needs the package msgpack: pip install -e '.[serve]'", 415)
            except ValueError as error:
                return self._failure(str(error), 400)
            if packed:
                import msgpack

                return web.Response(body=msgpack.packb(said), content_type=_MSGPACK)
            return web.Response(body=json.dumps(said).encode(), content_type="application/json")

        return handle

    async def _open_session(self, body: Any) -> dict[str, Any]:
        return self.exchange.open_session(body)

    async def _status(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.json_response(self.service.status())

    async def _schema(self, request: web.Request) -> web.Response:
        from aiohttp import web

        sizes = dict(self.exchange.wire.context.sizes)
        return web.json_response({**schema_of(self.service.config.env["name"]), "x-sizes": sizes})

    async def _metrics(self, request: web.Request) -> web.Response:
        from aiohttp import web
        from prometheus_client import generate_latest

        return web.Response(
            body=generate_latest(self.service.registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _health(self, request: web.Request) -> web.Response:
        from aiohttp import web

        ready = self.service.ready
        return web.json_response({"status": "ok" if ready else "fallback"}, status=200 if ready else 503)

    async def _version(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.json_response({"version": metadata.version("serving-gym"), "protocol": f"v{VERSION}"})


def _said(error: web.HTTPException, body_bytes: int) -> str:
    """One sentence about a status that the HTTP server itself has found."""
    match error.status:
        case 404:
            return "there is no such path; see GET /v1/schema"
        case 405:
            return "this path takes another method"
        case 413:
            return f"the body is longer than {body_bytes} bytes"
        case _:
            return error.reason or "the request is malformed"
