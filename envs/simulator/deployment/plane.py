"""The control plane of a cluster that is cut anew: one switch at a time, from draining to the new replicas.

As OServe does it (section 5.2). When a switch begins, replicas that both deployments have go on; the others take no new
requests, and what waits for them is routed anew. Of what they run, short requests stay and are drained, long ones leave
the batch with the iteration in flight. When the last short one has ended (or `drain_limit_s` has passed: what is left
is computed again elsewhere), the weights and the KV of those that left are sent, all at once over shared links, then
engines start (`reinit_s`), and those that left join the batch of a new replica.

A naive reload throws away all KV at once and reads the weights from storage instead.

Readings, where the text leaves them open: weights are sent when the KV of what drains has made room for them; all new
replicas begin together; a prompt that is being prefilled is drained, as it has no KV to speak of; a request that left
goes to the replica in which its type has the largest share and that has room, and is computed again if none has. The KV
of what was prefilled for a decode worker and has not been sent when its prefill worker stops is sent nonetheless.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from serving_gym.calibration.models import get_model
from serving_gym.envs.interface.fleet import ROLES
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.machines.cluster import Deployment, Replica
from serving_gym.envs.machines.kv_migration import RequestKV, plan_kv
from serving_gym.envs.machines.shards import model_shards
from serving_gym.envs.machines.switch_plan import Transfer, greedy_switch_plan
from serving_gym.envs.machines.transfer import naive_reload_s, transfer_s
from serving_gym.envs.simulator.deployment.replicas import Replicas
from serving_gym.envs.simulator.kernel.migration import ask_to_leave, join, keep
from serving_gym.envs.simulator.kernel.state import DECODE, NEVER, TRANSIT
from serving_gym.envs.simulator.kernel.world import decoding_progress, flush_cache, pool_running, pool_waiting
from serving_gym.envs.simulator.plane import Plane, Process
from serving_gym.envs.simulator.scheduling import to_ps

AD_HOC, RELOAD = "ad_hoc", "reload"
SWITCHES = (AD_HOC, RELOAD)


class Phase(IntEnum):
    """Where a switch stands."""

    DRAIN = 0  # waiting for short requests to end, at most to the timer
    MOVE = 1  # a timer: weights and KV are sent, engines start
    DONE = 2


@dataclass(frozen=True)
class Carried:
    """A request that leaves a batch with its KV.

    Attributes:
        slot: Where the kernel has it.
        index: Row of the workload.
        preemptions: How often it had been preempted then.
        source: Engine slot it leaves.
        target: Engine slot it is to join; -1: none yet.
    """

    slot: int
    index: int
    preemptions: int
    source: int
    target: int = -1


@dataclass
class Switching:
    """A switch under way.

    Attributes:
        started_ps: When it began.
        due_ps: When its timer ends.
        before: Deployment that is replaced.
        going: Slots of the replicas that go.
        coming: Slots of the replicas that come, with these.
        reload: Whether weights come from storage.
        carried: Requests that move.
        phase: Where it stands.
        moved_s: Seconds that the bytes take, once known.
    """

    started_ps: int
    due_ps: int
    before: Deployment
    going: tuple[int, ...]
    coming: tuple[tuple[int, Replica], ...]
    reload: bool
    carried: tuple[Carried, ...] = ()
    phase: Phase = Phase.DRAIN
    moved_s: float = 0.0

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase == Phase.DONE


class DeploymentPlane(Plane):
    """Switches, and the steps they are made of.

    Args:
        simulator: The cluster.
    """

    def __init__(self, simulator: Replicas) -> None:
        super().__init__(simulator)
        self.simulator = simulator

    def fork(self, simulator: Replicas) -> DeploymentPlane:
        """A copy for another simulator."""
        copy = self._fork_plane(simulator)
        copy.simulator = simulator
        return copy

    @property
    def switch(self) -> Switching | None:
        """The switch under way."""
        return next((switch for switch in self.operations if not switch.done), None)

    def process_of(self, operation: Switching) -> Process:
        """Carries a switch out from whatever phase it is in."""
        if operation.phase == Phase.DRAIN:
            while not self._drained(operation) and self.simulator.now_ps < operation.due_ps:
                yield self.until(operation.due_ps) | self.next_notice()
            self._move(operation)
        if operation.phase == Phase.MOVE:
            yield self.until(operation.due_ps)
            self._finish(operation)

    def begin_switch(
        self,
        before: Deployment,
        going: tuple[int, ...],
        coming: tuple[tuple[int, Replica], ...],
        reload: bool,
    ) -> None:
        """Begins to replace some replicas by others."""
        simulator = self.simulator
        simulator.make_room()
        carried = []
        for e in going:
            pool_waiting(simulator.world, e)
            if reload:
                pool_running(simulator.world, simulator.tables, e)
            else:
                carried += self._long_requests(e)
            self._set(e, EngineStatus.DRAINING, notify=2)
        for request in carried:
            ask_to_leave(simulator.world, simulator.tables, request.slot, request.source)
        now_ps = simulator.now_ps
        due_ps = now_ps if reload else now_ps + to_ps(simulator.spec.drain_limit_s)
        self.begin(Switching(now_ps, due_ps, before, going, coming, reload, tuple(carried)))
        simulator.dispatch()
        self.catch_up(notified=False)

    def _long_requests(self, e: int) -> list[Carried]:
        """Decoding requests of an engine that are too long to be drained."""
        world = self.simulator.world
        rows = world.running[e, : world.engines["num_running"][e]]
        found = []
        for slot in rows.tolist():
            request = world.requests[slot]
            if request["phase"] == DECODE:
                tokens = int(request["prompt"]) + decoding_progress(world, slot)
                if tokens >= self.simulator.spec.drain_below_tokens:
                    found.append(Carried(slot, int(request["index"]), int(request["preemptions"]), e))
        return found

    def _drained(self, switch: Switching) -> bool:
        """Whether replicas that go run nothing any more; those that do not need not tell again."""
        engines = self.simulator.world.engines
        for e in switch.going:
            engine = engines[e]
            at_work = engine["num_running"] + engine["num_waiting"] > 0 or engine["first_transit"] >= 0
            if not at_work and engine["step_end_ps"] < 0:
                engine["notify"] = 0
        return not engines["notify"][list(switch.going)].any()

    def _move(self, switch: Switching) -> None:
        """Begins to send weights and KV; what has not drained is computed again."""
        simulator = self.simulator
        simulator.make_room()
        for e in switch.going:
            pool_waiting(simulator.world, e)  # what was preempted while the others drained
            if simulator.world.engines["num_running"][e] or simulator.world.engines["first_transit"][e] >= 0:
                pool_running(simulator.world, simulator.tables, e)
            self._set(e, EngineStatus.DOWN)
        switch.carried = self._with_targets(switch)
        switch.moved_s = self._moved_s(switch)
        switch.phase = Phase.MOVE
        switch.due_ps = simulator.now_ps + to_ps(switch.moved_s + simulator.spec.reinit_s)
        simulator.dispatch()

    def _left(self, request: Carried) -> bool:
        """Whether a request has left the batch with its KV: it may have ended or been preempted instead."""
        row = self.simulator.world.requests[request.slot]
        same = row["index"] == request.index and row["preemptions"] == request.preemptions
        return bool(same and row["phase"] == TRANSIT and row["engine"] == request.source)

    def _with_targets(self, switch: Switching) -> tuple[Carried, ...]:
        """Requests that have left, each with the replica that is to have it."""
        simulator, world = self.simulator, self.simulator.world
        roles = {e: replica.kind.role for e, replica in simulator.standing.items()}
        targets = [e for e, status in enumerate(world.engines["status"]) if status == EngineStatus.ACTIVE]
        targets += [e for e, _ in switch.coming]
        blocks, places = {}, {}
        for e in targets:
            kind = simulator.standing[e].kind
            fresh = world.engines["status"][e] != EngineStatus.ACTIVE
            engine = world.engines[e]
            blocks[e] = simulator.factory.blocks[kind] - (0 if fresh else int(engine["used_blocks"]))
            places[e] = simulator.spec.max_num_seqs - (0 if fresh else int(engine["num_running"]))
        found = []
        for request in filter(self._left, switch.carried):
            row = world.requests[request.slot]
            needed = simulator.blocks_for(int(row["computed"]) + 1)
            able = [
                e
                for e in targets
                if roles[e] == roles[request.source]
                and blocks[e] >= needed
                and places[e] > 0
                and simulator.holds(simulator.standing[e].kind, int(row["prompt"]), int(row["max_output"]))
            ]
            shares = world.shares[row["endpoint"]]
            target = max(able, key=lambda e: (shares[e], blocks[e]), default=-1)
            if target >= 0:
                blocks[target] -= needed
                places[target] -= 1
            found.append(Carried(request.slot, request.index, request.preemptions, request.source, target))
        return tuple(found)

    def _moved_s(self, switch: Switching) -> float:
        """Seconds until all bytes of a switch have arrived."""
        simulator = self.simulator
        spec, after = simulator.spec, simulator.deployment
        if switch.reload:
            return naive_reload_s(
                get_model(spec.model), switch.before, after, spec.storage_bytes_per_s, start_fixed_s=0.0
            )
        moved = [
            RequestKV(
                int(simulator.world.requests["computed"][request.slot]),
                simulator.standing[request.source],
                simulator.standing[request.target],
            )
            for request in switch.carried
            if request.target >= 0
        ]
        chunks = plan_kv(spec.cluster, get_model(spec.model), moved, spec.chunk_bytes)
        weights = weight_plan(spec.model, switch.before, after)
        return transfer_s(spec.cluster, [*weights, *chunks], spec.storage_bytes_per_s)

    def _finish(self, switch: Switching) -> None:
        """The new replicas serve, and have the requests that were brought to them."""
        simulator = self.simulator
        simulator.make_room()
        for e, replica in switch.coming:
            self.enlist(e, replica)
        stranded = set()
        for request in filter(self._left, switch.carried):
            target = request.target if self._room_at(request) else request.source
            if target == request.source:
                stranded.add(target)
            else:
                needed = simulator.blocks_for(int(simulator.world.requests["computed"][request.slot]))
                keep(simulator.world, simulator.tables, target, needed, 1)
            join(simulator.world, simulator.tables, request.slot, target)
        for e in stranded:
            pool_running(simulator.world, simulator.tables, e)
        for e in switch.going:
            self.remove(e)
        switch.phase, switch.due_ps = Phase.DONE, NEVER
        simulator.dispatch()

    def _room_at(self, request: Carried) -> bool:
        """Whether the replica that is to have a request can have it now."""
        simulator = self.simulator
        if request.target < 0:
            return False
        engine = simulator.world.engines[request.target]
        needed = simulator.blocks_for(int(simulator.world.requests["computed"][request.slot]))
        fits = engine["used_blocks"] + needed <= engine["capacity_blocks"]
        return bool(fits and engine["num_running"] + engine["num_kept"] < simulator.spec.max_num_seqs)

    def _set(self, e: int, status: EngineStatus, notify: int = 0) -> None:
        engine = self.simulator.world.engines[e]
        engine["status"], engine["notify"] = status, notify

    def enlist(self, e: int, replica: Replica) -> None:
        """Makes an empty slot a replica in service."""
        simulator = self.simulator
        engine, kind = simulator.world.engines[e], replica.kind
        engine["kind"] = simulator.factory.row(kind, simulator.factors.iteration_of(0))
        engine["role"] = ROLES.index(kind.role)
        engine["width"], engine["first_gpu"] = kind.num_gpus, min(replica.gpus)
        engine["total_blocks"] = engine["capacity_blocks"] = simulator.factory.blocks[kind]
        flush_cache(simulator.world, e)
        self._set(e, EngineStatus.ACTIVE)

    def remove(self, e: int) -> None:
        """Leaves a slot empty."""
        engine = self.simulator.world.engines[e]
        at_work = engine["num_running"] + engine["num_waiting"] + engine["num_kept"]
        assert at_work == 0, "a replica that goes must have nothing left"
        assert engine["used_blocks"] == 0
        self._set(e, EngineStatus.INACTIVE)
        engine["total_blocks"] = engine["capacity_blocks"] = 0
        del self.simulator.standing[e]


@lru_cache(maxsize=256)
def weight_plan(model: str, before: Deployment, after: Deployment) -> tuple[Transfer, ...]:
    """Algorithm 2's plan for the weights of a model."""
    return greedy_switch_plan(after.cluster, model_shards(get_model(model), before, after))
