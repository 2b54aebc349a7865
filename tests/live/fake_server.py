"""A small server that speaks as vLLM does, in a thread of its own, and can have every mishap."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType

from aiohttp import web

from serving_gym.envs.live.loop import LoopThread
from serving_gym.envs.live.metric_names import VLLM, usual_names

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CACHE_CONFIG = VLLM.blocks
NEEDED = tuple(usual_names(VLLM).values())
RUNNING, WAITING, KV_USAGE = NEEDED[:3]


@dataclass
class Behaviour:
    """What the server does; may be changed while it runs.

    Attributes:
        token_s: Time between two tokens, seconds.
        first_token_s: Time to the first one, seconds.
        max_num_seqs: Requests served at once; the others wait.
        num_blocks: KV blocks it says it has.
        block_size: Tokens of a block.
        max_model_len: Longest request, tokens.
        omit: Metrics left off `/metrics`.
        metrics_status: HTTP status of `/metrics`.
        metrics_delay_s: Time `/metrics` takes, seconds.
        status: HTTP status of `/v1/completions`; other than 200 it answers an error.
        break_after: Tokens after which a stream breaks off; None: none does.
        hang_after: Tokens after which a stream goes silent; None: none does.
        short_by: Tokens too few at the end of an orderly stream.
        tokens_per_chunk: Tokens sent together.
        garbage: What streams hold in place of chunks.
        per_request_metrics: Whether the last chunk carries the server's own times.
        rewrite_page: What becomes of the text of `/metrics`.
        line_end: Ends the lines of streams.
        after_colon: Stands between `data:` and what is sent.
        done: Whether streams end with `[DONE]`.
        bytes_at_once: Bytes of a stream sent together; None: whole events.
        finish_reason: Of an answer.
        tells_tokens: Whether it tells the tokens of answers that is asked to.
        counts_tokens: Whether every chunk says how many tokens there are.
        frozen: Whether it answers nothing at all, as a process that is stopped.
        stuck: Whether its engine stands still, while its pages answer.
        chatter: Sent again and again once a stream has come to `hang_after`.
        health_status: HTTP status of `/health`.
        failures_left: Completions that it answers with `status`; None: all.
        error_body: Body of such an answer, in place of JSON.
        headers: Of such an answer.
        api_key: Key without which it answers HTTP 401; empty: none is needed.
    """

    token_s: float = 0.002
    first_token_s: float = 0.005
    max_num_seqs: int = 16
    num_blocks: int = 512
    block_size: int = 16
    max_model_len: int = 4096
    omit: tuple[str, ...] = ()
    metrics_status: int = 200
    metrics_delay_s: float = 0.0
    status: int = 200
    break_after: int | None = None
    hang_after: int | None = None
    short_by: int = 0
    tokens_per_chunk: int = 1
    garbage: str = ""
    per_request_metrics: bool = True
    rewrite_page: Callable[[str], str] = str
    line_end: str = "\n"
    after_colon: str = " "
    done: bool = True
    bytes_at_once: int | None = None
    finish_reason: str = "length"
    tells_tokens: bool = True
    counts_tokens: bool = True
    frozen: bool = False
    stuck: bool = False
    chatter: str = ""
    health_status: int = 200
    failures_left: int | None = None
    error_body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    api_key: str = ""


def answer_of(body: dict[str, object]) -> list[int]:
    """Tokens that it answers a request with: they count down from the sum of the prompt."""
    return [sum(body["prompt"]) - place for place in range(int(str(body["max_tokens"])))]  # type: ignore[arg-type]


@dataclass
class FakeServer:
    """The server; use it in a `with` block.

    Attributes:
        behaviour: What it does.
        bodies: Requests it was sent.
        aborted: Streams whose client went away.
        port: Where it listens; 0: wherever there is room.
        base: Path before all others.
        page_path: Where its metrics are.
        tls: Its certificate; None: it speaks plain HTTP.
        seen: Headers of the requests that it was sent.
    """

    behaviour: Behaviour = field(default_factory=Behaviour)
    bodies: list[dict[str, object]] = field(default_factory=list)
    aborted: int = 0
    port: int = 0
    base: str = ""
    page_path: str = "/metrics"
    tls: ssl.SSLContext | None = None
    seen: list[dict[str, str]] = field(default_factory=list)

    def __enter__(self) -> FakeServer:
        self._counts = dict.fromkeys(NEEDED, 0.0)
        self._loop = LoopThread()
        self._loop.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        self._slots = asyncio.Semaphore(self.behaviour.max_num_seqs)
        app = web.Application(middlewares=[self._gate])
        app.router.add_get(f"{self.base}/health", self._health)
        app.router.add_get(f"{self.base}/v1/models", self._models)
        app.router.add_get(f"{self.base}/version", self._version)
        app.router.add_get(f"{self.base}{self.page_path}", self._metrics)
        app.router.add_post(f"{self.base}/v1/completions", self._completions)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        scheme = "http" if self.tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}{self.base}"

    @web.middleware
    async def _gate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.seen.append(dict(request.headers))
        await self._while_true("frozen")
        key = self.behaviour.api_key
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    async def _while_true(self, *names: str) -> None:
        """Waits until none of some states lasts."""
        while any(getattr(self.behaviour, name) for name in names):
            await asyncio.sleep(0.005)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.behaviour.health_status)

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": "tiny", "root": "folder/tiny", "max_model_len": self.behaviour.max_model_len}
        return web.json_response({"data": [entry]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _metrics(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.behaviour.metrics_delay_s)
        labels = f'block_size="{self.behaviour.block_size}",num_gpu_blocks="{self.behaviour.num_blocks + 1}"'
        lines = [f'{name}{{engine="0"}} {value}' for name, value in self._counts.items()]
        lines.append(f"{CACHE_CONFIG}{{{labels}}} 1.0")
        kept = [line for line in lines if line.split("{")[0] not in self.behaviour.omit]
        page = self.behaviour.rewrite_page("\n".join(kept) + "\n")
        return web.Response(text=page, status=self.behaviour.metrics_status)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.behaviour.status != 200 and self.behaviour.failures_left != 0:
            return self._failure()
        asked = len(body["prompt"]) + int(body["max_tokens"])
        if asked > self.behaviour.max_model_len:
            error = f"maximum context length is {self.behaviour.max_model_len} tokens, you asked for {asked}"
            return web.json_response({"error": {"message": error, "code": 400}}, status=400)
        if not body.get("stream"):
            return web.json_response({"choices": [{"text": ""}]})
        self._counts[WAITING] += 1
        waiting = True
        try:
            async with self._slots:
                self._counts[WAITING] -= 1
                self._counts[RUNNING] += 1
                waiting = False
                return await self._stream(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted += 1
            raise
        finally:
            self._counts[WAITING if waiting else RUNNING] -= 1

    def _failure(self) -> web.Response:
        if self.behaviour.failures_left is not None:
            self.behaviour.failures_left -= 1
        body = self.behaviour.error_body
        return web.Response(
            status=self.behaviour.status,
            body=json.dumps({"error": "the queue is full"}).encode() if body is None else body,
            headers=self.behaviour.headers,
        )

    async def _stream(self, request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        wanted = int(str(body["max_tokens"])) - self.behaviour.short_by
        await asyncio.sleep(self.behaviour.first_token_s)
        await self._while_true("stuck")
        self._counts["vllm:prompt_tokens_total"] += len(body["prompt"])  # type: ignore[arg-type]
        sent, asked = 0, bool(body.get("return_token_ids")) and self.behaviour.tells_tokens
        answer = answer_of(body) if asked else []
        if self.behaviour.garbage:
            await self._write(response, self.behaviour.garbage)
        while sent < wanted:
            if sent == self.behaviour.break_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            while sent == self.behaviour.hang_after:
                await response.write(self.behaviour.chatter.encode())
                await asyncio.sleep(0.01)
            await self._while_true("frozen", "stuck")
            before, sent = sent, min(sent + self.behaviour.tokens_per_chunk, wanted)
            choice = {
                "text": "" if self.behaviour.counts_tokens else "word ",
                "token_ids": answer[before:sent] if asked else None,
            }
            counted = {"usage": {"completion_tokens": sent}} if self.behaviour.counts_tokens else {}
            await self._send(response, {"choices": [choice], **counted})
            await asyncio.sleep(self.behaviour.token_s)
        self._counts["vllm:generation_tokens_total"] += sent
        ended = {"text": "", "finish_reason": self.behaviour.finish_reason}
        last: dict[str, object] = {"choices": [ended], "usage": {"completion_tokens": sent}}
        if self.behaviour.per_request_metrics:
            last["metrics"] = {"time_to_first_token_ms": 1e3 * self.behaviour.first_token_s}
        await self._send(response, last)
        if self.behaviour.done:
            await self._write(response, "[DONE]")
        return response

    async def _send(self, response: web.StreamResponse, chunk: dict[str, object]) -> None:
        await self._write(response, json.dumps(chunk))

    async def _write(self, response: web.StreamResponse, data: str) -> None:
        """One event, in pieces where so asked."""
        event = f"data:{self.behaviour.after_colon}{data}{2 * self.behaviour.line_end}".encode()
        step = self.behaviour.bytes_at_once or len(event)
        for first in range(0, len(event), step):
            await response.write(event[first : first + step])
            if step < len(event):
                await asyncio.sleep(0)
