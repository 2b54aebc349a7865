"""Decides about requests for a router that is no simulation: asks the policy, holds, refuses, and falls back.

The rules are those of the simulator's router and of the live backend's (`envs.routing.live.desk`): what is held is
offered again every `env.retry_s`, in the order of priority and arrival; where one is held once more, the others of its
class are left alone until the next retry; a full queue refuses. Beyond them a request is held for a bounded time. Where
the policy fails, or is not to be followed, power of two choices decides.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving_gym.baselines.common.router import in_flight_counts
from serving_gym.envs.routing.state import DEFERRED_PRIORITY, Defer, Dispatch, Reject, RoutingState
from serving_gym.runners.serving.fleet_view import FleetView

HOLD_WITHIN_S = 30.0
OK, TOO_MANY_REQUESTS, UNAVAILABLE = 200, 429, 503


class Decider(Protocol):
    """The part of `service.PolicyService` that a desk uses."""

    env: Any

    async def decide(self, state: Any, chosen: Any = None) -> Any:
        """The policy's answer."""
        ...

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Adds to a counter."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a request.

    Attributes:
        place: Where it goes; None: it is refused.
        priority: Priority that its engine is to give it; None: its own.
        status: HTTP status of a refusal: 429 or 503.
        reason: Why it is refused, or why the policy did not decide; empty if it did.
    """

    place: int | None
    priority: int | None = None
    status: int = OK
    reason: str = ""


@dataclass(slots=True, eq=False)
class _Held:
    """A request in the queue.

    Attributes:
        name: Which one.
        allowed: Places that it may go to; None: all.
        until_s: When it is decided about without the policy, on the loop's clock.
        chosen: What becomes of it.
    """

    name: Hashable
    allowed: Sequence[int] | None
    until_s: float
    chosen: asyncio.Future[Choice]


class RoutingDesk:
    """The desk of one router.

    Args:
        service: The policy.
        view: What the router knows.
        refresh: Called before each decision, to bring gauges up to date.
        hold_within_s: Longest time that a request is held, seconds.
    """

    def __init__(
        self,
        service: Decider,
        view: FleetView,
        refresh: Callable[[], None] = lambda: None,
        hold_within_s: float = HOLD_WITHIN_S,
    ) -> None:
        self.service, self.view, self.hold_within_s = service, view, hold_within_s
        self._refresh = refresh
        self._held: list[_Held] = []
        self._retrying: asyncio.Task[None] | None = None
        self._random = random.Random(0)

    async def choose(
        self, name: Hashable, allowed: Sequence[int] | None = None, may_wait: bool = True
    ) -> Choice:
        """Decides about a request that has arrived at the view, and books where it goes.

        Args:
            name: Which one.
            allowed: Places that it may go to; None: all.
            may_wait: Whether it may be held; else the fallback decides where the policy holds it.
        """
        choice = await self._offer(name, allowed)
        if choice is not None:
            return choice
        if not may_wait:
            return self._decide_instead(name, allowed)
        if len(self._held) >= int(self.service.env.config.queue_capacity):
            return self._refuse(name, TOO_MANY_REQUESTS, "the router's queue is full")
        loop = asyncio.get_running_loop()
        held = _Held(name, allowed, loop.time() + self.hold_within_s, loop.create_future())
        self._held.append(held)
        self.service.count("held_requests")
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.create_task(self._retry())
        try:
            return await held.chosen
        finally:
            if held in self._held:
                self._held.remove(held)

    async def close(self) -> None:
        """Ends the retries; what is held is refused."""
        for held in list(self._held):
            if not held.chosen.done():
                held.chosen.set_result(self._refuse(held.name, UNAVAILABLE, "the router stops"))
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)

    async def _offer(self, name: Hashable, allowed: Sequence[int] | None) -> Choice | None:
        """Asks the policy about a request; None: it is held."""
        self._refresh()
        state = self.view.state(name, allowed)
        own = lighter_of_two(state, self._random)
        if own is None:
            return self._without_room(name, allowed)
        answer = await self.service.decide(state, own)
        if name not in self.view:
            return Choice(None, status=UNAVAILABLE, reason="the client has hung up")
        verdict = answer.decision
        if not answer.applies or verdict is None:
            return self._override(name, own, "error" if answer.error else "mode")
        if answer.error:  # and the service has a decision of its fallback
            self.service.count("routing_overrides", reason="error")
        if isinstance(verdict, Reject):
            return self._refuse(name, TOO_MANY_REQUESTS, "refused by the policy's admission")
        if isinstance(verdict, Dispatch) and verdict.place is not None:
            if verdict.place not in self.view.ready():  # gone while the policy thought
                return self._override(name, own, "gone")
            self.view.send(name, verdict.place)
            return Choice(verdict.place, verdict.priority)
        flight = self.view.flight(name)
        flight.held_before = True
        flight.deferred = flight.deferred or isinstance(verdict, Defer)
        return None

    async def _retry(self) -> None:
        """Offers what is held again and again until nothing is; nobody waits on where that fails."""
        try:
            await self._offer_held()
        finally:
            for held in self._held:
                if not held.chosen.done():
                    held.chosen.set_result(self._refuse(held.name, UNAVAILABLE, "the router has failed"))

    async def _offer_held(self) -> None:
        while self._held:
            await asyncio.sleep(float(self.service.env.config.retry_s))
            left_alone = set()
            for held in sorted(self._held, key=self._rank):
                if held.chosen.done() or held.name not in self.view:
                    continue
                kind = self._kind(held.name)
                late = asyncio.get_running_loop().time() >= held.until_s
                if kind in left_alone and not late:
                    continue
                choice = (
                    self._decide_instead(held.name, held.allowed)
                    if late
                    else await self._offer(held.name, held.allowed)
                )
                if choice is None:
                    left_alone.add(kind)
                elif not held.chosen.done():
                    held.chosen.set_result(choice)
                    self._held.remove(held)

    def _decide_instead(self, name: Hashable, allowed: Sequence[int] | None) -> Choice:
        """Decides about a request that the policy would hold on."""
        self._refresh()
        own = lighter_of_two(self.view.state(name, allowed), self._random)
        return self._without_room(name, allowed) if own is None else self._override(name, own, "held")

    def _without_room(self, name: Hashable, allowed: Sequence[int] | None) -> Choice:
        """What becomes of a request that no place can take: one too long goes where it will be told so."""
        ready = [place for place in self.view.ready() if allowed is None or place in allowed]
        if not ready:
            return self._refuse(name, UNAVAILABLE, "no endpoint is ready for the request")
        return self._override(name, min(ready, key=self.view.requests_at), "no room")

    def _rank(self, held: _Held) -> tuple[int, int]:
        if held.name not in self.view:
            return 0, 0
        flight = self.view.flight(held.name)
        return DEFERRED_PRIORITY if flight.deferred else flight.lengths.priority, flight.index

    def _kind(self, name: Hashable) -> tuple[int, str, bool]:
        flight = self.view.flight(name)
        return flight.lengths.class_id, flight.model, flight.deferred

    def _override(self, name: Hashable, place: int, reason: str) -> Choice:
        if place not in self.view.ready():
            return self._refuse(name, UNAVAILABLE, "no endpoint is ready for the request")
        self.service.count("routing_overrides", reason=reason)
        self.view.send(name, place)
        return Choice(place, reason=reason)

    def _refuse(self, name: Hashable, status: int, reason: str) -> Choice:
        self.service.count("refusals", status=str(status))
        self.view.refuse(name)
        return Choice(None, status=status, reason=reason)


def lighter_of_two(state: RoutingState, draw: random.Random) -> int | None:
    """Power of two choices by requests in flight; None: nobody can take the request.

    Args:
        state: State of the router.
        draw: Draws the two.
    """
    able = state.can_take.nonzero()[0].tolist()
    if not able:
        return None
    counts = in_flight_counts(state)
    drawn = draw.sample(able, k=min(2, len(able)))
    return int(min(drawn, key=lambda place: counts[place]))
