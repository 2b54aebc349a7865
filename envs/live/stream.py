"""One streamed completion: sends a prompt of token ids and reports every token on arrival."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving_gym.envs.live.events import EventStream

if TYPE_CHECKING:
    import aiohttp

_DONE = b"[DONE]"
_LENGTH = "length"  # vLLM's finish reason of an answer that has reached `max_tokens` or `max_model_len`
_NO_ROOM = (429, 502, 503, 504)
_SLACK = 1.1  # tolerance of the silence limit
_MOST_TEXT = 200  # characters of a server's response quoted in a reason


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended.

    Attributes:
        refused: The server refused the request (an HTTP status before any token).
        lost: The server was unreachable, disconnected, silent or overloaded: another server may serve the request.
        reason: Why there is no complete answer; empty if there is one.
        server_ttft_s: Scheduling to first token by the server's own clock, seconds; None if not reported
            (`--enable-per-request-metrics`).
        token_ids: The answer's tokens, where they were asked for and the server tells them.
    """

    refused: bool = False
    lost: bool = False
    reason: str = ""
    server_ttft_s: float | None = None
    token_ids: list[int] = field(default_factory=list)


def completion_request(
    model: str,
    token_ids: list[int],
    output_tokens: int,
    priority: int | None = None,
    return_token_ids: bool = False,
) -> dict[str, Any]:
    """Body of a `/v1/completions` request for exactly `output_tokens` tokens.

    `continuous_usage_stats` counts the tokens of every chunk: a server that lags puts several into one.

    Args:
        model: name of the served model.
        token_ids: prompt.
        output_tokens: exact number of output tokens.
        priority: vLLM's priority; None leaves it out, as servers with an fcfs queue refuse it.
        return_token_ids: whether the answer is to come with its tokens (vLLM 0.10.2 or later).
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": token_ids,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if return_token_ids:
        body["return_token_ids"] = True
    return body if priority is None else body | {"priority": priority}


async def stream_completion(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    on_tokens: Callable[[int, float], object],
    silence_s: float,
) -> StreamEnd:
    """Sends a request and reads its stream to the end; never raises for errors of the server.

    Args:
        session: HTTP client.
        url: the server.
        body: from `completion_request`.
        on_tokens: called with the number of tokens so far and the monotonic time, whenever it grows.
        silence_s: longest time without data before the server counts as hung, seconds.
    """
    import aiohttp

    counted, wanted, finish_reason = 0, int(body["max_tokens"]), ""
    token_ids: list[int] = []
    server_ttft_s: float | None = None
    unlimited = aiohttp.ClientTimeout(total=None)
    try:
        async with (
            asyncio.timeout(silence_s) as silence,
            session.post(f"{url}/v1/completions", json=body, timeout=unlimited) as response,
        ):
            if response.status != 200:
                text = " ".join((await response.text())[:_MOST_TEXT].split())
                full = response.status in _NO_ROOM
                return StreamEnd(refused=True, lost=full, reason=f"HTTP {response.status}: {text}")
            events = EventStream()
            async for data in response.content.iter_any():
                now_s = time.monotonic()
                _put_off(silence, silence_s)
                for payload in events.feed(data):
                    if payload.strip() == _DONE:
                        return _end(counted, wanted, finish_reason, server_ttft_s, token_ids)
                    chunk = _read(payload)
                    if chunk.error:
                        return StreamEnd(reason=chunk.error)
                    finish_reason = chunk.finish_reason or finish_reason
                    token_ids += chunk.token_ids
                    if chunk.tokens > counted:
                        counted = chunk.tokens
                        on_tokens(counted, now_s)
                    if chunk.server_ttft_s is not None:
                        server_ttft_s = chunk.server_ttft_s
    except TimeoutError:
        return StreamEnd(lost=True, reason=f"nothing came for {silence_s:g} s")
    except (aiohttp.ClientError, OSError) as error:
        return StreamEnd(lost=True, reason=f"{type(error).__name__}: {error}".rstrip(": "))
    if finish_reason or counted == wanted:  # an orderly end without [DONE]
        return _end(counted, wanted, finish_reason, server_ttft_s, token_ids)
    return StreamEnd(lost=True, reason=f"the stream broke off after {counted} tokens")


def _put_off(silence: asyncio.Timeout, silence_s: float) -> None:
    """Notes received data; the timer is reset only after a tenth of the silence limit, as a reset is expensive."""
    now_s, latest_s = asyncio.get_running_loop().time(), silence.when()
    if latest_s is None or latest_s < now_s + silence_s:
        silence.reschedule(now_s + _SLACK * silence_s)


def _end(
    counted: int, wanted: int, finish_reason: str, server_ttft_s: float | None, token_ids: list[int]
) -> StreamEnd:
    """The end of a regular stream: complete with all tokens, or where the server's own limit cut it."""
    if counted != wanted and not (finish_reason == _LENGTH and 0 < counted < wanted):
        return StreamEnd(reason=f"{counted} tokens came where {wanted} were asked for")
    return StreamEnd(server_ttft_s=server_ttft_s, token_ids=token_ids if len(token_ids) == counted else [])


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One event of a stream.

    Attributes:
        tokens: Tokens so far.
        finish_reason: Why the answer ends, in the chunk that ends it.
        token_ids: Tokens that are new, if asked for.
        server_ttft_s: The server's own measurement, in the last chunk.
        error: Error message.
    """

    tokens: int = 0
    finish_reason: str = ""
    token_ids: list[int] = field(default_factory=list)
    server_ttft_s: float | None = None
    error: str = ""


def _read(payload: bytes) -> _Chunk:
    try:
        chunk = json.loads(payload)
        if "error" in chunk or chunk.get("object") == "error":
            return _Chunk(error=f"server error: {str(chunk.get('error', chunk))[:_MOST_TEXT]}")
        usage, figures = chunk.get("usage") or {}, chunk.get("metrics") or {}
        choice: dict[str, Any] = next(iter(chunk.get("choices") or ()), {})
        ttft_ms = figures.get("time_to_first_token_ms")
        return _Chunk(
            int(usage.get("completion_tokens", 0)),
            str(choice.get("finish_reason") or ""),
            [int(token) for token in choice.get("token_ids") or ()],
            None if ttft_ms is None else float(ttft_ms) / 1e3,
        )
    except (ValueError, TypeError, AttributeError) as error:
        return _Chunk(error=f"unreadable answer: {type(error).__name__} {error}")
