"""Slots of this machine whose servers come and go behind one router."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serving_gym.envs.autoscaling.live.traffic import RunningTime
from serving_gym.envs.interface.scaling import Operation
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launched import LaunchedRun
from serving_gym.envs.live.session import LiveSession
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.supervision import FIRST_BACK_OFF_S
from serving_gym.envs.live.transitions import Slot, SlotState
from serving_gym.envs.workload.schema import Workload

_ROUTER = "jsq"  # fewest tokens, the nearest to the simulated gateway's least loaded instance
_COMES_FROM = {
    Operation.START: (SlotState.STOPPED, SlotState.FAILED),
    Operation.RECLAIM: (SlotState.ASLEEP,),
}


class ScaledFleet(LaunchedRun):
    """Launched servers of one endpoint, of which some serve. Use it in a `with` block, which no server survives.

    Args:
        slots: Places for servers, all stopped.
        max_num_seqs: (S,) most running requests of each.
        order: Queue order of the servers, fcfs or priority.
        settings: How to deal with the servers.
        limits: What a policy may not do.
        back_off_s: How long after its first death a server is started again.

    Attributes:
        running: How many were in service, over the present run.
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
        session = LiveSession(settings, max_num_seqs, order, _ROUTER, lambda row: None)
        super().__init__(slots, session, limits, len(slots), back_off_s)
        self.running = RunningTime([], [])

    def reset(self, workload: Workload, slos: tuple[SLO, ...], count: int) -> None:
        """Drops what is in flight, brings as many servers into service as a run begins with, and begins it.

        Args:
            workload: Requests.
            slos: SLO of each class.
            count: Servers in service when it begins: the first ones.

        Raises:
            ValueError: a server does not start, or does not answer as vLLM does.
        """
        self.prepare(workload, slos, range(count))
        self.running = RunningTime([], [])
        self.begin()

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
        return sorted(able, key=lambda number: (self.in_flight(number), number))

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

    def usage(self) -> float:
        """Mean share of the KV cache in use, over servers in service; 0 where none is."""
        engines = self.engines()
        rows = engines[[slot.state is SlotState.READY for slot in self.slots]]
        capacity = int(rows["kv_capacity_blocks"].sum())
        return int(rows["kv_used_blocks"].sum()) / capacity if capacity else 0.0

    def look_after(self) -> None:
        """Ejects servers that have died, starts them again when their time has come, and counts who serves."""
        super().look_after()
        self._note_running()

    def _note_running(self) -> None:
        self.running.note(self.now_s, self.num_ready)
