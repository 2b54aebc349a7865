"""The part of vLLM's production-stack that asks its routing logic, as `route_general_request` has it.

Written after vllm-project/production-stack of 2026, without HTTP: the classes that the routing logic is given, its
singletons, and the order of calls.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any


class SingletonABCMeta(abc.ABCMeta):
    """One instance of each class (`vllm_router/utils.py`)."""

    _instances: dict[type, Any] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes the instance, or returns it."""
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args, **kwargs)
        return cls._instances[cls]


class SessionRouter(metaclass=SingletonABCMeta):
    """The routing logic whose place ours takes."""

    def __init__(self, session_key: str | None = None) -> None:
        self.session_key = session_key

    async def route_request(
        self, endpoints: Any, engine_stats: Any, request_stats: Any, request: Any, request_json: Any
    ) -> str:
        """Address of an engine."""
        raise NotImplementedError


@dataclass
class EndpointInfo:
    """An engine (`vllm_router/service_discovery.py`)."""

    url: str
    model_names: list[str] = field(default_factory=lambda: ["m"])


@dataclass
class EngineStats:
    """What was scraped of an engine (`vllm_router/stats/engine_stats.py`)."""

    num_running_requests: int = 0
    num_queuing_requests: int = 0
    gpu_prefix_cache_hit_rate: float = 0.0
    gpu_cache_usage_perc: float = 0.0


@dataclass
class RequestStats:
    """What the stack counts itself (`vllm_router/stats/request_stats.py`)."""

    qps: float = 0.0
    ttft: float = 0.0
    in_prefill_requests: int = 0
    in_decoding_requests: int = 0
    finished_requests: int = 0


class Stack:
    """The router's front end: asks, and counts what goes where.

    Args:
        router: The routing logic.
        engines: Addresses of the engines.
    """

    def __init__(self, router: Any, engines: list[str]) -> None:
        self.router = router
        self.engine_stats = {url: EngineStats() for url in engines}
        self.request_stats: dict[str, RequestStats] = {}

    async def route(self, body: dict[str, Any], model: str = "m") -> str:
        """Asks where a request goes, and counts it as in prefill there."""
        endpoints = [EndpointInfo(url) for url in self.engine_stats if model == "m" or url.endswith(model)]
        url: str = await self.router.route_request(
            endpoints, self.engine_stats, self.request_stats, None, body
        )
        self.request_stats.setdefault(url, RequestStats()).in_prefill_requests += 1
        return url

    def first_token(self, url: str) -> None:
        """A request of an engine has its first token."""
        self.request_stats[url].in_prefill_requests -= 1
        self.request_stats[url].in_decoding_requests += 1

    def finish(self, url: str) -> None:
        """A request of an engine has ended."""
        self.request_stats[url].in_decoding_requests -= 1
        self.request_stats[url].finished_requests += 1
