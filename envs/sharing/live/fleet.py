"""Nodes of this machine that launched servers of several models share, and the gateway before them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import FINISHED, UNFINISHED
from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    Load,
    NewInstance,
    Place,
    Reschedule,
    ResizeKV,
    Retry,
    SharedModel,
    SharingCommand,
    SharingSetting,
    TokenScheduler,
    Unload,
)
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.launched import GONE, LOOK_EVERY_S, LaunchedRun
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.session import LiveSession
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.transitions import Slot, SlotState
from serving_gym.envs.sharing.live.instances import Instance, Instances
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from serving_gym.envs.workload.schema import Workload

_INF = float("inf")


@dataclass
class Held:
    """A request that waits at the gateway.

    Attributes:
        since_s: Since when.
        offer_s: When it is offered next.
        retry: What else it waits for.
        releases: What its model had seen of that when it was held.
    """

    since_s: float
    offer_s: float
    retry: Retry = Retry.ALWAYS
    releases: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """Why the policy is asked.

    Attributes:
        event: What has happened; NONE: the time is over.
        request: Row that is offered; -1: none.
        node: Where it has happened; -1: nowhere.
        instance: Slot, likewise.
    """

    event: Event
    request: int = -1
    node: int = -1
    instance: int = -1


class SharedFleet(LaunchedRun):
    """Launched servers of several models. Use it in a `with` block, which no server survives.

    The gateway is the simulator's (`envs.simulator.sharing`): requests are offered as they arrive; what is held is
    offered again at every retry, and refused when its patience is over. A request that goes to an instance which loads
    waits for it. An instance that dies, or does not come up, leaves its slot empty; what had no token there yet is
    offered again. It counts as one that died of an allocation, which nobody can tell here.

    Args:
        slots: Places for servers, node by node, all stopped.
        setting: Nodes and models.
        settings_of: How a model is launched on a node.
        manager: The gateway's times.
        order: Queue order of the servers, fcfs or priority.
        settings: How to deal with the servers.
        limits: What a policy may not do: dwell of each slot, and the budget. All instances may go.

    Attributes:
        instances: What is in the slots.
        held: Requests at the gateway, by row, oldest first.
        placed: Slot of every request that has one.
        manages: Whether the policy asks to be told what has ended.
        keep_alive_s: After which an idle instance is unloaded.
        ended: Rows that have finished since the last decision.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        setting: SharingSetting,
        settings_of: Callable[[SharedModel, int], LaunchSettings],
        manager: ManagerSpec,
        order: str,
        settings: LiveSettings,
        limits: EnvelopeSettings,
    ) -> None:
        self.setting, self.manager = setting, manager
        self._wake = threading.Event()
        self._arrived: deque[int] = deque()
        self._returned: deque[int] = deque()
        most = [setting.max_num_seqs] * len(slots)
        session = LiveSession(settings, most, order, None, self._on_arrival, self._on_return)
        session.longest = self._longest
        super().__init__(slots, session, limits, len(slots))
        self.instances = Instances(
            setting,
            self.slots,
            settings_of,
            lambda slot: self.envelope.refuses(slot, self.now_s),
            lambda slot: self.envelope.note(slot, self.now_s),
        )

    def _longest(self, row: int) -> int:
        """Longest request of a row, tokens: that of its model, within `backend.max_model_len`."""
        most = self.setting.models[int(self.workload.model_id[row])].max_tokens
        return min(most, self.settings.max_model_len or most)

    # -- a run ---------------------------------------------------------------------------------------------------------

    def reset(self, workload: Workload, slos: tuple[SLO, ...], deadline_s: float) -> None:
        """Stops every server, and begins to serve.

        Args:
            workload: Requests.
            slos: SLO of each class.
            deadline_s: When the run is cut off, seconds.

        Raises:
            ValueError: the workload has sessions or impatient clients.
        """
        if workload.has_sessions or workload.patience_s is not None:
            raise ValueError(
                f"workload {workload.name!r} has sessions or impatient clients, which shared servers are not sent"
            )
        self._arrived.clear()
        self._returned.clear()
        self.prepare(workload, slos, ())
        self._arrived.clear()
        self._returned.clear()
        self.instances.begin()
        self.deadline_s, self.manages = deadline_s, False
        self.keep_alive_s = self.setting.keep_alive_s
        self.held: dict[int, Held] = {}
        self.placed: dict[int, int] = {}
        self.ended: list[int] = []
        self.decisions = 0
        self.outputs = np.zeros((len(self.setting.models), 2))
        self._operated: deque[int] = deque()
        self._destined: dict[int, int] = {}
        self._used_s = np.zeros(self.setting.num_nodes)
        self._seen_s = 0.0
        self.begin()

    def wait(self, has_place: Callable[[int], bool]) -> Asked:
        """Waits until the policy is to be asked, or the run is over.

        Args:
            has_place: Whether some place could take a row now.

        Raises:
            BaseException: what ended the run before its time.
        """
        while True:
            self._wake.clear()
            self.look_after()
            if self._session.trouble is not None:
                raise self._session.trouble
            asked = self._asked(has_place)
            if asked is not None:
                return asked
            if self.idle and not self._arrived:
                return Asked(Event.END)
            ahead_s = self.deadline_s - self.now_s
            if ahead_s <= 0:
                return Asked(Event.NONE)
            due_s = min((held.offer_s for held in self.held.values()), default=_INF) - self.now_s
            self._wake.wait(min(max(due_s, 0.001), ahead_s, LOOK_EVERY_S))

    def note_decision(self) -> None:
        """Drops finished requests that have been reported to the policy."""
        self.ended.clear()
        self.decisions += 1

    def _on_arrival(self, row: int) -> None:
        self._arrived.append(row)
        self._wake.set()

    def _on_return(self, row: int) -> None:
        self._returned.append(row)
        self._wake.set()

    # -- what happens --------------------------------------------------------------------------------------------------

    def look_after(self) -> None:
        """Looks after servers, takes note of what has come and gone, and unloads what has been idle for too long."""
        super().look_after()
        now_s = self.now_s
        self._count_use(now_s)
        self._note_ends()
        while self._returned:
            self._come_back(self._returned.popleft(), now_s)
        while self._arrived:
            row = self._arrived.popleft()
            self.held[row] = Held(now_s, now_s)
        for i, instance in enumerate(self.instances.here):
            if instance is not None:
                self._go_on(i, instance, now_s)
        for row, held in list(self.held.items()):
            if now_s - held.since_s >= self.manager.patience_s:
                self._refuse(row)

    def _refuse(self, row: int) -> None:
        """The patience of a request is over."""
        del self.held[row]
        reason = f"no place took it for {self.manager.patience_s:g} s"
        self._loop.call(lambda: self._session.replay.drop(row, reason))

    def on_death(self, number: int) -> None:
        """An instance has died in service."""
        if self.instances.here[number] is not None:
            self._lose(number)

    def _go_on(self, i: int, instance: Instance, now_s: float) -> None:
        slot = self.slots[i]
        if instance.status is InstanceStatus.LOADING:
            if self.in_service(i):
                self._serve(i, instance, now_s)
            elif slot.idle and slot.state is SlotState.FAILED:
                self._lose(i)
        elif instance.status is InstanceStatus.UNLOADING:
            if slot.idle and slot.state in (*GONE, SlotState.ASLEEP):
                self.instances.vacate(i)
                self._operated.append(i)
        elif self._is_wanted(i):
            instance.idle_since_s = _INF
        else:
            instance.idle_since_s = min(instance.idle_since_s, now_s)
            if now_s - instance.idle_since_s >= self.keep_alive_s:
                self.instances.unload(i, False, now_s)

    def _is_wanted(self, i: int) -> bool:
        """Whether a slot has requests, or is to have one that is on its way."""
        return i in self.placed.values() or i in self._destined.values()

    def _serve(self, i: int, instance: Instance, now_s: float) -> None:
        """An instance has come up, and gets what has waited for it."""
        instance.status, instance.begun_s = InstanceStatus.SERVING, now_s
        self._operated.append(i)
        waiting, instance.queue = instance.queue, []
        for row in waiting:
            self._send_now(row, i)

    def _lose(self, i: int) -> None:
        """An instance is no more; what it has not begun comes back."""
        instance = self.instances.here[i]
        assert instance is not None
        for row in instance.queue:
            self._come_back(row, self.now_s)
        self.instances.vacate(i)
        self.instances.losses += 1

    def _come_back(self, row: int, now_s: float) -> None:
        """A request has no place any more, and goes where it is destined to, or to the gateway."""
        self.placed.pop(row, None)
        self.held[row] = Held(now_s, now_s)
        there = self._destined.pop(row, None)
        if there is not None:
            self._send(row, there)

    def _note_ends(self) -> None:
        """Takes down requests that have ended."""

        def read(ledger: Ledger) -> list[tuple[int, bool, int]]:
            return [
                (row, ledger.outcome[row] == FINISHED, int(ledger.generated[row]))
                for row in self.placed
                if ledger.outcome[row] != UNFINISHED
            ]

        for row, finished, tokens in self.ask_ledger(read):
            instance = self.instances.here[self.placed.pop(row)]
            model = int(self.workload.model_id[row])
            self.instances.releases[model] += 1
            if finished:
                self.ended.append(row)
                self.outputs[model] += (1, tokens)
                if instance is not None:
                    instance.finished = True

    def _count_use(self, now_s: float) -> None:
        """Adds to the time for which each node has had an instance."""
        span_s, self._seen_s = now_s - self._seen_s, now_s
        for node in range(self.setting.num_nodes):
            if any(self.instances.here[i] is not None for i in self.instances.on_node(node)):
                self._used_s[node] += span_s

    @property
    def used_s(self) -> NDArray[np.float64]:
        """(N,), for how long each node has had an instance."""
        return self._used_s.copy()

    # -- why the policy is asked ---------------------------------------------------------------------------------------

    def _asked(self, has_place: Callable[[int], bool]) -> Asked | None:
        """What the policy is asked now, if anything."""
        width = self.setting.slots_per_node
        while self._operated:
            i = self._operated.popleft()
            if self.manages:
                return Asked(Event.OPERATION, -1, i // width, i)
        for i, instance in enumerate(self.instances.here):
            if instance is not None and instance.finished:
                instance.finished = False
                if self.manages:
                    return Asked(Event.FINISHED, -1, i // width, i)
        for row, held in list(self.held.items()):
            if held.offer_s <= self.now_s:
                if self._is_worth_asking(row, held, has_place):
                    return Asked(Event.PLACEMENT, row)
                self._put_off(row)
        return None

    def _is_worth_asking(self, row: int, held: Held, has_place: Callable[[int], bool]) -> bool:
        if held.retry is Retry.AFTER_RELEASE and held.releases == self._releases(row):
            return False
        return self.manages or self.decisions == 0 or has_place(row)

    def _releases(self, row: int) -> int:
        releases = self.instances.releases
        return releases[int(self.workload.model_id[row])] + releases[-1]

    def _put_off(self, row: int) -> None:
        """A request is held: it and those of its model that wait already have their turn later."""
        now_s, model_id = self.now_s, self.workload.model_id
        due_s = now_s + self.manager.retry_s
        for other, held in self.held.items():
            if other == row or (
                model_id[other] == model_id[row] and held.offer_s <= now_s and held.since_s < now_s
            ):
                held.offer_s = due_s

    # -- commands ------------------------------------------------------------------------------------------------------

    def hold(self, row: int, retry: Retry = Retry.ALWAYS) -> None:
        """Holds the offered request."""
        held = self.held.get(row)
        if held is None:
            return
        held.retry, held.releases = retry, self._releases(row)
        if retry is Retry.NEVER:
            held.offer_s = _INF
        else:
            self._put_off(row)

    def place(self, row: int, place: Place) -> str:
        """Sends a request of the gateway to an instance, or to one that is yet to load; returns why not, or nothing."""
        if row not in self.held:
            return "the request is not in the system"
        if isinstance(place, NewInstance):
            model = int(self.workload.model_id[row])
            slot, refused = self.instances.load(model, place.node, place.kv_bytes, self.now_s)
            if refused:
                return refused
        else:
            slot = int(place)
            refused = self.why_not_there(row, slot)
            if refused:
                return refused
        self._send(row, slot)
        return ""

    def why_not_there(self, row: int, slot: int) -> str:
        """Why a request cannot go to what is in a slot; empty where it can."""
        if not 0 <= slot < len(self.slots):
            return f"there is no slot {slot}, there are {len(self.slots)}"
        instance = self.instances.here[slot]
        if instance is None or instance.status is InstanceStatus.UNLOADING:
            return "the instance is empty or being unloaded"
        if instance.model != self.workload.model_id[row]:
            return "the instance is of another model than the request"
        return ""

    def _send(self, row: int, slot: int) -> None:
        """Gives a request of the gateway to an instance, now or when that serves."""
        instance = self.instances.here[slot]
        if instance is None or instance.status is InstanceStatus.UNLOADING:
            return  # it has gone since the request was destined for it
        del self.held[row]
        self.placed[row] = slot
        instance.idle_since_s = _INF
        if instance.status is InstanceStatus.SERVING:
            self._send_now(row, slot)
        else:
            instance.queue.append(row)

    def _send_now(self, row: int, slot: int) -> None:
        self._loop.call(lambda: self._session.replay.send(row, slot))

    def apply(self, command: SharingCommand) -> str:
        """Carries out a command; returns why not, or nothing."""
        if isinstance(command, Configure):
            return self._configure(command)
        if isinstance(command, Load):
            if not 0 <= command.model < len(self.setting.models):
                return f"load.model must lie in [0, {len(self.setting.models)}), got {command.model}"
            return self.instances.load(command.model, command.node, command.kv_bytes, self.now_s)[1]
        if isinstance(command, Unload):
            wanted = self._is_wanted(command.instance)
            return self.instances.unload(command.instance, wanted, self.now_s)
        if isinstance(command, ResizeKV):
            return "a server of vLLM keeps the KV pool that it was started with"
        return self._reschedule(command)

    def _configure(self, command: Configure) -> str:
        """Changes what can be changed here; returns what could not."""
        if command.keep_alive_s is not None and not 0 <= command.keep_alive_s < 1e6:
            return f"configure.keep_alive_s must lie in [0, 1e6), got {command.keep_alive_s}"
        if command.manages_memory is not None:
            self.manages = command.manages_memory
        if command.keep_alive_s is not None:
            self.keep_alive_s = command.keep_alive_s
        if command.token_scheduler is TokenScheduler.POLICY:
            return "servers of vLLM give out their iterations themselves"
        return ""

    def _reschedule(self, command: Reschedule) -> str:
        """Takes a request that has no token yet out of its instance."""
        row = command.request
        if row in self.held:
            return (
                "the request is in that instance already"
                if command.to is None
                else self.place(row, command.to)
            )
        if row not in self.placed:
            return "the request is not in the system"
        slot, target = self.placed[row], None
        if isinstance(command.to, NewInstance):
            model = int(self.workload.model_id[row])
            target, refused = self.instances.load(model, command.to.node, command.to.kv_bytes, self.now_s)
        else:
            target = None if command.to is None else int(command.to)
            refused = "" if target is None else self.why_not_there(row, target)
        if refused:
            return refused
        if target is not None:
            self._destined[row] = target
        instance = self.instances.here[slot]
        if instance is not None and row in instance.queue:
            instance.queue.remove(row)
            self._come_back(row, self.now_s)
        elif not self._loop.call(lambda: self._session.replay.recall_row(row)):
            self._destined.pop(row, None)
            return "a request that has a token stays where it is, as its stream cannot be taken up elsewhere"
        return ""
