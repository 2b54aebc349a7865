"""A small HTTP proxy that plays Envoy: it asks an endpoint picker by ext_proc, and sends the request where it says.

As Envoy with `request_body_mode` and `response_body_mode` FULL_DUPLEX_STREAMED. Every exchange is recorded.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import grpc
from aiohttp import web

from serving_gym.runners.serving import ext_proc
from serving_gym.runners.serving.proto import ext_proc_pb2 as pb


@dataclass
class Exchange:
    """One HTTP exchange; times are seconds since the proxy began.

    Attributes:
        arrival_s: When the request came.
        path: Its path.
        body: Its body.
        status: HTTP status of the answer.
        endpoint: Where it was sent; empty: nowhere.
        picked_s: When the picker had said so.
        chunks: Pieces of the answer: when each came, and its bytes.
    """

    arrival_s: float
    path: str
    body: str
    status: int = 0
    endpoint: str = ""
    picked_s: float = 0.0
    chunks: list[tuple[float, str]] = field(default_factory=list)


class AnsweredError(Exception):
    """The picker answered in place of a server.

    Args:
        answer: Its answer.
    """

    def __init__(self, answer: pb.ImmediateResponse) -> None:
        super().__init__(answer.details)
        self.answer = answer


class Envoy:
    """The proxy.

    Args:
        picker: Address of the endpoint picker, `host:port`.
        subset: Endpoints that it may choose from; None: all.

    Attributes:
        exchanges: What happened, in order of arrival.
        url: Where it listens.
    """

    def __init__(self, picker: str, subset: list[str] | None = None) -> None:
        self._picker, self._subset = picker, subset
        self._begun_s = time.monotonic()
        self.exchanges: list[Exchange] = []
        self.url = ""

    async def __aenter__(self) -> Envoy:
        self._channel = grpc.aio.insecure_channel(self._picker)
        self._process: Any = self._channel.stream_stream(
            f"/{ext_proc.SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()
        await self._client.close()
        await self._channel.close()

    @property
    def now_s(self) -> float:
        """Seconds since the proxy began."""
        return time.monotonic() - self._begun_s

    def records(self) -> list[dict[str, Any]]:
        """The exchanges as plain values."""
        return [asdict(exchange) for exchange in self.exchanges]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        exchange = Exchange(self.now_s, request.path, body.decode(errors="replace"))
        self.exchanges.append(exchange)
        call = self._process()
        try:
            body = await self._pick(call, request, body, exchange)
            return await self._forward(call, request, body, exchange)
        except AnsweredError as answered:
            exchange.status = answered.answer.status.code
            return web.Response(
                status=exchange.status, body=answered.answer.body, content_type="application/json"
            )
        finally:
            call.cancel()

    async def _pick(self, call: Any, request: web.Request, body: bytes, exchange: Exchange) -> bytes:
        """Asks the picker; returns the body to send."""
        first = pb.ProcessingRequest()
        first.protocol_config.request_body_mode = pb.FULL_DUPLEX_STREAMED
        first.protocol_config.response_body_mode = pb.FULL_DUPLEX_STREAMED
        if self._subset is not None:
            hint = first.metadata_context.filter_metadata[ext_proc.SUBSET_NAMESPACE]
            hint.update({ext_proc.SUBSET: self._subset})
        headers = {":method": request.method, ":path": request.path_qs, **request.headers}
        for key, value in headers.items():
            first.request_headers.headers.headers.add(key=key.lower(), raw_value=value.encode())
        first.request_headers.end_of_stream = not body
        await call.write(first)
        if body:
            second = pb.ProcessingRequest()
            second.request_body.body, second.request_body.end_of_stream = body, True
            await call.write(second)
        sent, ended = bytearray(), not body
        while not (ended and exchange.endpoint):
            answer = await _answer(call)
            if answer.HasField("request_headers"):
                exchange.endpoint = answer.dynamic_metadata[ext_proc.NAMESPACE][ext_proc.DESTINATION]
            else:
                streamed = answer.request_body.response.body_mutation.streamed_response
                sent += streamed.body
                ended = streamed.end_of_stream
        exchange.picked_s = self.now_s
        return bytes(sent)

    async def _forward(
        self, call: Any, request: web.Request, body: bytes, exchange: Exchange
    ) -> web.StreamResponse:
        """Sends the request on, and the answer through the picker to the client."""
        unlimited = aiohttp.ClientTimeout(total=None)
        headers = {"Content-Type": request.content_type} if body else {}
        url = f"http://{exchange.endpoint}{request.path_qs}"
        async with self._client.request(
            request.method, url, data=body, headers=headers, timeout=unlimited
        ) as upstream:
            exchange.status = upstream.status
            await self._tell_headers(call, upstream, exchange)
            response = web.StreamResponse(status=upstream.status)
            response.content_type = upstream.content_type
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                exchange.chunks.append((self.now_s, chunk.decode(errors="replace")))
                await response.write(await _through(call, chunk, ended=False))
            await response.write(await _through(call, b"", ended=True))
            await call.done_writing()
        return response

    async def _tell_headers(self, call: Any, upstream: aiohttp.ClientResponse, exchange: Exchange) -> None:
        message = pb.ProcessingRequest()
        served = message.metadata_context.filter_metadata[ext_proc.NAMESPACE]
        served.update({ext_proc.SERVED: exchange.endpoint})
        headers = {":status": str(upstream.status), "content-type": upstream.content_type}
        for key, value in headers.items():
            message.response_headers.headers.headers.add(key=key, raw_value=value.encode())
        await call.write(message)
        await _answer(call)


async def _through(call: Any, chunk: bytes, ended: bool) -> bytes:
    """A piece of an answer, as the picker gives it back."""
    message = pb.ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = chunk, ended
    await call.write(message)
    back = bytearray()
    while len(back) < len(chunk) or not chunk:
        answer = await _answer(call)
        back += answer.response_body.response.body_mutation.streamed_response.body
        if not chunk:
            break
    return bytes(back)


async def _answer(call: Any) -> pb.ProcessingResponse:
    """The picker's next answer.

    Raises:
        AnsweredError: it answers the client itself.
        ConnectionError: it has ended the exchange.
    """
    answer = await asyncio.wait_for(call.read(), 60)
    if answer is grpc.aio.EOF:
        raise ConnectionError("the endpoint picker has ended the exchange")
    if answer.HasField("immediate_response"):
        raise AnsweredError(answer.immediate_response)
    found: pb.ProcessingResponse = answer
    return found
