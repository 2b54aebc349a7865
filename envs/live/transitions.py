"""State machine of a server slot: start, service, cordon, drain, stop, sleep and wake.

    STOPPED -> STARTING -> CANARY -> READY          start
    READY -> CORDONED -> DRAINING -> STOPPED        stop
    READY -> CORDONED -> DRAINING -> ASLEEP         sleep (vLLM's sleep mode: GPUs only)
    ASLEEP -> WAKING -> CANARY -> READY             wake
    READY -> ... -> STOPPED -> STARTING -> ...      relaunch with other settings, of one that sleeps as well

A cordoned server gets no new requests. A drained one has none: putting one to sleep in the middle of an answer kills
its engine. A canary answers one request of our own before it gets others. Each step has a deadline: a drain that takes
longer is cut short, a server that does not come up is FAILED and stopped. How long each took is on record.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from serving_gym.calibration.fields import check_positive
from serving_gym.envs.live.launch_settings import SERVED_NAME, LaunchSettings
from serving_gym.envs.live.launcher import LocalServer

_LOOK_EVERY_S = 0.05
_CANARY_PROMPT = [17] * 8


class SlotState(StrEnum):
    """What a slot is doing."""

    STOPPED = "stopped"
    STARTING = "starting"
    CANARY = "canary"
    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    ASLEEP = "asleep"
    WAKING = "waking"
    FAILED = "failed"


@dataclass(frozen=True)
class Deadlines:
    """Longest times of the steps, s.

    Attributes:
        drain_s: Until the last answer of a cordoned server; what runs then is lost.
        canary_s: Until the response to a test request.
        sleep_s: Until a server sleeps.
        wake_s: Until it is awake.
    """

    drain_s: float = 120.0
    canary_s: float = 60.0
    sleep_s: float = 60.0
    wake_s: float = 120.0

    def __post_init__(self) -> None:
        check_positive(self, "drain_s", "canary_s", "sleep_s", "wake_s", prefix="backend.deadlines.")


@dataclass(frozen=True, slots=True)
class Step:
    """A state that a slot has left.

    Attributes:
        state: The state.
        begun_s: Time of entering it, monotonic seconds.
        took_s: Time spent in it, seconds.
        note: Error message, if any.
    """

    state: SlotState
    begun_s: float
    took_s: float
    note: str = ""


@dataclass
class Slot:
    """A slot for one launched server; its transitions run one after another in their own thread.

    Attributes:
        server: The server, running or not.
        in_flight: Requests in flight, by the client's ledger.
        deadlines: Deadlines of the steps.
        canary: Requests one token from a server; raises OSError or ValueError if none arrives in time.
        on_change: Called when the state has changed.
        gate: Held while a server starts, sleeps or wakes: of slots that share a GPU one at a time may do so, as vLLM
            measures free memory when it starts.
        state: Present state.
        steps: Past states.
        since_s: Time of entering the present state, monotonic seconds.
    """

    server: LocalServer
    in_flight: Callable[[], int]
    deadlines: Deadlines = field(default_factory=Deadlines)
    canary: Callable[[str, float], None] = field(default=lambda url, within_s: ask_for_a_token(url, within_s))
    on_change: Callable[[], None] = field(default=lambda: None)
    gate: threading.Lock = field(default_factory=threading.Lock)
    state: SlotState = SlotState.STOPPED
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.since_s = time.monotonic()
        self._orders: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._worker = threading.Thread(target=self._work, name="serving-gym-slot", daemon=True)
        self._worker.start()

    # -- orders: each returns why it is refused, or nothing ------------------------------------------------------------

    def start(self) -> str:
        """Starts a server that is stopped."""
        return self._order((SlotState.STOPPED, SlotState.FAILED), "start", self._start)

    def stop(self, drain: bool = True) -> str:
        """Takes a server out of service and stops it; without `drain` its running requests are lost."""
        states = (SlotState.READY, SlotState.ASLEEP)
        return self._order(states, "stop", lambda: self._stop(drain))

    def sleep(self, level: int = 1) -> str:
        """Drains a server and puts it to sleep: level 1 keeps the weights in host memory, level 2 drops them."""
        if not self.server.settings.sleep_mode:
            return "sleep: the server was not started with backend.sleep_mode"
        if level not in (1, 2):
            return f"sleep: level must be 1 or 2, got {level}"
        return self._order((SlotState.READY,), "sleep", lambda: self._sleep(level))

    def wake(self) -> str:
        """Wakes a server that sleeps."""
        return self._order((SlotState.ASLEEP,), "wake", self._wake)

    def relaunch(self, settings: LaunchSettings) -> str:
        """Drains a server, or stops a sleeping one, and restarts it with other settings at the same address."""

        def work() -> None:
            self._stop(True)
            self.server.settings = settings
            self._start()

        return self._order((SlotState.READY, SlotState.ASLEEP), "relaunch", work)

    def close(self) -> None:
        """Stops the server, whatever it is doing, and ends the thread."""
        self._orders.put(None)
        self.server.stop()
        self._worker.join()
        self.server.stop()
        self._enter(SlotState.STOPPED)

    def eject_if_dead(self) -> bool:
        """Notes that a server which should run has ended by itself; returns whether it has just been found so."""
        if self.state not in (SlotState.READY, SlotState.ASLEEP) or self.server.pid is not None:
            return False
        note = self.server.ending
        self.server.stop()
        self._enter(SlotState.FAILED, note=note)
        return True

    @property
    def idle(self) -> bool:
        """Whether every order has been carried out."""
        return self._orders.unfinished_tasks == 0

    def took_s(self, *states: SlotState) -> list[float]:
        """How long each stay in one of these states was, s, where nothing went wrong."""
        return [step.took_s for step in self.steps if step.state in states and not step.note]

    # -- steps, in the slot's thread -----------------------------------------------------------------------------------

    def _order(self, states: tuple[SlotState, ...], what: str, work: Callable[[], None]) -> str:
        if self.state not in states:
            return f"{what}: the slot is {self.state}, which must be {' or '.join(states)}"
        begins = {"start": SlotState.STARTING, "wake": SlotState.WAKING}
        self._enter(begins.get(what, SlotState.CORDONED))
        self._orders.put(work)
        return ""

    def _work(self) -> None:
        while (work := self._orders.get()) is not None:
            try:
                work()
            except (ValueError, OSError) as error:
                self.server.stop()
                self._enter(SlotState.FAILED, note=f"{type(error).__name__}: {error}")
            finally:
                self._orders.task_done()

    def _start(self) -> None:
        self._enter(SlotState.STARTING)
        self.server.folder.mkdir(parents=True, exist_ok=True)
        with self.gate:
            self.server.start()
            self.server.wait_until_ready()
        self._prove()

    def _prove(self) -> None:
        self._enter(SlotState.CANARY)
        self.canary(self.server.url, self.deadlines.canary_s)
        self._enter(SlotState.READY)

    def _stop(self, drain: bool) -> None:
        if drain:
            self._drain()
        self.server.stop()
        self._enter(SlotState.STOPPED)

    def _drain(self) -> None:
        self._enter(SlotState.DRAINING)
        deadline_s = time.monotonic() + self.deadlines.drain_s
        while (left := self.in_flight()) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_EVERY_S)
        if left:
            self._enter(
                SlotState.DRAINING, note=f"{left} requests did not end within {self.deadlines.drain_s:g} s"
            )

    def _sleep(self, level: int) -> None:
        self._drain()
        if self.in_flight():
            raise ValueError("a server with running requests cannot sleep")
        with self.gate:
            post(f"{self.server.url}/sleep?level={level}", self.deadlines.sleep_s)
        self._enter(SlotState.ASLEEP)

    def _wake(self) -> None:
        with self.gate:
            post(f"{self.server.url}/wake_up", self.deadlines.wake_s)
        self._prove()

    def _enter(self, state: SlotState, note: str = "") -> None:
        now_s = time.monotonic()
        if state != self.state or note:
            self.steps.append(Step(self.state, self.since_s, now_s - self.since_s, note))
            self.state, self.since_s = state, now_s
            self.on_change()


def ask_for_a_token(url: str, within_s: float) -> None:
    """Requests one token from a server.

    Raises:
        OSError: it cannot be reached or refuses.
        ValueError: the response is invalid.
    """
    body = {
        "model": SERVED_NAME,
        "prompt": _CANARY_PROMPT,
        "max_tokens": 1,
        "ignore_eos": True,
        "temperature": 0.0,
    }
    answer = json.loads(post(f"{url}/v1/completions", within_s, body))
    if not answer.get("choices"):
        raise ValueError(f"the server answers without a choice: {str(answer)[:100]}")


def post(url: str, within_s: float, body: dict[str, object] | None = None) -> bytes:
    """Posts to a server.

    Raises:
        OSError: it cannot be reached, takes too long, or says no.
    """
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=within_s) as response:
        answer: bytes = response.read()
        return answer
