"""LLM-Mesh as a policy (Xu et al., section 4): the compute and the memory subsystem behind one door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from serving_gym.baselines.common.sharing import SharingPolicy
from serving_gym.baselines.llm_mesh.config import LLMMeshConfig
from serving_gym.baselines.llm_mesh.headroom import headroom_s, longest_headroom, shortest_headroom
from serving_gym.baselines.llm_mesh.keep_alive import KeepAlive, Late
from serving_gym.baselines.llm_mesh.kv_scaling import scale_down_to
from serving_gym.baselines.llm_mesh.memory_orchestration import MemoryOrchestrator
from serving_gym.baselines.llm_mesh.mesh import Fit, Job, Mesh
from serving_gym.baselines.llm_mesh.node_view import needed_tokens
from serving_gym.baselines.llm_mesh.plan import Plan
from serving_gym.baselines.policy import Action, Configured
from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    Load,
    Place,
    RequestPhase,
    Reschedule,
    ResizeKV,
    Retry,
    TokenScheduler,
)
from serving_gym.envs.sharing.state import Share, SharingState


@dataclass(frozen=True)
class _PendingLoad:
    """A new instance whose memory is promised and not yet free."""

    model: int
    node: int
    kv_bytes: int


class LLMMeshPolicy(SharingPolicy, Configured[LLMMeshConfig]):
    """Elastic sharing of nodes.

    * An arriving request is tried on the instances of its model, CPU nodes first, then the highest batch size
      (`bin_packing`): an instance takes it if the node's budget has room for the KV cache (`memory_demand`,
      `kv_scaling`, `memory_orchestration`) and shadow validation passes. Next, an instance may preempt neighbours
      (`preemption`). Last, a new instance is tried on each node, and where none has the memory, in the place of idle
      instances (`keep_alive`). Else the request waits at the gateway and is tried again when it is offered again.
    * When requests finish, KV caches shrink lazily.
    * When a KV cache has been underestimated it is scaled up again; if the budget has no room, requests with the
      longest headroom are evicted and placed anew, as many as it takes.
    * The world unloads idle instances after the keep-alive time and runs the token-level schedule; where it asks for
      that (`TokenScheduler.POLICY`), the instance with the shortest headroom gets the iteration.

    Readings and departures:

    * The text puts the node kind and the batch size first without saying which comes before the other: here the kind.
    * Preemption comes before a new instance, as its purpose is that none be created.
    * While its KV cache is resized an instance computes nothing, and shadow validation knows that.
    * A new instance whose memory is still being freed is promised and waits in the reservation station; the request
      stays at the gateway until it loads.
    * A request whose first token is late already is not placed (it "is dropped", section 8.2): it stays at the gateway
      until its client gives up. `late` says which are placed all the same, where they make no other late: by default
      those of models that no node loads within the TTFT promise. One that has lost its place after its first token is
      placed.
    """

    name = "llm_mesh"

    def begin(self) -> None:
        """Quantifies iterations; all nodes are empty."""
        self.mesh = Mesh(self.config, self.setting)
        self.memory = [MemoryOrchestrator(float(size)) for size in self.setting.memory_bytes]
        self._pending: dict[int, _PendingLoad] = {}
        self._next_pending = -1
        self._configured = False

    def act(self, observation: Any, state: SharingState) -> Action:
        """Decides what the event asks for, and what has come due besides."""
        if state.event == Event.ITERATION:
            return self._iteration(state)
        dropped = state.event == Event.PLACEMENT and self._dropped(state.requests[state.offered], state.now_s)
        if dropped and not len(state.finished):
            return Share(retry=Retry.NEVER)
        for row in state.finished:
            self.mesh.lengths.note(int(row["model"]), int(row["output_tokens"]))
        plan = Plan(self.mesh, state, self.memory, self._num_pending())
        if not self._configured:
            self._configured = True
            scheduler = TokenScheduler(self.config.token_scheduler)
            fixed = self.config.keep_alive == KeepAlive.FIXED
            plan.commands.append(Configure(scheduler, True, self.config.keep_alive_s if fixed else None))
        self._keep_up(plan)
        for slot in sorted(set(state.finished["instance"].tolist())):
            self._shrink(plan, slot)
        place: Place | None = None
        if state.event == Event.SHORTAGE:
            self._relieve(plan, state.instance)
        elif state.event == Event.PLACEMENT and not dropped:
            place = self._place(plan)
        return Share(place, tuple(plan.commands), retry=Retry.NEVER if dropped else Retry.ALWAYS)

    # -- placement -----------------------------------------------------------------------------------------------------

    def _dropped(self, row: np.void, now_s: float) -> bool:
        """Whether a request can have no first token in time, and so no place."""
        late = row["arrival_s"] + row["ttft_slo_s"] < now_s and row["first_token_s"] < 0
        return bool(late) and self.config.late != Late.SERVE and not self._excused(Job.of(row))

    def _excused(self, job: Job) -> bool:
        """Whether a request is served although its first token would be late after a cold start, however soon."""
        return self.config.late != Late.DROP and self.mesh.starts_too_late(job)

    def _place(self, plan: Plan) -> Place | None:
        row = plan.state.requests[plan.state.offered]
        job, now_s = Job.of(row), plan.state.now_s
        self.mesh.asked.note(job.row, job.model, now_s)
        fit = plan.find(job)
        if fit is None and self.config.preemption:
            fit = plan.preempt(job)
        if fit is None:
            fit = self._start(plan, job)
        if fit is None and self._excused(job):
            job = job.late(now_s)
            fit = plan.find(job) or self._start(plan, job)
        if fit is None:
            return None
        if fit.place is None:
            self._promise(_PendingLoad(job.model, fit.node, fit.kv_bytes))
            return None
        plan.commit(job, fit)
        return fit.place

    def _start(self, plan: Plan, job: Job) -> Fit | None:
        """A new instance for a request; none where one of its model waits for its memory already."""
        if any(load.model == job.model for load in self._pending.values()):
            return None
        return plan.find_new(job) or plan.reclaim(job)

    def _promise(self, load: _PendingLoad) -> None:
        weights = self.setting.models[load.model].weights_bytes
        self.memory[load.node].demand(self._next_pending, weights + load.kv_bytes)
        self._pending[self._next_pending] = load
        self._next_pending -= 1

    def _num_pending(self) -> list[int]:
        count = [0] * len(self.memory)
        for load in self._pending.values():
            count[load.node] += 1
        return count

    # -- memory --------------------------------------------------------------------------------------------------------

    def _keep_up(self, plan: Plan) -> None:
        """Takes down operations that are done, and begins what the reservation station lets go."""
        known = sum(len(memory.allocations) for memory in self.memory) - len(self._pending)
        if len(plan.status) - plan.status.count(InstanceStatus.EMPTY) > known:
            self._adopt_unknown(plan)
        for memory in self.memory:
            for slot, own in tuple(memory.allocations.items()):
                status = plan.status[slot] if slot >= 0 else InstanceStatus.LOADING
                if status == InstanceStatus.EMPTY and own.target != 0.0:  # it died
                    self._begin(plan, memory, memory.drop(slot))
                    continue
                idle_end = status == InstanceStatus.UNLOADING and own.target != 0.0
                over = idle_end or status in (InstanceStatus.SERVING, InstanceStatus.EMPTY)
                if own.executing is not None and over:
                    self._begin(plan, memory, memory.complete(slot))
                if idle_end:
                    memory.demand(slot, 0.0)

    def _adopt_unknown(self, plan: Plan) -> None:
        """Takes down instances that somebody else has started."""
        for slot, status in enumerate(plan.status):
            memory = self._memory_of(slot)
            if status == InstanceStatus.EMPTY or slot in memory.allocations:
                continue
            row, executing = plan.state.instances[slot], None
            weights, kv = int(row["weights_bytes"]), int(row["kv_bytes"])
            if status in (InstanceStatus.LOADING, InstanceStatus.RESIZING):
                executing = float(weights + int(row["kv_target_bytes"]))
            elif status == InstanceStatus.UNLOADING:
                executing = 0.0
            held = 0 if status == InstanceStatus.LOADING else weights + kv
            memory.adopt(slot, float(held), executing)

    def _begin(self, plan: Plan, memory: MemoryOrchestrator, released: list[int]) -> None:
        """Tells the world of operations that left the reservation station."""
        while released:
            slot = released.pop(0)
            load = self._pending.pop(slot, None)
            if load is None:
                weights = self.setting.models[plan.model[slot]].weights_bytes
                plan.commands.append(ResizeKV(slot, int(memory.target(slot)) - weights))
                plan.status[slot] = InstanceStatus.RESIZING
                continue
            plan.num_pending[load.node] -= 1
            found = plan.empty_slot(load.node)
            if found is None or not self._still_wanted(plan.state, load.model):
                released += memory.drop(slot)
                continue
            memory.rename(slot, found)
            plan.commands.append(Load(load.model, load.node, load.kv_bytes))
            plan.begin_load(found, load.model)

    def _still_wanted(self, state: SharingState, model: int) -> bool:
        requests = state.requests
        held = requests[(requests["phase"] == RequestPhase.HELD) & (requests["model"] == model)]
        return any(not self._dropped(row, state.now_s) for row in held)

    def _shrink(self, plan: Plan, slot: int) -> None:
        """Gives memory back after requests have finished, if it is worth a resize."""
        if plan.status[slot] != InstanceStatus.SERVING or slot in self._memory_of(slot).station:
            return
        model, mesh = plan.model[slot], self.mesh
        current = mesh.kv_tokens(model, self._kv_target(plan, slot))
        target = scale_down_to(current, self._required(plan, slot), self.config.watermark)
        if target is not None:
            plan.resize(slot, mesh.kv_bytes(model, target))

    def _relieve(self, plan: Plan, slot: int) -> None:
        """The KV cache has been underestimated: more of it, or fewer requests."""
        if plan.status[slot] != InstanceStatus.SERVING:
            return
        current, required = self._kv_target(plan, slot), self._required(plan, slot)
        model = plan.model[slot]
        if self.mesh.kv_bytes(model, required) <= current:
            return  # it waits in the reservation station for what it needs
        kv_bytes = plan.pool(model, current, required, slot)
        if kv_bytes is not None:
            plan.resize(slot, kv_bytes)
            return
        self._evict(plan, slot, self.mesh.kv_tokens(model, float(plan.state.instances[slot]["kv_bytes"])))

    def _evict(self, plan: Plan, slot: int, pool_tokens: float) -> None:
        """Takes out requests with the longest headroom until the others can go on, and places them anew."""
        state, block = plan.state, self.setting.block_tokens
        rows = state.requests[state.requests["instance"] == slot]
        running = rows["phase"] == RequestPhase.RUNNING
        rows = rows[running] if running.any() else rows
        while len(rows) and needed_tokens(rows, slot, block) > pool_tokens:
            away = longest_headroom(_headroom_s(rows, state.now_s))
            job = Job.of(rows[away])
            plan.remove(job, slot)
            fit = plan.find(job, but=slot // self.setting.slots_per_node) or plan.find_new(job)
            if fit is not None and fit.place is not None:
                plan.commands.append(Reschedule(job.row, fit.place))
                plan.commit(job, fit)
            else:
                plan.commands.append(Reschedule(job.row))
            rows = np.delete(rows, away)

    def _required(self, plan: Plan, slot: int) -> float:
        """M_require of an instance in tokens, no less than what its next tokens take in whole blocks."""
        needed = needed_tokens(plan.state.requests, slot, self.setting.block_tokens)
        return max(plan.expected_tokens(slot), self.mesh.least_tokens(plan.model[slot]), float(needed))

    def _memory_of(self, slot: int) -> MemoryOrchestrator:
        return self.memory[slot // self.setting.slots_per_node]

    def _kv_target(self, plan: Plan, slot: int) -> int:
        weights = self.setting.models[plan.model[slot]].weights_bytes
        return int(self._memory_of(slot).target(slot)) - weights

    # -- the token level -----------------------------------------------------------------------------------------------

    def _iteration(self, state: SharingState) -> Share:
        """Gives the node to the instance of the most urgent request, to prefill or decode as that needs."""
        requests = state.requests
        slots = requests["instance"]
        width = self.setting.slots_per_node
        rows = requests[(slots // width == state.node) & (slots >= 0) & state.runnable[slots]]
        headroom = _headroom_s(rows, state.now_s)
        slot = shortest_headroom(rows["instance"].astype(np.int64), headroom)
        own = rows["instance"] == slot
        urgent = rows["phase"][own][np.argmin(headroom[own])] if own.any() else RequestPhase.RUNNING
        return Share(slot, prefill=bool(urgent == RequestPhase.WAITING))


def _headroom_s(rows: Any, now_s: float) -> Any:
    """Equation 1 of rows of `SharingState.requests`."""
    tpot_slo_s = float(rows["tpot_slo_s"][0]) if len(rows) else 0.0
    generated = rows["generated_tokens"].astype(np.int64)
    return headroom_s(rows["arrival_s"], rows["ttft_slo_s"], tpot_slo_s, generated, now_s)
