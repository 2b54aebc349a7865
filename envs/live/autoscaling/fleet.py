"""Slots of this machine whose servers come and go behind one router."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from envs.backend import ENGINE_STATE_DTYPE, SLO
from envs.live.autoscaling.traffic import RunningTime
from envs.live.envelope import Envelope, EnvelopeSettings
from envs.live.ledger import Ledger
from envs.live.loop import LoopThread
from envs.live.session import LiveSession
from envs.live.settings import LiveSettings
from envs.live.supervision import FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S
from envs.live.transitions import Slot, SlotState
from envs.metrics import UNFINISHED, RequestRecords
from envs.scaling import Operation
from envs.simulator.autoscaling.inventory import Held
from envs.workload.schema import Workload

T = TypeVar("T")

_STEP_S = 0.1
_ROUTER = "jsq"  # fewest tokens, the nearest to the simulated gateway's least loaded instance
HELD = {  # what a slot's machine is held for; it is vacant in other states
    SlotState.STARTING: Held.STARTING,
    SlotState.CANARY: Held.STARTING,
    SlotState.WAKING: Held.STARTING,
    SlotState.READY: Held.RUNNING,
    SlotState.CORDONED: Held.DRAINING,
    SlotState.DRAINING: Held.DRAINING,
    SlotState.ASLEEP: Held.SPOT,
}
_COMES_FROM = {
    Operation.START: (SlotState.STOPPED, SlotState.FAILED),
    Operation.RECLAIM: (SlotState.ASLEEP,),
}


class ScaledFleet:
    """Launched servers of one endpoint, of which some serve. Use it in a `with` block, which no server survives.

    A server that dies is ejected at once, what it had not begun goes to another, and it is started again after a while
    that doubles each time; that is no reconfiguration of the policy's.

    Args:
        slots: Places for servers, all stopped.
        max_num_seqs: (S,) most running requests of each.
        order: Queue order of the servers, fcfs or priority.
        settings: How to deal with the servers.
        limits: What a policy may not do.
        back_off_s: How long after its first death a server is started again.

    Attributes:
        slots: Places for servers.
        running: How many were in service, over the present run.
        deaths: Servers that died in service.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        max_num_seqs: Sequence[int],
        order: str,
        settings: LiveSettings,
        limits: EnvelopeSettings,
        back_off_s: float = FIRST_BACK_OFF_S,
    ) -> None:
        self.slots, self.settings, self.limits, self.back_off_s = list(slots), settings, limits, back_off_s
        self.deaths = 0
        self.running = RunningTime([], [])
        self._died_s: dict[int, float] = {}
        self._times_died = [0] * len(self.slots)
        self._attached = False
        self._session = LiveSession(settings, max_num_seqs, order, _ROUTER, lambda row: None)
        self._session.in_service = lambda number: self.slots[number].state is SlotState.READY
        for number, slot in enumerate(self.slots):
            slot.in_flight = partial(self._in_flight, number)
        self._loop = LoopThread()

    # -- a run ---------------------------------------------------------------------------------------------------------

    def reset(self, workload: Workload, slos: tuple[SLO, ...], count: int) -> None:
        """Drops what is in flight, brings as many servers into service as a run begins with, and prepares to serve.

        Args:
            workload: Requests.
            slos: Latency promise of each class.
            count: Servers in service when it begins: the first ones.

        Raises:
            ValueError: a server does not start, or does not answer as vLLM does.
        """
        self.workload, self.slos = workload, slos
        self._died_s.clear()
        if self._attached:
            self._loop.run(self._session.drop())
        for number, slot in enumerate(self.slots):
            _bring(slot, number < count)
        for number, slot in enumerate(self.slots):
            _settle(slot, SlotState.READY if number < count else SlotState.STOPPED)
        if not self._attached:
            self._loop.run(self._session.attach(tuple(slot.server.reserve() for slot in self.slots)))
            self._attached = True
        self._loop.run(self._session.prepare(workload, slos))
        self.envelope = Envelope(self.limits, len(self.slots))
        self.running = RunningTime([], [])
        self.begun_s = time.monotonic()
        self._loop.call(self._session.begin)

    def advance(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until a time, or until `stop` says so.

        Raises:
            BaseException: what ended the run before its time.
        """
        while True:
            self._look_after()
            if self._session.trouble is not None:
                raise self._session.trouble
            ahead_s = until_s - self.now_s
            if ahead_s <= 0 or stop():
                return
            time.sleep(min(ahead_s, _STEP_S))

    # -- commands ------------------------------------------------------------------------------------------------------

    def change(self, operation: Operation, count: int, places: Sequence[int] = ()) -> tuple[list[int], str]:
        """Begins to bring servers into service, or to take them out.

        Args:
            operation: START; STOP, of those in service, as a start cannot be called off; DONATE puts to sleep and
                RECLAIM wakes, where the servers can.
            count: How many.
            places: Which ones go; empty: those with the fewest requests.

        Returns:
            Slots whose transition has begun, and why not as many as asked for, or nothing.
        """
        if operation is Operation.REDEPLOY:
            return [], "redeploy: there are no servers of another model"
        begun: list[int] = []
        reason = ""
        for number in self._candidates(operation, places):
            if len(begun) == count:
                break
            refused = self._order(operation, number)
            reason = reason or refused
            if not refused:
                begun.append(number)
        if len(begun) == count:
            return begun, ""
        return begun, f"{len(begun)} of {count}: {reason or f'no more servers to {operation}'}"

    def _candidates(self, operation: Operation, places: Sequence[int]) -> list[int]:
        """Slots that an operation may be for, the likeliest first."""
        states = _COMES_FROM.get(operation, (SlotState.READY,))
        able = [number for number, slot in enumerate(self.slots) if slot.state in states]
        if places:
            return [number for number in places if number in able]
        return sorted(able, key=lambda number: (self._in_flight(number), number))

    def _order(self, operation: Operation, number: int) -> str:
        """Gives a slot its order, if nothing speaks against it; returns what does."""
        slot, now_s = self.slots[number], self.now_s
        refused = self.envelope.refuses(number, now_s)
        if not refused and slot.state is SlotState.READY:
            refused = self.envelope.refuses_removal(self.num_ready, self.usage())
        orders: dict[Operation, Callable[[], str]] = {
            Operation.START: slot.start,
            Operation.STOP: slot.stop,
            Operation.DONATE: slot.sleep,
            Operation.RECLAIM: slot.wake,
        }
        refused = refused or orders[operation]()
        if not refused:
            self.envelope.note(number, now_s)
            self._note_running()
        return refused

    def room(self) -> tuple[int, int]:
        """How many servers may go from service now, and how many may come."""
        going = [number for number, slot in enumerate(self.slots) if slot.state is SlotState.READY]
        able = {state for states in _COMES_FROM.values() for state in states}
        coming = [number for number, slot in enumerate(self.slots) if slot.state in able]
        return self.envelope.room(self.now_s, going, coming, self.usage())

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._session.replay.now_s

    @property
    def num_ready(self) -> int:
        """Servers in service."""
        return sum(slot.state is SlotState.READY for slot in self.slots)

    @property
    def idle(self) -> bool:
        """Whether every request has arrived and is done."""
        return self._loop.call(lambda: self._session.replay.idle)

    def usage(self) -> float:
        """Mean share of the KV cache in use, over servers in service; 0 where none is."""
        engines = self.engines()
        rows = engines[[slot.state is SlotState.READY for slot in self.slots]]
        capacity = int(rows["kv_capacity_blocks"].sum())
        return int(rows["kv_used_blocks"].sum()) / capacity if capacity else 0.0

    def engines(self) -> NDArray[np.void]:
        """(S,) ENGINE_STATE_DTYPE; nothing is known of servers that do not run."""

        def read() -> NDArray[np.void]:
            rows = np.zeros(len(self.slots), ENGINE_STATE_DTYPE)
            self._session.fill_rows(rows, self.now_s)
            return rows

        rows = self._loop.call(read)
        for number, slot in enumerate(self.slots):
            if HELD.get(slot.state) not in (Held.RUNNING, Held.DRAINING):
                rows[number] = np.zeros((), ENGINE_STATE_DTYPE)
        return rows

    def pooled(self) -> list[int]:
        """Rows that no server could take yet."""
        return self._loop.call(lambda: list(self._session.replay.pool))

    def ask_ledger(self, question: Callable[[Ledger], T]) -> T:
        """An answer from the books, while nothing is written into them."""
        return self._loop.call(lambda: question(self._session.ledger))

    def results(self) -> RequestRecords:
        """What happened to every request that has arrived."""
        return self._loop.call(lambda: self._session.ledger.records())

    def unfinished(self) -> NDArray[np.int64]:
        """(C,), requests of each class that are still in the system."""

        def count() -> NDArray[np.int64]:
            ledger = self._session.ledger
            rows = slice(0, ledger.arrived)
            left = ledger.outcome[rows] == UNFINISHED
            return np.bincount(self.workload.class_id[rows][left], minlength=len(self.slos))

        return self._loop.call(count)

    def held_s(self) -> NDArray[np.float64]:
        """(S, len(Held)), for how long each slot's machine has been held, and for what, since the run began."""
        now_s, table = time.monotonic(), np.zeros((len(self.slots), len(Held)))
        for number, slot in enumerate(self.slots):
            spans = [(step.state, step.begun_s, step.begun_s + step.took_s) for step in slot.steps]
            for state, from_s, to_s in (*spans, (slot.state, slot.since_s, now_s)):
                if state in HELD:
                    table[number, HELD[state]] += max(min(to_s, now_s) - max(from_s, self.begun_s), 0.0)
        return table

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Drops what is in flight and stops every server."""
        if self._loop.alive and self._attached:
            self._loop.run(self._session.detach())
        self._loop.close()
        ending = [threading.Thread(target=slot.close) for slot in self.slots]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    def __enter__(self) -> ScaledFleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _in_flight(self, number: int) -> int:
        return len(self._session.ledger.engines[number].in_flight) if self._session.begun else 0

    def _note_running(self) -> None:
        self.running.note(self.now_s, self.num_ready)

    def _look_after(self) -> None:
        """Ejects servers that have died and starts them again when their time has come."""
        now_s = time.monotonic()
        for number, slot in enumerate(self.slots):
            if slot.eject_if_dead():
                self.deaths += 1
                self._died_s[number] = now_s
            elif number in self._died_s:
                wait_s = min(self.back_off_s * 2 ** self._times_died[number], LONGEST_BACK_OFF_S)
                if now_s - self._died_s[number] >= wait_s:
                    self._times_died[number] += 1
                    del self._died_s[number]
                    slot.start()
        self._note_running()


def _bring(slot: Slot, into_service: bool) -> None:
    """Orders a slot into service or out of it, if it is not there or on its way."""
    _settle_any(slot)
    if into_service:
        if slot.state is SlotState.ASLEEP:
            slot.wake()
        elif slot.state is not SlotState.READY:
            slot.start()
    elif slot.state is not SlotState.STOPPED:
        slot.stop(drain=False)


def _settle_any(slot: Slot) -> None:
    while not slot.idle:
        time.sleep(_STEP_S)


def _settle(slot: Slot, state: SlotState) -> None:
    """Waits until a slot has carried out its order.

    Raises:
        ValueError: it failed.
    """
    _settle_any(slot)
    if slot.state is not state and not (slot.state is SlotState.FAILED and state is SlotState.STOPPED):
        note = slot.steps[-1].note if slot.steps else ""
        raise ValueError(f"a launched server is {slot.state} where it should be {state}: {note}")
