"""Which group a request goes to: the built-in routers of `envs.simulator`, over the groups that take requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .groups import Group

ROUTERS = ("round_robin", "least_requests", "jsq", "affinity")


@dataclass(frozen=True)
class Candidate:
    """A group that takes requests.

    Attributes:
        group: The group.
        requests: Requests it runs or has in its queue.
        tokens: Tokens it has yet to prefill or holds in its KV cache.
        most_tokens: Longest request that fits its blocks.
    """

    group: Group
    requests: int
    tokens: int
    most_tokens: int

    def with_one_more(self, tokens: int) -> Candidate:
        """The group once it has another request, of so many tokens."""
        return replace(self, requests=self.requests + 1, tokens=self.tokens + tokens)


class Router:
    """Chooses groups.

    Args:
        name: round_robin, least_requests, jsq (fewest tokens over ranks) or affinity (urgent requests to the widest
            groups, the others to the narrower ones where there are any, jsq among them).

    Raises:
        ValueError: an unknown name.
    """

    def __init__(self, name: str) -> None:
        if name not in ROUTERS:
            raise ValueError(f"router must be one of {', '.join(ROUTERS)}, got {name!r}")
        self.name = name
        self._turn = 0

    def choose(self, candidates: Sequence[Candidate], tokens: int, urgent: bool) -> Group | None:
        """Group of a request; None: none can hold it.

        Args:
            candidates: groups that take requests, left to right.
            tokens: what the request may grow to.
            urgent: whether its priority is better than the ordinary, 0.
        """
        fitting = [candidate for candidate in candidates if tokens <= candidate.most_tokens]
        if not fitting:
            return None
        if self.name == "round_robin":
            chosen = min(fitting, key=lambda c: (c.group.first < self._turn, c.group.first))
            self._turn = chosen.group.first + chosen.group.length
            return chosen.group
        if self.name == "least_requests":
            return min(fitting, key=lambda c: (c.requests, c.group.first)).group
        if self.name == "affinity":
            fitting = _of_affine_width(fitting, urgent)
        return min(fitting, key=lambda c: (c.tokens / c.group.length, c.requests, c.group.first)).group


def _of_affine_width(fitting: list[Candidate], urgent: bool) -> list[Candidate]:
    widest = max(candidate.group.length for candidate in fitting)
    wide = [candidate for candidate in fitting if candidate.group.length == widest]
    narrow = [candidate for candidate in fitting if candidate.group.length < widest]
    return wide if urgent else narrow or wide
