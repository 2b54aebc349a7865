"""Any routing policy as the rollout router of an RL trainer: verl, slime, SkyRL, prime-rl.

Classes of the forms that these have for it; none of them is imported here. Each takes `words`, overrides of
`runners.serve`, as in `["policy=zoo/routing", "cluster=fleet_h100_x4"]`, whose fleet has at least as many places as the
trainer has servers. What a trainer does not tell is neutral (`fleet_view`); nobody waits (`placement`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.runners.serving.openai_requests import (
    DEFAULT_OUTPUT_TOKENS,
    AnswerMeter,
    Lengths,
    lengths_of,
    prefix_ids,
)
from serving_gym.runners.serving.placement import Placement

_GENERATING = ("generate", "completions", "responses")  # ends of the paths that ask for tokens
_FAILED = 400  # HTTP status from which an answer is none


class VerlLoadBalancer:
    """A `RequestLoadBalancer` of verl.

        from verl.workers.rollout.load_balancer.base import LoadBalancerRegistry
        LoadBalancerRegistry.register("serving_gym")(VerlLoadBalancer)

    with `actor_rollout_ref.rollout.router_strategy=serving_gym` and `router_config.words=[...]`. Without `prompt_ids`
    a request has no known length. A release without `request_id` is of the request that has been longest there.

    Source: verl of 2026, the protocol `RequestLoadBalancer` and `get_router_handle`; earlier ones call the same methods
    without `prompt_ids` and `request_id` (`GlobalRequestLoadBalancer` of `verl/workers/rollout/llm_server.py`).

    Args:
        servers: Handle of each server, by id.
        config: `words`; other keys of verl are ignored.

    Raises:
        ValueError: there is no server, more than places, or no policy.
    """

    def __init__(self, servers: dict[str, Any], config: dict[str, Any] | None = None) -> None:
        if not servers:
            raise ValueError("servers is empty: there is nothing to route to")
        words = (config or {}).get("words")
        if not words:
            raise ValueError(
                "router_config.words is missing: name a policy and a cluster, as in [policy=jsq]"
            )
        self._servers = dict(servers)
        self.placement = Placement([str(word) for word in words])
        self.placement.view.seat(self._servers)
        self._numbers: dict[tuple[str, str], list[int]] = {}  # by server and request id

    def acquire_server(self, request_id: str, prompt_ids: Sequence[int] | None = None) -> tuple[str, Any]:
        """Id and handle of the server that takes a request."""
        prompt = [] if prompt_ids is None else list(prompt_ids)
        lengths = Lengths(max(len(prompt), 1), self._longest_output())
        number, server = self.placement.place(self._servers, lengths, prefix_ids({"prompt": prompt}))
        server_id = str(server)
        self._numbers.setdefault((server_id, request_id), []).append(number)
        return server_id, self._servers[server_id]

    def release_server(self, server_id: str, prompt_len: int = 0, request_id: str | None = None) -> None:
        """A request of a server has ended."""
        known = [] if request_id is None else self._numbers.get((server_id, request_id), [])
        number = known[0] if known else self.placement.oldest_at(server_id)
        if number is None:
            return
        for key, numbers in list(self._numbers.items()):
            if number in numbers:
                numbers.remove(number)
                if not numbers:
                    del self._numbers[key]
        self.placement.end(number)

    def add_servers(self, servers: dict[str, Any]) -> None:
        """Servers are there."""
        known = self._servers | servers
        self.placement.view.seat(list(known))
        self._servers = known

    def remove_servers(self, server_ids: Collection[str]) -> None:
        """Servers take no more requests."""
        self._servers = {name: handle for name, handle in self._servers.items() if name not in server_ids}
        self.placement.view.seat(self._servers)

    def get_all_servers(self) -> list[str]:
        """Ids of the servers."""
        return list(self._servers)

    def get_inflight_count(self, server_id: str) -> int:
        """Requests of a server."""
        place = self.placement.view.place_of(server_id)
        return 0 if place is None else self.placement.view.requests_at(place)

    def get_status(self) -> dict[str, Any]:
        """Requests of each server, and counts of decisions."""
        inflight = {name: self.get_inflight_count(name) for name in self._servers}
        return {
            "servers": inflight,
            "total_inflight": sum(inflight.values()),
            "active_servers": len(inflight),
            "registered_handles": list(self._servers),
            **self.placement.counts,
        }

    def _longest_output(self) -> int:
        return int(self.placement.host.spec.fleet.kv_capacity_tokens.max())


_chosen: ContextVar[str | None] = ContextVar("_chosen", default=None)  # server of the present HTTP request


class SlimeMiddleware:
    """Middleware of slime's router, which then sends each generation where the policy says.

    A subclass names the policy, and `--slime-router-middleware-paths` names the subclass:

        class Ours(SlimeMiddleware):
            words = ("policy=zoo/routing", "cluster=fleet_h100_x4")

    Source: slime's `slime/router/router.py` of 2026 (`SlimeRouter`, with `--use-slime-router`), whose `_use_url`
    chooses a worker and counts it, and which quarantines workers in `dead_workers`.

    Args:
        app: The application behind it.
        router: slime's router.
    """

    words: ClassVar[Sequence[str]] = ()

    def __init__(self, app: Callable[..., Awaitable[None]], router: Any) -> None:
        self._app, self._router, self._use_url = app, router, router._use_url
        self.placement = Placement(self.words)
        router._use_url = self._chosen_url

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Handles an HTTP request."""
        path = str(scope.get("path", "")).rstrip("/")
        if scope["type"] != "http" or not path.endswith(_GENERATING):
            await self._app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = _object(b"".join(message.get("body", b"") for message in messages))
        number, url = self._place(body)
        watch = _Watch(self.placement, number, send, bool(body.get("stream")))
        token = _chosen.set(url)
        try:
            await self._app(scope, _replayed(messages, receive), watch)
        finally:
            _chosen.reset(token)
            watch.close()

    def _place(self, body: dict[str, Any]) -> tuple[int | None, str | None]:
        """Number and worker of a request; none where no worker is there, which slime then says itself."""
        workers = [url for url in self._counts() if url not in getattr(self._router, "dead_workers", ())]
        if not workers:
            return None, None
        number, url = self.placement.place(workers, *_measured(body))
        return number, str(url)

    def _chosen_url(self) -> str:
        """In place of the router's `_use_url`: the worker of the present request, counted as slime does."""
        url, counts = _chosen.get(), self._counts()
        if url is None or url not in counts:
            return str(self._use_url())
        counts[url] += 1
        return url

    def _counts(self) -> dict[str, int]:
        """Slime's counts of requests by worker, under its present or its former name."""
        router = self._router
        counts: dict[str, int] = getattr(router, "worker_request_counts", None) or getattr(
            router, "worker_urls", {}
        )
        return counts


class SkyRLRouting:
    """Mixed into SkyRL's `InferenceRouter`, which then sends each generation where the policy says.

        class Router(SkyRLRouting, InferenceRouter):
            words = ("policy=zoo/routing", "cluster=fleet_h100_x4")

    Source: SkyRL's `skyrl/backends/skyrl_train/inference_servers/router.py` (0bf7283), whose `_proxy_to_one` asks
    `_get_server_for_request` for a server of `_server_urls`. Where SkyRL starts vllm-router instead
    (`vllm_router.py`), a proxy with the endpoint picker takes its place.
    """

    words: ClassVar[Sequence[str]] = ()
    _server_urls: list[str]
    _placement: Placement | None = None

    @property
    def placement(self) -> Placement:
        """The policy and its book-keeping."""
        if self._placement is None:
            self._placement = Placement(self.words)
        return self._placement

    def _get_server_for_request(self, request: Any) -> str:
        url, upstream = _chosen.get(), _upstream(super())
        return url if url is not None else str(upstream._get_server_for_request(request))

    async def _proxy_to_one(self, request: Any, path: str) -> Any:
        upstream = _upstream(super())
        if not path.rstrip("/").endswith(_GENERATING):
            return await upstream._proxy_to_one(request, path)
        body = _object(await request.body())
        number, url = self.placement.place(self._server_urls, *_measured(body))
        token = _chosen.set(str(url))
        generated, failed = None, True
        try:
            response = await upstream._proxy_to_one(request, path)
            meter = AnswerMeter(streams=False)
            meter.feed(bytes(response.body), last=True)
            generated, failed = meter.tokens or None, response.status_code >= _FAILED
            return response
        finally:
            _chosen.reset(token)
            self.placement.end(number, generated, failed)


class PrimeRLScheduling:
    """Mixed into prime-rl's `Scheduler`, which then gives each group of rollouts the client that the policy chooses.

        class Ours(PrimeRLScheduling, Scheduler):
            words = ("policy=least_request", "cluster=fleet_h100_x4")

    The scheduler chooses once a group and says nothing of its prompts: policies see counts alone.

    Source: prime-rl's `src/prime_rl/orchestrator/scheduler.py` of early 2026, `_select_least_loaded_client`. Later
    ones know a single address (`clients.py`, 009c030): a proxy with the endpoint picker, or llm-d with the latency
    predictor.
    """

    words: ClassVar[Sequence[str]] = ()
    inference_pool: Any
    _placement: Placement | None = None

    @property
    def placement(self) -> Placement:
        """The policy and its book-keeping."""
        if self._placement is None:
            self._placement = Placement(self.words)
        return self._placement

    async def _select_least_loaded_client(self) -> Any:
        pool = self.inference_pool
        clients = {_client(client): client for client in getattr(pool, "train_clients", None) or pool.clients}
        if not clients:
            return await _upstream(super())._select_least_loaded_client()
        counts = dict.fromkeys(clients, 0)
        for info in self._in_flight():
            key = _client(info.client_config)
            if key in counts:
                counts[key] += 1
        self.placement.view.seat(list(clients))
        self.placement.drop(clients)
        for key, count in counts.items():
            self.placement.reconcile(key, count)
        _, chosen = self.placement.place(list(clients), Lengths(1, DEFAULT_OUTPUT_TOKENS))
        return next(client for key, client in clients.items() if key == chosen)

    def _in_flight(self) -> list[Any]:
        """What the scheduler has under way, under the names of its versions."""
        for name in ("inflight_requests", "inflight_group_rollouts", "inflight_rollouts"):
            found = getattr(self, name, None)
            if found is not None:
                return list(found.values())
        return []


def _upstream(parent: Any) -> Any:
    """The trainer's own class behind a mixin, whose methods are not known here."""
    return parent


def _client(client: Any) -> tuple[str, str | None]:
    """What prime-rl tells clients apart by: address and data-parallel rank."""
    headers = getattr(client, "extra_headers", None) or {}
    return str(client.api_base_url), headers.get("X-data-parallel-rank")


class _Watch:
    """Passes an answer on and counts its tokens.

    Args:
        placement: Is told.
        number: Of the request; None: there is nobody to tell.
        send: Where the answer goes.
        streams: Whether it is a stream.
    """

    def __init__(self, placement: Placement, number: int | None, send: Any, streams: bool) -> None:
        self._placement, self._number, self._send = placement, number, send
        self._meter = AnswerMeter(streams)
        self._failed = True

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._failed = message["status"] >= _FAILED
        elif message["type"] == "http.response.body":
            self._meter.feed(message.get("body", b""), last=not message.get("more_body"))
            if self._number is not None and self._meter.streams:
                self._placement.tokens(self._number, self._meter.tokens)
        await self._send(message)

    def close(self) -> None:
        """The answer is over."""
        if self._number is not None:
            self._placement.end(self._number, self._meter.tokens or None, self._failed)


def _object(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty one for anything else, which the server refuses itself."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _measured(body: dict[str, Any]) -> tuple[Lengths, NDArray[np.int32]]:
    """Lengths and prefix blocks of a request; of none for one that is nested too deeply, which no server takes."""
    try:
        return lengths_of(body), prefix_ids(body)
    except RecursionError:
        return lengths_of({}), prefix_ids({})


def _replayed(messages: list[dict[str, Any]], receive: Any) -> Callable[[], Awaitable[Any]]:
    """Gives messages that were taken once more, then those that follow."""
    left = list(messages)

    async def again() -> Any:
        return left.pop(0) if left else await receive()

    return again
