"""A routing policy in the process of another router, which asks for a server and tells when a request has ended.

The form under the classes of `rollout_routers` and `production_stack`: nobody waits in it, so where the policy holds a
request, fails, or is not to be followed, power of two choices decides, and that is counted.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.fleet_view import FleetView
from serving_gym.runners.serving.openai_requests import Lengths
from serving_gym.runners.serving.routing_desk import lighter_of_two
from serving_gym.runners.serving.service import rehearsed_host

SETTLED_AFTER_S = 0.1  # age from which the other router's own counts know a request


class Placement:
    """The policy and its book-keeping.

    Args:
        words: Overrides as of `runners.serve`: the policy, its setting, and `mode`.
        clock: Monotonic seconds.

    Attributes:
        view: What the router knows.
        counts: `decisions`, `overrides` and their reasons: `held`, `error`, `mode`, or `no room` where a request is too
            long for every place, and whose server will say so itself.
    """

    def __init__(self, words: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        config = composed("serve", ServeConfig, ["env=routing", *words])
        self.host = rehearsed_host(config)
        remember = bool(config.environment.arguments["cluster"].prefix_caching)
        self.view = FleetView(self.host.spec, remember_prefixes=remember, clock=clock)
        self.counts: Counter[str] = Counter()
        self._random = random.Random(config.seed)
        self._sent: dict[Hashable, dict[int, None]] = {}  # requests of each server, oldest first
        self._numbers = 0

    def place(
        self,
        servers: Collection[Hashable],
        lengths: Lengths,
        hash_ids: NDArray[np.int32] | None = None,
        allowed: Collection[Hashable] | None = None,
    ) -> tuple[int, Hashable]:
        """Chooses a server for a request.

        Args:
            servers: Servers there are.
            lengths: Lengths of the request.
            hash_ids: (blocks,) its prefix blocks; None: they are unknown.
            allowed: Servers that it may go to; None: all.

        Returns:
            Number of the request, and the server.

        Raises:
            ValueError: there are more servers than places, or none to choose from.
        """
        open_to = list(servers if allowed is None else allowed)
        if not open_to:
            raise ValueError("there is no server that the request may go to")
        self.view.seat(servers)
        name = self._numbers
        self._numbers += 1
        self.view.arrive(name, lengths, np.zeros(0, np.int32) if hash_ids is None else hash_ids)
        places = [place for server in open_to if (place := self.view.place_of(server)) is not None]
        place = self._decide(name, places)
        self.view.send(name, place)
        server = self.view.endpoint_at(place)
        self._sent.setdefault(server, {})[name] = None
        return name, server

    def _decide(self, name: int, places: list[int]) -> int:
        state = self.view.state(name, places)
        own = lighter_of_two(state, self._random)
        self.counts["decisions"] += 1
        if own is None:
            self.counts.update(("overrides", "no room"))
            return min(places, key=self.view.requests_at)
        answer = self.host.ask(state, own)
        place = answer.place if answer.applies else None
        if place is None:
            reason = "error" if answer.error else "held" if answer.applies else "mode"
            self.counts.update(("overrides", reason))
            return own
        return place

    def tokens(self, name: int, generated: int) -> None:
        """A request has `generated` output tokens."""
        self.view.tokens(name, generated)

    def end(self, name: int, generated: int | None = None, failed: bool = False) -> None:
        """A request has ended.

        Args:
            name: Its number.
            generated: Its output tokens; None: those counted so far.
            failed: Whether it has no complete answer.
        """
        self.view.end(name, generated, failed)
        for sent in self._sent.values():
            sent.pop(name, None)

    def oldest_at(self, server: Hashable) -> int | None:
        """Number of the request that has been longest at a server; None: there is none."""
        return next(iter(self._sent.get(server, ())), None)

    def drop(self, servers: Collection[Hashable]) -> None:
        """Requests of servers that are not among these have ended without an answer."""
        for server in [server for server in self._sent if server not in servers]:
            for name in list(self._sent.pop(server)):
                self.view.end(name, failed=True)

    def reconcile(self, server: Hashable, in_flight: int, in_prefill: int = 0) -> None:
        """Adapts the requests of a server to the other router's own counts, which do not say which ones they are.

        The oldest are taken to have ended, and the newest to be without a token. Those sent just now are left alone.

        Args:
            server: Which one.
            in_flight: Requests that it has.
            in_prefill: Of these, without a first token.
        """
        now_s, sent = self.view.now_s, self._sent.get(server, {})
        settled = [
            name
            for name in sent
            if name not in self.view or now_s - self.view.flight(name).arrival_s >= SETTLED_AFTER_S
        ]
        for name in settled[: max(len(sent) - in_flight, 0)]:
            self.end(name)
        for name in list(sent)[: max(in_flight - in_prefill, 0)]:
            if name in self.view:
                self.view.tokens(name, max(self.view.flight(name).generated, 1))
