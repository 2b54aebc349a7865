"""The built-in routers over live engines, with the names and rules of the simulator.

They use the client's own counts, which are never stale, so that they do not herd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LIVE_ROUTERS = ("round_robin", "least_requests", "jsq", "affinity")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine as a router sees it.

    Attributes:
        available: Whether it takes requests.
        most_tokens: Longest request that fits, tokens.
        requests: Requests it runs or has in its queue.
        tokens: Tokens to prefill, plus tokens in its KV cache.
    """

    available: bool
    most_tokens: int
    requests: int
    tokens: int


# Engine of a row that may grow to so many tokens; -1: none can take it.
Chooser = Callable[[Sequence[Candidate], int, int], int]


class Router:
    """Chooses engines.

    Args:
        name: round_robin, least_requests, or jsq (fewest tokens); affinity sets urgent requests apart where engines
            differ in width, and attached ones are taken as equally wide: it is jsq.

    Raises:
        ValueError: the router is not available on live engines.
    """

    def __init__(self, name: str) -> None:
        if name not in LIVE_ROUTERS:
            raise ValueError(
                f"router={name!r} is not available with backend=vllm (allowed: {', '.join(LIVE_ROUTERS)})"
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


class WeightedRouter:
    """Chooses engines by shares of each workload type, as the simulator's `weighted` does.

    Among engines with a share of its type that can take a request, smooth weighted round robin chooses; if there is
    none, the engine with the fewest tokens that can take it.

    Attributes:
        types: (N,), workload type of each row.
    """

    def __init__(self) -> None:
        self.types: NDArray[np.int64] = np.zeros(0, np.int64)
        self._shares: NDArray[np.float64] = np.zeros((0, 0))
        self._credit = self._shares.copy()
        self._least = Router("jsq")

    def share_out(self, shares: NDArray[np.float64]) -> None:
        """Sets the shares of requests per engine.

        Args:
            shares: (E, J), of each type's requests that go to each engine, relative.
        """
        if not np.array_equal(shares, self._shares):
            self._shares, self._credit = shares.copy(), np.zeros(shares.shape)

    def choose(self, engines: Sequence[Candidate], tokens: int, row: int) -> int:
        """Engine of a row that may grow to `tokens`; -1: none can take it."""
        kind = self.types[row]
        able = [
            e
            for e, engine in enumerate(engines)
            if engine.available and tokens <= engine.most_tokens and self._shares[e, kind] > 0
        ]
        if not able:
            return self._least.choose(engines, tokens)
        owed = self._credit[able, kind] + self._shares[able, kind] / self._shares[able, kind].sum()
        self._credit[able, kind] = owed
        best = able[int(owed.argmax())]
        self._credit[best, kind] -= 1.0
        return best
