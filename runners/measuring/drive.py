"""Puts one designed load on a server and waits until it is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from serving_gym.envs.live.http import HttpClient
from serving_gym.envs.live.prompts import FIRST_TOKEN_ID
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.stream import completion_request, stream_completion
from serving_gym.runners.measuring.loads import Load

_SILENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A request of a load: prompt and answer, tokens."""

    prompt: int
    output: int


@dataclass
class Driver:
    """Sends loads to one server.

    Args:
        session: HTTP client.
        server: the server.
        vocab_size: token ids lie below it.
    """

    session: HttpClient
    server: Server
    vocab_size: int
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    async def run(self, load: Load) -> list[Sent]:
        """Serves a load to the end; returns its requests in the order in which they were sent.

        Raises:
            ValueError: the server lost a request, so that nothing can be said about the load.
        """
        sent: list[Sent] = []
        first_tokens = [asyncio.Event() for _ in range(load.decoding)]
        background = [
            asyncio.create_task(self._send(sent, load.prompt, load.output, first)) for first in first_tokens
        ]
        if not load.decoding:
            prompts = [self._send(sent, load.injected_prompt, 1) for _ in range(load.injected)]
            await asyncio.gather(*prompts)
            return sent
        try:
            await self._inject(load, sent, first_tokens)
            await asyncio.gather(*background)
        finally:
            for task in background:
                task.cancel()
        return sent

    async def first_token_s(self, prompt: int) -> float:
        """Sends a request for a single token; returns the time to it at the client, s.

        Raises:
            ValueError: the server lost it.
        """
        first: list[float] = []
        begun_s = time.monotonic()
        await self._stream(prompt, 1, lambda count, at_s: first.append(at_s))
        return first[0] - begun_s

    def pause_s(self, longest_s: float) -> float:
        """A random pause, s, so that what follows falls on no regular moment of the engine."""
        return float(self._rng.uniform(0.0, longest_s))

    async def _inject(self, load: Load, sent: list[Sent], first_tokens: list[asyncio.Event]) -> None:
        """Sends prompts one after another once every other request decodes."""
        for first in first_tokens if load.injected else ():
            await asyncio.wait_for(first.wait(), _SILENCE_S)
        for _ in range(load.injected):
            await self._send(sent, load.injected_prompt, 1)

    async def _send(
        self, sent: list[Sent], prompt: int, output: int, first_token: asyncio.Event | None = None
    ) -> None:
        sent.append(Sent(prompt, output))
        await self._stream(
            prompt, output, lambda count, at_s: first_token.set() if first_token is not None else None
        )

    async def _stream(self, prompt: int, output: int, on_tokens: Callable[[int, float], object]) -> None:
        tokens: list[int] = self._rng.integers(FIRST_TOKEN_ID, self.vocab_size, prompt).tolist()
        end = await stream_completion(
            self.session,
            self.server.url,
            completion_request(self.server.model, tokens, output),
            on_tokens,
            _SILENCE_S,
        )
        if end.reason:
            raise ValueError(f"{self.server.url} lost a request of the measurement: {end.reason}")
