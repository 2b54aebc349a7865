"""The built-in routers over live engines: same names and same choices as in the simulator.

They go by the live body's own counts, which are never stale, so that they do not herd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LIVE_ROUTERS = ("round_robin", "least_requests", "jsq", "affinity")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine as a router sees it.

    Attributes:
        available: Whether it takes requests.
        most_tokens: Longest request that fits, tokens.
        requests: Requests it runs or has in its queue.
        tokens: Tokens it has yet to prefill or holds in its KV cache.
    """

    available: bool
    most_tokens: int
    requests: int
    tokens: int


class Router:
    """Chooses engines.

    Args:
        name: round_robin, least_requests, or jsq (fewest tokens); affinity sets urgent requests apart where engines
            differ in width, and attached ones are taken as equally wide: it is jsq.

    Raises:
        ValueError: a router that live engines cannot have.
    """

    def __init__(self, name: str) -> None:
        if name not in LIVE_ROUTERS:
            raise ValueError(
                f"router={name!r} is not to be had with backend=vllm (allowed: {', '.join(LIVE_ROUTERS)})"
            )
        self.name = name
        self._turn = 0

    def choose(self, engines: Sequence[Candidate], tokens: int) -> int:
        """Engine of a request that may grow to `tokens`; -1: none can take it."""
        fitting = [e for e, engine in enumerate(engines) if engine.available and tokens <= engine.most_tokens]
        if not fitting:
            return -1
        if self.name == "round_robin":
            chosen = min(fitting, key=lambda e: (e - self._turn) % len(engines))
            self._turn = (chosen + 1) % len(engines)
            return chosen
        if self.name == "least_requests":
            return min(fitting, key=lambda e: engines[e].requests)
        return min(fitting, key=lambda e: engines[e].tokens)
