"""The router's desk in front of live engines: what is offered next, what is held, and when nobody decides in time.

It follows the simulator's (`envs.simulator.kernel.offers`): requests are offered one after another as they arrive; what
is held is offered again at every retry, oldest first within its priority; where one is held once more, the others of
its class are left alone until the next retry. Where admission is a decision, a request may also be refused at once, or
deferred behind all others. Beyond it there is a deadline: a request that has not been decided about
in time is sent by power of two choices, and that is on record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from serving_gym.envs.live.replay import Replay
from serving_gym.envs.live.routers import Candidate
from serving_gym.envs.routing.state import DEFERRED_PRIORITY
from serving_gym.envs.workload.schema import Workload


@dataclass(frozen=True, slots=True)
class Override:
    """A decision that was taken out of the policy's hands.

    Attributes:
        row: Of the workload.
        place: Where the request went instead; None: it was held.
        reason: Why.
    """

    row: int
    place: int | None
    reason: str


class LiveDesk:
    """Lives in the loop's thread.

    Args:
        workload: Requests of the run.
        replay: Sends them.
        candidates: The engines as they are now, for a row.
        serves: Which engines serve a row's model.
        retry_s: Time after which held requests are offered again, s.
        capacity: Requests that may be held; one more is refused.
        decide_within_s: Longest time from arrival to a decision, s; infinite: there is no deadline.
        seed: Of the choices that are taken for the policy.
        on_change: Told when there may be something to decide.

    Attributes:
        row: The request that is offered, -1: none.
        held_before: Whether it has been held.
        held: Requests in the queue, oldest first.
        deferred: Requests that have been deferred.
        sent: (classes,) requests sent to an engine.
        overrides: Decisions that were taken out of the policy's hands, in order.
        impossible: Actions that were no place which could take the request.
    """

    def __init__(
        self,
        workload: Workload,
        replay: Replay,
        candidates: Callable[[int], list[Candidate]],
        serves: Callable[[int], list[int]],
        retry_s: float,
        capacity: int,
        decide_within_s: float,
        seed: int,
        on_change: Callable[[], None],
    ) -> None:
        self.workload, self.replay, self.candidates, self.serves = workload, replay, candidates, serves
        self.retry_s, self.capacity, self.decide_within_s = retry_s, capacity, decide_within_s
        self.on_change = on_change
        self.row, self.held_before = -1, False
        self.held: list[int] = []
        self.deferred: set[int] = set()
        self.sent = np.zeros(len(workload.classes), np.int64)
        self.overrides: list[Override] = []
        self.impossible = 0
        self._rng = np.random.default_rng(seed)
        self._fresh: deque[int] = deque()
        self._following: deque[int] = deque()
        self._held_again: set[tuple[int, int]] = set()
        self._deferred_again: set[tuple[int, int]] = set()
        self._retry: asyncio.TimerHandle | None = None
        replay.on_give_up = self.forget

    # -- what happens --------------------------------------------------------------------------------------------------

    def arrive(self, row: int) -> None:
        """A request has come, or has come back because its server was lost."""
        self._fresh.append(row)
        if np.isfinite(self.decide_within_s):
            asyncio.get_running_loop().call_later(self.decide_within_s, self._decide_for_the_policy, row)
        self.on_change()

    def next_offer(self) -> bool:
        """Puts the next request on the desk. Returns whether there is one."""
        if self.row >= 0:
            return True
        if self._fresh:
            self.row, self.held_before = self._fresh.popleft(), False
            return True
        while self._following:
            row = self._following.popleft()
            if row in self.held and not self._left_alone(row):
                self.row, self.held_before = row, True
                return True
        self._see_to_retry()
        return False

    def decide(self, offered: int, place: int | None, priority: int | None = None) -> tuple[int | None, str]:
        """Does what was decided.

        Args:
            offered: The request that the decision is about.
            place: Where it goes; None: it is held.
            priority: Instead of its own.

        Returns:
            Where it went, None: it is held, and why not where it was sent, or nothing.
        """
        if self.row != offered:  # decided about in the meantime
            return self._overridden(offered)
        self.row = -1
        if place is None:
            self._hold(offered)
            return None, ""
        if place not in self.able(offered):
            self.impossible += 1
            self._hold(offered)
            return None, f"action {place} is no place that can take the request"
        self._send(offered, place, priority)
        return place, ""

    def reject(self, offered: int) -> tuple[int | None, str]:
        """Refuses a request: its client gets an error at once. Returns what `decide` does."""
        if self.row != offered:
            return self._overridden(offered)
        self.row = -1
        if offered in self.held:
            self.held.remove(offered)
        self.replay.drop(offered, "refused by the router's admission")
        return None, ""

    def defer(self, offered: int) -> tuple[int | None, str]:
        """Moves a request behind all others, once; returns what `decide` does."""
        if self.row != offered:
            return self._overridden(offered)
        if offered in self.deferred:
            self.row = -1
            self.impossible += 1
            self._hold(offered)
            return None, "the request has been deferred already"
        self.row = -1
        self.deferred.add(offered)
        if offered in self.held:
            self._deferred_again.add(self._kind(offered))
        else:
            self._hold(offered)
        self._see_to_retry()
        return None, ""

    def take_over(self, offered: int, reason: str) -> tuple[int | None, str]:
        """Decides about the request that is offered, since the policy cannot; returns what `decide` does."""
        if self.row == offered:
            self.row = -1
            self._decide_instead(offered, reason)
        return self._overridden(offered)

    def forget(self, row: int) -> None:
        """The client of a request has hung up: nothing is to be decided about it any more."""
        if row == self.row:
            self.row = -1
            self.overrides.append(Override(row, None, "its client has hung up"))
        for waiting in (self._fresh, self.held):
            if row in waiting:
                waiting.remove(row)
        self.on_change()

    def able(self, row: int) -> list[int]:
        """Engines that can take a request now."""
        engines, tokens = self.candidates(row), self.replay.tokens(row)
        return [e for e in self.serves(row) if engines[e].available and tokens <= engines[e].most_tokens]

    def close(self) -> None:
        """Nothing is offered any more."""
        self._fresh.clear()
        self._following.clear()
        self.held.clear()
        self.row = -1
        if self._retry is not None:
            self._retry.cancel()

    # -- how -----------------------------------------------------------------------------------------------------------

    def _kind(self, row: int) -> tuple[int, int]:
        return int(self.workload.class_id[row]), int(self.workload.model_id[row])

    def _priority(self, row: int) -> int:
        return DEFERRED_PRIORITY if row in self.deferred else int(self.workload.priority[row])

    def _left_alone(self, row: int) -> bool:
        """Whether a held request is not offered again before the next retry."""
        kind = self._kind(row)
        return kind in self._held_again or (row in self.deferred and kind in self._deferred_again)

    def _send(self, row: int, place: int, priority: int | None = None) -> None:
        if row in self.held:
            self.held.remove(row)
        if priority is None and row in self.deferred:
            priority = DEFERRED_PRIORITY
        self.sent[int(self.workload.class_id[row])] += 1
        self.replay.send(row, place, priority)

    def _hold(self, row: int) -> None:
        if row in self.held:
            self._held_again.add(self._kind(row))
        elif len(self.held) >= self.capacity:
            self.replay.drop(row, f"the router's queue is full ({self.capacity})")
        else:
            self.held.append(row)
        self._see_to_retry()

    def _see_to_retry(self) -> None:
        """What is held will be offered again."""
        if self.held and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(self.retry_s, self._offer_again)

    def _offer_again(self) -> None:
        self._retry = None
        self._held_again.clear()
        self._deferred_again.clear()
        order = sorted(self.held, key=lambda row: (self._priority(row), row))
        self._following = deque(order)
        self.on_change()

    def _decide_for_the_policy(self, row: int) -> None:
        """The deadline of a request has come."""
        if row == self.row and not self.held_before:
            self.row = -1
        elif row in self._fresh:
            self._fresh.remove(row)
        else:
            return
        self._decide_instead(row, f"no decision within {1e3 * self.decide_within_s:g} ms")
        self.on_change()

    def _decide_instead(self, row: int, reason: str) -> None:
        """Sends a request by power of two choices, or holds it where nothing can take it."""
        able = self.able(row)
        place = self._lighter_of_two(row, able) if able else None
        self.overrides.append(Override(row, place, reason))
        if place is None:
            self._hold(row)
        else:
            self._send(row, place)

    def _overridden(self, row: int) -> tuple[int | None, str]:
        """What was decided about a request instead of the policy, and why."""
        taken = next(override for override in reversed(self.overrides) if override.row == row)
        return taken.place, taken.reason

    def _lighter_of_two(self, row: int, able: list[int]) -> int:
        """Power of two choices by requests in flight."""
        engines = self.candidates(row)
        drawn = self._rng.choice(able, size=min(2, len(able)), replace=False)
        return int(min(drawn, key=lambda e: engines[e].requests))
