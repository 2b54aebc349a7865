"""The part of each trainer's rollout code that asks for a server, as the trainer has it: what our classes stand in.

Written after the sources that `serving_gym.runners.serving.rollout_routers` names, without HTTP: a server is an object
with `generate(prompt_ids, max_tokens)`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any


class VerlClient:
    """verl's `LLMServerClient`: acquires a server, generates there, and releases it."""

    def __init__(self, balancer: Any, tells_prompts: bool) -> None:
        self.balancer, self.tells_prompts = balancer, tells_prompts

    async def generate(self, request_id: str, prompt_ids: list[int], max_tokens: int) -> list[int]:
        """Tokens of an answer."""
        told = {"prompt_ids": prompt_ids} if self.tells_prompts else {}
        server_id, server = self.balancer.acquire_server(request_id, **told)
        try:
            return await server.generate(prompt_ids, max_tokens)
        finally:
            ended = {"prompt_len": len(prompt_ids), "request_id": request_id} if self.tells_prompts else {}
            self.balancer.release_server(server_id, **ended)


class SlimeRouter:
    """slime's `SlimeRouter`: fewest requests in flight, behind middleware."""

    def __init__(self, servers: dict[str, Any], middleware: Any = None) -> None:
        self.servers = servers
        self.worker_request_counts = dict.fromkeys(servers, 0)
        self.dead_workers: set[str] = set()
        self.app: Any = self.proxy
        if middleware is not None:
            self.app = middleware(self.proxy, router=self)

    def _use_url(self) -> str:
        url = min(self.worker_request_counts, key=lambda one: self.worker_request_counts[one])
        self.worker_request_counts[url] += 1
        return url

    def _finish_url(self, url: str) -> None:
        self.worker_request_counts[url] -= 1
        assert self.worker_request_counts[url] >= 0

    async def proxy(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends a request on."""
        url = self._use_url()
        try:
            body = json.loads((await receive())["body"])
            tokens = await self.servers[url].generate(
                body["input_ids"], body["sampling_params"]["max_new_tokens"]
            )
            answer = {"output_ids": tokens, "meta_info": {"completion_tokens": len(tokens)}}
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
        finally:
            self._finish_url(url)

    async def generate(self, prompt_ids: list[int], max_tokens: int) -> list[int]:
        """A client's call of `/generate`."""
        body = json.dumps(
            {"input_ids": prompt_ids, "sampling_params": {"max_new_tokens": max_tokens}}
        ).encode()
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app({"type": "http", "path": "/generate", "method": "POST"}, receive, send)
        tokens: list[int] = json.loads(sent[-1]["body"])["output_ids"]
        return tokens


class SkyRLRouter:
    """SkyRL's `InferenceRouter`: round robin, or by a hash of the session."""

    def __init__(self, servers: dict[str, Any]) -> None:
        self.servers, self._server_urls, self._turn = servers, list(servers), 0

    def _get_server_for_request(self, request: Any) -> str:
        session = request.headers.get("X-Session-ID")
        self._turn += 1
        return self._server_urls[(hash(session) if session else self._turn) % len(self._server_urls)]

    async def _proxy_to_one(self, request: Any, path: str) -> Any:
        server = self.servers[self._get_server_for_request(request)]
        body = json.loads(await request.body())
        tokens = await server.generate(body["prompt"], body["max_tokens"])
        answer = {"token_ids": tokens, "usage": {"completion_tokens": len(tokens)}}
        return SimpleNamespace(body=json.dumps(answer).encode(), status_code=200)

    async def generate(self, session: str, prompt_ids: list[int], max_tokens: int) -> list[int]:
        """A client's call of `/v1/completions`."""
        body = json.dumps({"prompt": prompt_ids, "max_tokens": max_tokens}).encode()

        async def read() -> bytes:
            return body

        request = SimpleNamespace(headers={"X-Session-ID": session}, body=read)
        response = await self._proxy_to_one(request, "/v1/completions")
        tokens: list[int] = json.loads(response.body)["token_ids"]
        return tokens


class PrimeRLScheduler:
    """prime-rl's `Scheduler` of early 2026: each group of rollouts gets the client with the fewest requests."""

    def __init__(self, servers: dict[str, Any]) -> None:
        self.servers = servers
        clients = [SimpleNamespace(api_base_url=url, extra_headers={}) for url in servers]
        self.inference_pool = SimpleNamespace(train_clients=clients)
        self.inflight_requests: dict[object, Any] = {}
        self._groups: dict[int, asyncio.Task[Any]] = {}

    async def _select_least_loaded_client(self) -> Any:
        counts = Counter(info.client_config.api_base_url for info in self.inflight_requests.values())
        return min(self.inference_pool.train_clients, key=lambda client: counts[client.api_base_url])

    async def generate(self, group: int, prompt_ids: list[int], max_tokens: int) -> list[int]:
        """A request of a rollout, to the client of its group."""
        if group not in self._groups:
            self._groups[group] = asyncio.ensure_future(self._select_least_loaded_client())
        client, key = await self._groups[group], object()
        self.inflight_requests[key] = SimpleNamespace(client_config=client)
        try:
            tokens: list[int] = await self.servers[client.api_base_url].generate(prompt_ids, max_tokens)
            return tokens
        finally:
            del self.inflight_requests[key]
