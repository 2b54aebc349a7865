"""One streamed completion: sends a prompt of token ids and reports every token on arrival."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving_gym.envs.live.events import EventStream
from serving_gym.envs.live.http import (
    MOST_TEXT,
    AnswerError,
    HttpClient,
    check_encoding,
    clean,
    http_errors,
    read_beginning,
    redirect_reason,
    why,
)

if TYPE_CHECKING:
    import aiohttp

_DONE = b"[DONE]"
_LENGTH = "length"  # finish reason of an answer that has reached `max_tokens` or `max_model_len`
_FULL = (429, 503)  # the server has no room: a request that is tried in vain has been refused
_SLACK = 1.1  # tolerance of the silence limit
_MOST_TOKEN_ID = 1 << 31
_MOST_TTFT_S = 1e6


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended.

    Attributes:
        refused: The server refused the request before any token.
        lost: The server was unreachable, failed, disconnected, silent or overloaded: another may serve the request.
        reason: Why there is no complete answer; empty if there is one.
        server_ttft_s: Scheduling to first token by the server's own clock, seconds; None if not reported
            (`--enable-per-request-metrics`).
        token_ids: The answer's tokens, where they were asked for and the server tells them.
        reached: Whether the server has answered at all.
    """

    refused: bool = False
    lost: bool = False
    reason: str = ""
    server_ttft_s: float | None = None
    token_ids: list[int] = field(default_factory=list)
    reached: bool = True


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
    client: HttpClient,
    url: str,
    body: dict[str, Any],
    on_tokens: Callable[[int, float], object],
    silence_s: float,
) -> StreamEnd:
    """Sends a request and reads its stream to the end; never raises for errors of the server.

    Args:
        client: HTTP client.
        url: the server.
        body: from `completion_request`.
        on_tokens: called with the number of tokens so far and the monotonic time, whenever it grows.
        silence_s: longest time without a token before the server counts as hung, seconds.
    """
    answer = _Answer(int(body["max_tokens"]), on_tokens)
    reached = False
    try:
        async with (
            asyncio.timeout(silence_s) as silence,
            client.post(url, "/v1/completions", body) as response,
        ):
            reached = True
            if response.status != 200:
                return await _refusal(response)
            check_encoding(response)
            async for data in response.content.iter_any():
                if (end := answer.take(data)) is not None:
                    return end
                if answer.grew:
                    _put_off(silence, silence_s)
            if (end := answer.finish()) is not None:
                return end
    except TimeoutError:
        return StreamEnd(lost=True, reason=f"no token came for {silence_s:g} s", reached=reached)
    except AnswerError as error:
        return StreamEnd(lost=True, reason=str(error))
    except http_errors() as error:
        return StreamEnd(lost=True, reason=why(error), reached=reached)
    return StreamEnd(lost=True, reason=f"the stream broke off after {answer.counted} tokens")


async def _refusal(response: aiohttp.ClientResponse) -> StreamEnd:
    """What becomes of a request that was answered with a status other than 200."""
    status = response.status
    if 300 <= status < 400:
        return StreamEnd(lost=True, reason=redirect_reason(response))
    reason = f"HTTP {status}: {await read_beginning(response)}".rstrip(": ")
    if status >= 500 or status in (*_FULL, 408):
        return StreamEnd(refused=status in _FULL, lost=True, reason=reason)
    return StreamEnd(refused=True, reason=reason)


def _put_off(silence: asyncio.Timeout, silence_s: float) -> None:
    """Notes a token; the timer is reset only after a tenth of the silence limit, as a reset is expensive."""
    now_s, latest_s = asyncio.get_running_loop().time(), silence.when()
    if latest_s is None or latest_s < now_s + silence_s:
        silence.reschedule(now_s + _SLACK * silence_s)


class _Answer:
    """What has come of an answer.

    Args:
        wanted: Tokens that were asked for.
        on_tokens: As of `stream_completion`.

    Attributes:
        counted: Tokens that have come.
        grew: Whether the last bytes brought any.
    """

    def __init__(self, wanted: int, on_tokens: Callable[[int, float], object]) -> None:
        self.wanted, self.on_tokens = wanted, on_tokens
        self.counted, self.grew = 0, False
        self._events = EventStream()
        self._finish_reason = ""
        self._token_ids: list[int] = []
        self._server_ttft_s: float | None = None

    def take(self, data: bytes) -> StreamEnd | None:
        """Takes bytes of the stream; returns its end, if it has come.

        Raises:
            AnswerError: an event does not end.
        """
        now_s, self.grew = time.monotonic(), False
        return self._take_events(self._events.feed(data), now_s)

    def finish(self) -> StreamEnd | None:
        """The connection has ended; returns the end, if it is an orderly one."""
        end = self._take_events(self._events.finish(), time.monotonic())
        if end is not None and not end.reason:
            return end
        if self._finish_reason or self.counted == self.wanted:  # without [DONE]
            return self._end()
        return None

    def _take_events(self, events: list[bytes], now_s: float) -> StreamEnd | None:
        for payload in events:
            if payload == _DONE:
                return self._end()
            chunk = _read(payload, self.counted, self.wanted)
            if chunk.error:
                return StreamEnd(refused=chunk.refused, lost=not chunk.refused, reason=chunk.error)
            self._finish_reason = chunk.finish_reason or self._finish_reason
            self._token_ids += chunk.token_ids
            if chunk.server_ttft_s is not None:
                self._server_ttft_s = chunk.server_ttft_s
            if chunk.tokens > self.counted:
                self.counted, self.grew = chunk.tokens, True
                self.on_tokens(self.counted, now_s)
        return None

    def _end(self) -> StreamEnd:
        """The end of a regular stream: complete with all tokens, or where the server's own limit cut it."""
        cut = self._finish_reason == _LENGTH and 0 < self.counted < self.wanted
        if self.counted != self.wanted and not cut:
            reason = f"{self.counted} tokens came where {self.wanted} were asked for"
            return StreamEnd(lost=self.counted == 0, reason=reason)
        known = self._token_ids if len(self._token_ids) == self.counted else []
        return StreamEnd(server_ttft_s=self._server_ttft_s, token_ids=known)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One event of a stream.

    Attributes:
        tokens: Tokens so far.
        finish_reason: Why the answer ends, in the chunk that ends it.
        token_ids: Tokens that are new, if asked for.
        server_ttft_s: The server's own measurement, in the last chunk.
        error: Error message.
        refused: Whether the error is the request's, which no other server would take either.
    """

    tokens: int = 0
    finish_reason: str = ""
    token_ids: list[int] = field(default_factory=list)
    server_ttft_s: float | None = None
    error: str = ""
    refused: bool = False


def _read(payload: bytes, counted: int, wanted: int) -> _Chunk:
    """Reads an event.

    A server that does not count tokens in every chunk (`continuous_usage_stats`) is taken to send one in each that has
    text, or as many as it has ids.

    Args:
        payload: its data.
        counted: tokens before it.
        wanted: tokens asked for; more make it unreadable.
    """
    try:
        chunk = json.loads(payload)
        if "error" in chunk or chunk.get("object") == "error":
            return _error(chunk)
        choice: dict[str, Any] = next(iter(chunk.get("choices") or ()), {})
        token_ids = [_count(token, _MOST_TOKEN_ID) for token in choice.get("token_ids") or ()]
        usage = chunk.get("usage") or {}
        if "completion_tokens" in usage:
            tokens = _count(usage["completion_tokens"], wanted)
        else:
            tokens = min(counted + (len(token_ids) or bool(choice.get("text"))), wanted)
        return _Chunk(
            tokens,
            str(choice.get("finish_reason") or "")[:MOST_TEXT],
            token_ids,
            _ttft_s(chunk.get("metrics")),
        )
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        text = clean(f"{type(error).__name__} {error}")
        return _Chunk(error=f"unreadable answer: {text}")


def _error(chunk: dict[str, Any]) -> _Chunk:
    """Reads an error object in a stream.

    OpenAI and vLLM send `{"error": {"message", "type", "code"}}`, in which vLLM's code is the HTTP status; SGLang and
    older vLLM `{"object": "error", "message", "code"}`; others a text under `error`.
    """
    told = chunk.get("error", chunk)
    code = told.get("code") if isinstance(told, dict) else None
    refused = isinstance(code, int) and 400 <= code < 500 and code not in (408, 429)
    return _Chunk(error=f"server error: {clean(str(told))}", refused=refused)


def _count(value: object, most: int) -> int:
    """A whole number from 0.

    Raises:
        ValueError: it is none, or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is no whole number from 0 to {most}")
    return value


def _ttft_s(figures: object) -> float | None:
    """The server's own time to first token, seconds; None where it tells none, or no time."""
    told = figures.get("time_to_first_token_ms") if isinstance(figures, dict) else None
    if isinstance(told, bool) or not isinstance(told, (int, float)):
        return None
    return told / 1e3 if 0 <= told < 1e3 * _MOST_TTFT_S else None
