"""Any routing policy as an endpoint picker of the Gateway API inference extension, by Envoy's external processing.

    python -m runners.serve env=routing policy=zoo/routing cluster=... protocols=[endpoint_picker] backend=vllm \
      backend.endpoints=[http://10.0.0.1:8000,http://10.0.0.2:8000] backend.allow_remote=true

`backend.endpoints` are the servers of the pool, one for each place of the fleet, whose `/metrics` are scraped. Of each
HTTP exchange the proxy sends headers and bodies; the picker answers with the endpoint in the header
`x-gateway-destination-endpoint` and in the dynamic metadata, 503 where no endpoint is ready and 429 where the policy
refuses (`env.admission=true`) or the router's queue is full. It counts the tokens of the answer as they pass. A held
request waits here, so the proxy's message timeout must be longer than `HOLD_WITHIN_S`.

Contract: kubernetes-sigs/gateway-api-inference-extension, docs/proposals/004-endpoint-picker-protocol, version 1.0.0 of
2025-07-29, and Envoy 1.36's external_processor.proto. Bodies may come in full-duplex mode, which the protocol asks for,
or buffered; in any other mode the policy is asked on the headers, and the length of the body stands for its prompt.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from serving_gym.envs.live.endpoints import check_endpoints
from serving_gym.runners.serving.bounded_site import may_pass
from serving_gym.runners.serving.fleet_view import FleetView
from serving_gym.runners.serving.gauge_feed import GaugeFeed
from serving_gym.runners.serving.json_body import object_of
from serving_gym.runners.serving.openai_requests import (
    CHARACTERS_PER_TOKEN,
    DEFAULT_OUTPUT_TOKENS,
    AnswerMeter,
    Lengths,
    lengths_of,
    prefix_ids,
    prompt_of,
)
from serving_gym.runners.serving.routing_desk import TOO_MANY_REQUESTS, UNAVAILABLE, RoutingDesk

if TYPE_CHECKING:
    import grpc

    from serving_gym.runners.configuration.schema import BackendConfig
    from serving_gym.runners.serving.proto import ext_proc_pb2 as pb
    from serving_gym.runners.serving.service import PolicyService

OBJECTIVE = (
    "x-gateway-inference-objective"  # names the request's class, where the workload has one of that name
)
MOST_BODY_BYTES = 16 * 2**20
MOST_STREAMS = 10_000
_GENERATING = ("completions", "responses", "generate", "messages")  # ends of the paths that ask for tokens
_STOP_WITHIN_S = 2.0
_BAD_REQUEST, _TOO_LARGE = 400, 413
_GONE = (
    502,
    503,
    504,
)  # HTTP status of an endpoint that nothing is to be sent to before its next good reading


class EndpointPicker:
    """The listener.

    Args:
        service: The policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.

    Raises:
        ValueError: there are not as many endpoints as places, one is not allowed, or gRPC is not installed.
    """

    environments: ClassVar[tuple[str, ...]] = ("routing",)
    checks_token: ClassVar[bool] = True
    default_port: ClassVar[int] = 9002  # of the extension's own picker

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        _check_installed()
        self.service, self.address, self.port = service, address, port
        settings, places = _checked(service.config.backend), len(service.env.policy_spec.fleet)
        if len(settings.endpoints) != places:
            raise ValueError(
                f"backend.endpoints names {len(settings.endpoints)} servers, but cluster has {places} places"
            )
        self.endpoints = tuple(map(_host_and_port, settings.endpoints))
        remember = bool(service.env.config.cluster.prefix_caching)
        self.view = FleetView(service.env.policy_spec, remember_prefixes=remember)
        self.feed = GaugeFeed(self.view, self.endpoints, settings)
        self.desk = RoutingDesk(service, self.view, self.feed.refresh)
        self._server: grpc.aio.Server | None = None
        self._streams = 0

    async def start(self) -> str:
        """Starts scraping and listening; returns the address."""
        import grpc

        from serving_gym.runners.serving import ext_proc
        from serving_gym.runners.serving.health import health_handler
        from serving_gym.runners.serving.proto import ext_proc_pb2 as pb

        await self.feed.start()
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=MOST_STREAMS,
            options=[("grpc.max_receive_message_length", MOST_BODY_BYTES + 2**16), ("grpc.so_reuseport", 0)],
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler(ext_proc.SERVICE, {"Process": process})
        health = health_handler(
            {"": True, "liveness": True, "readiness": None, ext_proc.SERVICE: None}, self.is_ready
        )
        self._server.add_generic_rpc_handlers((handler, health))
        host = f"[{self.address}]" if ":" in self.address else self.address
        try:
            self.port = self._server.add_insecure_port(f"{host}:{self.port}")
        except RuntimeError as error:
            await self.feed.stop()
            raise OSError(f"cannot listen on {host}:{self.port}: {error}") from None
        await self._server.start()
        return f"{host}:{self.port}"

    async def stop(self) -> None:
        """Stops listening; what is held is refused, open exchanges end within two seconds."""
        await self.desk.close()
        if self._server is not None:
            await self._server.stop(_STOP_WITHIN_S)
        await self.feed.stop()

    def is_ready(self) -> bool:
        """Whether an endpoint is ready."""
        self.feed.refresh()
        return bool(self.view.ready())

    async def _process(
        self, messages: AsyncIterator[pb.ProcessingRequest], context: Any
    ) -> AsyncIterator[pb.ProcessingResponse]:
        """One HTTP exchange."""
        metadata = dict(context.invocation_metadata() or ())
        if not may_pass(self.service.config.token, str(metadata.get("authorization", ""))):
            await context.abort(_grpc_code("UNAUTHENTICATED"), "the bearer token is missing or wrong")
        self._streams += 1
        exchange = Exchange(self, self._streams)
        try:
            async for message in messages:
                for response in await exchange.take(message):
                    yield response
                if exchange.refused:
                    return
        finally:
            exchange.close()


class Exchange:
    """One HTTP request and its answer.

    Args:
        picker: The picker.
        name: Name of the request at the view.

    Attributes:
        refused: Whether the client has been answered in place of a server.
    """

    def __init__(self, picker: EndpointPicker, name: int) -> None:
        self._picker, self._view, self._name = picker, picker.view, name
        self._headers: dict[str, str] = {}
        self._subset: list[str] | None = None
        self._body = bytearray()
        self._request_mode = self._response_mode = -1  # full duplex, unless the proxy says otherwise
        self._meter: AnswerMeter | None = None
        self._status, self._endpoint = 200, ""
        self._picked = False
        self._ended = False
        self._why = (UNAVAILABLE, "")
        self.refused = False

    async def take(self, message: pb.ProcessingRequest) -> Iterable[pb.ProcessingResponse]:
        """Takes a message of the proxy; returns the answers to it."""
        from serving_gym.runners.serving import ext_proc

        if message.HasField("protocol_config"):
            self._request_mode = message.protocol_config.request_body_mode
            self._response_mode = message.protocol_config.response_body_mode
        match message.WhichOneof("request"):
            case "request_headers":
                return await self._take_request_headers(message)
            case "request_body":
                return await self._take_request_body(message)
            case "request_trailers":
                held = [] if self._picked else await self._pick()
                return held if self.refused else [*held, ext_proc.go_on(message)]
            case "response_headers":
                self._take_response_headers(message)
            case "response_body":
                body, ended = message.response_body.body, message.response_body.end_of_stream
                self._count(body, ended)
                if _is_duplex(self._response_mode):
                    return ext_proc.streamed_back(body, ended, request=False)
            case "response_trailers":
                self._count(b"", True)
            case _:
                return []
        return [ext_proc.go_on(message)]

    def close(self) -> None:
        """The exchange is over; without an end of the answer it has failed."""
        if not self._ended:
            self._end(failed=True)

    async def _take_request_headers(self, message: pb.ProcessingRequest) -> Iterable[pb.ProcessingResponse]:
        from serving_gym.runners.serving import ext_proc

        self._headers = ext_proc.headers_of(message.request_headers.headers)
        self._subset = ext_proc.subset_of(message)
        ended = message.request_headers.end_of_stream
        if ended or not (_is_duplex(self._request_mode) or _is_buffered(self._request_mode)):
            return await self._pick(on_headers=True)
        return [] if _is_duplex(self._request_mode) else [ext_proc.go_on(message)]

    async def _take_request_body(self, message: pb.ProcessingRequest) -> Iterable[pb.ProcessingResponse]:
        from serving_gym.runners.serving import ext_proc

        if self._picked:
            return [ext_proc.go_on(message)]
        self._body += message.request_body.body
        if len(self._body) > MOST_BODY_BYTES:
            return self._refuse(_TOO_LARGE, f"the body is longer than {MOST_BODY_BYTES} bytes")
        return (
            await self._pick()
            if message.request_body.end_of_stream or _is_buffered(self._request_mode)
            else []
        )

    async def _pick(self, on_headers: bool = False) -> list[pb.ProcessingResponse]:
        """Chooses the endpoint; `on_headers`: without the body."""
        from serving_gym.runners.serving import ext_proc

        path = self._headers.get(":path", "").partition("?")[0]
        if path.rstrip("/").endswith(_GENERATING):
            try:
                body = self._arrive(on_headers)
            except ValueError as error:
                return self._refuse(_BAD_REQUEST, str(error))
            endpoint, new_body = await self._choose(body)
        else:
            endpoint, new_body = self._any_endpoint(), None
        if not endpoint:
            return self._refuse(*self._why)
        self._picked, self._endpoint = True, endpoint
        if on_headers:
            return [ext_proc.picked_on_headers(endpoint)]
        if _is_buffered(self._request_mode):
            return [ext_proc.picked_on_body(endpoint, new_body)]
        length = None if new_body is None else len(new_body)
        sent = bytes(self._body) if new_body is None else new_body
        return [ext_proc.picked_on_headers(endpoint, length), *ext_proc.streamed_back(sent)]

    def _arrive(self, on_headers: bool) -> dict[str, Any] | None:
        """Books the request at the view; returns its body, None: only the headers are there.

        Raises:
            ValueError: the body is no request.
        """
        classes = self._picker.service.env.policy_spec.classes
        objective = self._headers.get(OBJECTIVE, "")
        class_id = classes.index(objective) if objective in classes else 0
        if on_headers:
            self._view.arrive(self._name, self._lengths_of_headers(class_id))
            return None
        body = _object(bytes(self._body))
        try:
            lengths, ids = lengths_of(body, class_id), prefix_ids(body)
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        self._meter = AnswerMeter(bool(body.get("stream")))
        self._view.arrive(self._name, lengths, ids, str(body.get("model") or ""))
        return body

    async def _choose(self, body: dict[str, Any] | None) -> tuple[str, bytes | None]:
        """The policy's endpoint, and the body with a new priority, if it has one; empty: refused."""
        picker = self._picker
        choice = await picker.desk.choose(self._name, self._allowed())
        if choice.place is None:
            self._why = (choice.status, choice.reason)
            return "", None
        endpoint = str(self._view.endpoint_at(choice.place))
        picker.service.count("picks", endpoint=endpoint)
        by_priority = picker.service.env.config.cluster.order == "priority"
        if body is None or choice.priority is None or not by_priority:
            return endpoint, None
        return endpoint, json.dumps(body | {"priority": choice.priority}).encode()

    def _lengths_of_headers(self, class_id: int) -> Lengths:
        declared = self._headers.get("content-length", "")
        tokens = int(declared) // CHARACTERS_PER_TOKEN if declared.isdecimal() else 1
        return Lengths(max(min(tokens, 2**31 - 1), 1), DEFAULT_OUTPUT_TOKENS, class_id=class_id)

    def _allowed(self) -> list[int] | None:
        """Places within the proxy's subset; None: all."""
        if self._subset is None:
            return None
        places = [self._view.place_of(endpoint) for endpoint in self._subset]
        return [place for place in places if place is not None]

    def _any_endpoint(self) -> str:
        """An endpoint for a request that asks for no tokens; empty: none is ready."""
        self._picker.feed.refresh()
        allowed, ready = self._allowed(), self._view.ready()
        able = ready if allowed is None else [place for place in ready if place in allowed]
        self._why = (UNAVAILABLE, "no endpoint is ready for the request")
        self._picker.service.count("passed_on")
        return str(self._view.endpoint_at(min(able, key=self._view.requests_at))) if able else ""

    def _refuse(self, status: int, reason: str) -> list[pb.ProcessingResponse]:
        from serving_gym.runners.serving import ext_proc

        self.refused = True
        level = (
            self._picker.service.log.info if status == TOO_MANY_REQUESTS else self._picker.service.log.warning
        )
        level("refused", extra={"fields": {"status": status, "reason": reason}})
        return [ext_proc.refusal(status, reason)]

    # -- the answer ----------------------------------------------------------------------------------------------------

    def _take_response_headers(self, message: pb.ProcessingRequest) -> None:
        from serving_gym.runners.serving import ext_proc

        headers = ext_proc.headers_of(message.response_headers.headers)
        with contextlib.suppress(ValueError):
            self._status = int(headers.get(":status", "200"))
        self._endpoint = ext_proc.served_by(message) or self._endpoint
        if self._status in _GONE:
            self._picker.feed.suspect(self._endpoint, f"it answers HTTP {self._status}")
        served = self._view.place_of(self._endpoint)
        if served is not None and self._name in self._view:
            self._view.send(self._name, served)  # the proxy tried another one
        if self._meter is not None and headers.get("content-type"):
            streams = headers["content-type"].startswith("text/event-stream")
            self._meter = AnswerMeter(streams)
        if message.response_headers.end_of_stream:
            self._count(b"", True)

    def _count(self, data: bytes, ended: bool) -> None:
        if self._meter is not None:
            self._meter.feed(data, ended)
            if self._meter.streams:  # else all came at once, which tells nothing of the first token
                self._view.tokens(self._name, self._meter.tokens)
        if ended:
            self._end(failed=self._status >= _BAD_REQUEST or bool(self._meter and self._meter.failed))

    def _end(self, failed: bool) -> None:
        self._ended = True
        generated = self._meter.tokens if self._meter is not None else None
        if self._view.end(self._name, generated, failed) is not None:
            self._picker.service.count("answers", outcome="failed" if failed else "finished")


def _grpc_code(name: str) -> Any:
    """A status of gRPC, by its name."""
    import grpc

    return grpc.StatusCode[name]


def _is_duplex(mode: int) -> bool:
    from serving_gym.runners.serving.proto import ext_proc_pb2 as pb

    return mode in (-1, pb.FULL_DUPLEX_STREAMED)


def _is_buffered(mode: int) -> bool:
    from serving_gym.runners.serving.proto import ext_proc_pb2 as pb

    return mode in (pb.BUFFERED, pb.BUFFERED_PARTIAL)


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        ValueError: it is none, or has no prompt.
    """
    found = object_of(body)
    if not prompt_of(found):
        raise ValueError("the body has no prompt: prompt, messages or input is missing")
    return found


def _checked(settings: BackendConfig) -> BackendConfig:
    """The settings of the endpoints, which must run already.

    Raises:
        ValueError: an address is not allowed, or servers are to be launched.
    """
    if settings.launch:
        raise ValueError(
            "backend.launch=true is not available here: name servers that run by backend.endpoints"
        )
    if not settings.endpoints:
        return settings
    return replace(settings, endpoints=check_endpoints(settings.endpoints, settings.allow_remote))


def _host_and_port(url: str) -> str:
    """`ip:port` of a server, which proxies match endpoints by.

    Raises:
        ValueError: its name has no address.
    """
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"backend.endpoints: {parts.hostname} has no address: {error}") from None
    addresses = [entry[4][0] for entry in found]
    address = next((str(entry) for entry in addresses if ":" not in str(entry)), str(addresses[0]))
    return f"[{address}]:{parts.port}" if ":" in address else f"{address}:{parts.port}"


def _check_installed() -> None:
    missing = [name for name in ("grpc", "google.protobuf") if not _is_installed(name)]
    if missing:
        raise ValueError(f"{missing[0]} is not installed: pip install 'serving-gym[serve]'")


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False
