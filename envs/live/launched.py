"""Base class of fleets that start and stop servers in slots of this machine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.scaling import Held
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE
from serving_gym.envs.live.envelope import Envelope, EnvelopeSettings
from serving_gym.envs.live.gauges import CacheConfig
from serving_gym.envs.live.launch_settings import SERVED_NAME, LaunchSettings
from serving_gym.envs.live.run import LiveRun
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.session import LiveSession
from serving_gym.envs.live.supervision import FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S
from serving_gym.envs.live.transitions import Slot, SlotState
from serving_gym.envs.workload.schema import Workload

LOOK_EVERY_S = 0.1
_log = logging.getLogger(__name__)
HELD = {  # state of a slot's machine; it is vacant in other states
    SlotState.STARTING: Held.STARTING,
    SlotState.CANARY: Held.STARTING,
    SlotState.WAKING: Held.STARTING,
    SlotState.READY: Held.RUNNING,
    SlotState.CORDONED: Held.DRAINING,
    SlotState.DRAINING: Held.DRAINING,
    SlotState.ASLEEP: Held.SPOT,
}
GONE = (SlotState.STOPPED, SlotState.FAILED)


class LaunchedRun(LiveRun):
    """Servers launched on this machine, some of them in service. A context manager, which stops all servers at the end.

    A server that dies is ejected at once, its requests without a token go to another, and it restarts after a delay
    that doubles each time. One that hangs is killed and then counts as dead. Such restarts do not count as
    reconfigurations of the policy.

    Args:
        slots: Server slots, all stopped.
        session: Connection to the servers.
        limits: Safety limits of the policy.
        num_limited: Number of slots for `limits`.
        back_off_s: Delay of the restart after a server's first death, seconds.

    Attributes:
        slots: Server slots.
        envelope: Reconfigurations of the present run, and their limits.
        deaths: Servers that died in service.
        begun_s: Start of the present run, monotonic seconds.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        session: LiveSession,
        limits: EnvelopeSettings,
        num_limited: int,
        back_off_s: float = FIRST_BACK_OFF_S,
    ) -> None:
        self.slots, self.limits, self.back_off_s = list(slots), limits, back_off_s
        self._num_limited = num_limited
        self.envelope = Envelope(limits, num_limited)
        self.deaths = 0
        self.begun_s = float("nan")
        self._died_s: dict[int, float] = {}
        self._owed: dict[
            int, float
        ] = {}  # slots whose servers have died and will be restarted; since when, monotonic
        self._times_died = [0] * len(self.slots)
        self._known: dict[int, int | None] = {}  # process of each server that has been probed
        session.in_service = self.in_service
        session.on_hung = self.kill_hung
        session.server_is_coming = self.coming
        for number, slot in enumerate(self.slots):
            slot.in_flight = partial(self.in_flight, number)
        super().__init__(session)
        expected = [expected_server(slot.server.reserve(), slot.server.settings) for slot in self.slots]
        self._loop.run(session.expect(expected))

    # -- a run ---------------------------------------------------------------------------------------------------------

    def prepare(self, workload: Workload, slos: tuple[SLO, ...], wanted: Iterable[int]) -> None:
        """Drops requests in flight, brings some servers into service and the others out of it, and begins a new ledger.

        Args:
            workload: Requests.
            slos: SLO of each class.
            wanted: Slots that should be in service.

        Raises:
            ValueError: a server does not start, or does not answer as vLLM does.
        """
        self.workload, self.slos = workload, slos
        self._died_s.clear()
        self._owed.clear()
        self._loop.run(self._session.drop())
        chosen = set(wanted)
        for number, slot in enumerate(self.slots):
            bring(slot, number in chosen)
        for number, slot in enumerate(self.slots):
            settle(slot, SlotState.READY if number in chosen else SlotState.STOPPED)
        self._learn()
        self._loop.run(self._session.prepare(workload, slos))
        self.envelope = Envelope(self.limits, self._num_limited)

    def begin(self) -> None:
        """Starts the clock and the arrivals."""
        self.begun_s = time.monotonic()
        self._loop.call(self._session.begin)

    def advance(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until a time, or until `stop` returns true.

        Raises:
            BaseException: the error that ended the run early.
        """
        while True:
            self.look_after()
            if self._session.trouble is not None:
                raise self._session.trouble
            ahead_s = until_s - self.now_s
            if ahead_s <= 0 or stop():
                return
            time.sleep(min(ahead_s, LOOK_EVERY_S))

    def look_after(self) -> None:
        """Ejects servers that have died and restarts them after their delay; called several times a second."""
        now_s = time.monotonic()
        for number, slot in enumerate(self.slots):
            if slot.eject_if_dead():
                self.deaths += 1
                _log.warning("%s: %s", slot.server.url, slot.steps[-1].note)
                self.on_death(number)
            elif number in self._owed and slot.state is SlotState.READY:
                del self._owed[number]
            elif number in self._owed and slot.state is SlotState.FAILED and slot.idle:
                self._died_s.setdefault(number, now_s)
            if number in self._died_s:
                wait_s = min(self.back_off_s * 2 ** self._times_died[number], LONGEST_BACK_OFF_S)
                if now_s - self._died_s[number] >= wait_s:
                    self._times_died[number] += 1
                    del self._died_s[number]
                    slot.start()
        self._learn()

    def kill_hung(self, number: int, reason: str) -> None:
        """Kills a server in service that makes no progress; called in any thread."""
        if self.in_service(number):
            self.slots[number].server.kill(f"it hung ({reason}) and was killed")

    def on_death(self, number: int) -> None:
        """Called when a server in service has died."""
        self.bring_back(number)

    def give_up(self, number: int) -> None:
        """Cancels the restart of a server that has died."""
        self._died_s.pop(number, None)
        self._owed.pop(number, None)

    def bring_back(self, number: int) -> None:
        """Schedules the restart of a server that has died or failed to start."""
        self._died_s.setdefault(number, time.monotonic())
        self._owed.setdefault(number, time.monotonic())

    def coming(self) -> bool:
        """Whether a server that has died is being restarted, and may still be up in time."""
        now_s = time.monotonic()
        return any(
            now_s - since_s < self.slots[number].server.settings.start_within_s
            for number, since_s in list(self._owed.items())
        )

    def in_service(self, number: int) -> bool:
        """Whether a slot's server takes requests."""
        slot = self.slots[number]
        return slot.state is SlotState.READY and self._known.get(number) == slot.server.pid

    def in_flight(self, number: int) -> int:
        """Requests in flight on a slot's server, by the ledger."""
        return len(self._session.ledger.engines[number].in_flight) if self._session.begun else 0

    def _learn(self) -> None:
        """Probes servers that have just started; they take requests afterwards.

        Raises:
            ValueError: one does not answer as vLLM does.
        """
        for number, slot in enumerate(self.slots):
            pid = slot.server.pid
            if slot.state is not SlotState.READY or pid is None or self._known.get(number) == pid:
                continue
            try:
                self._loop.run(self._session.learn(number))
            except ValueError:
                if slot.server.pid == pid:  # otherwise it died before it answered, and is ejected
                    raise
            self._known[number] = pid

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def num_ready(self) -> int:
        """Servers in service."""
        return sum(slot.state is SlotState.READY for slot in self.slots)

    def engines(self) -> NDArray[np.void]:
        """(S,) ENGINE_STATE_DTYPE; rows of stopped servers are empty."""

        def read() -> NDArray[np.void]:
            rows = np.zeros(len(self.slots), ENGINE_STATE_DTYPE)
            self._session.fill_rows(rows, self.now_s)
            return rows

        rows = self._loop.call(read)
        for number, slot in enumerate(self.slots):
            if HELD.get(slot.state) not in (Held.RUNNING, Held.DRAINING):
                rows[number] = np.zeros((), ENGINE_STATE_DTYPE)
        return rows

    def held_s(self) -> NDArray[np.float64]:
        """(S, len(Held)), for how long each slot's machine has been held, and for what, since the run began."""
        now_s, table = time.monotonic(), np.zeros((len(self.slots), len(Held)))
        for number, slot in enumerate(self.slots):
            spans = [(step.state, step.begun_s, step.begun_s + step.took_s) for step in slot.steps]
            for state, from_s, to_s in (*spans, (slot.state, slot.since_s, now_s)):
                if state in HELD:
                    table[number, HELD[state]] += max(min(to_s, now_s) - max(from_s, self.begun_s), 0.0)
        return table

    def start_times_s(self) -> list[float]:
        """Duration of each start, from the order to the answer to a request, s."""
        return [
            starting_s + proving_s
            for slot in self.slots
            for starting_s, proving_s in zip(
                slot.took_s(SlotState.STARTING), slot.took_s(SlotState.CANARY), strict=False
            )
        ]

    def close(self) -> None:
        """Drops requests in flight and stops every server side by side; when interrupted, kills them at once."""
        ending = [threading.Thread(target=slot.close, daemon=True) for slot in self.slots]
        try:
            super().close()
            for thread in ending:
                thread.start()
            for thread in ending:
                thread.join()
        except BaseException:
            for slot in self.slots:
                slot.server.kill("interrupted")
            raise


def expected_server(url: str, settings: LaunchSettings) -> Server:
    """Expected information of a server before it is probed: vLLM starts only if its longest request fits."""
    blocks = -(-settings.max_model_len // settings.block_size)
    cache = CacheConfig(
        max(blocks, settings.kv_blocks if settings.device == "cpu" else 0), settings.block_size
    )
    return Server(url, SERVED_NAME, SERVED_NAME, "unknown", settings.max_model_len, cache)


def bring(slot: Slot, into_service: bool) -> None:
    """Orders a slot into service or out of it, unless it is there or on its way."""
    wait_until_idle(slot)
    if into_service:
        if slot.state is SlotState.ASLEEP:
            slot.wake()
        elif slot.state is not SlotState.READY:
            slot.start()
    elif slot.state is not SlotState.STOPPED:
        slot.stop(drain=False)


def wait_until_idle(slot: Slot) -> None:
    """Waits until a slot has carried out its orders."""
    while not slot.idle:
        time.sleep(LOOK_EVERY_S)


def settle(slot: Slot, state: SlotState) -> None:
    """Waits until a slot has carried out its order.

    Raises:
        ValueError: it failed.
    """
    wait_until_idle(slot)
    if slot.state is not state and not (slot.state is SlotState.FAILED and state is SlotState.STOPPED):
        note = slot.steps[-1].note if slot.steps else ""
        raise ValueError(f"a launched server is {slot.state} where it should be {state}: {note}")
