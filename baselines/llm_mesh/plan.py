"""What a decision is about to say, tried out on copies: nodes with the requests they are to get, memory as promised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from serving_gym.baselines.llm_mesh.bin_packing import instance_order, node_order
from serving_gym.baselines.llm_mesh.keep_alive import Reclaim
from serving_gym.baselines.llm_mesh.kv_scaling import compromise
from serving_gym.baselines.llm_mesh.memory_orchestration import MemoryOrchestrator, Verdict
from serving_gym.baselines.llm_mesh.mesh import Fit, Job, Mesh
from serving_gym.baselines.llm_mesh.node_view import expected_tokens, view_of
from serving_gym.baselines.llm_mesh.preemption import preempt, preemptible
from serving_gym.baselines.llm_mesh.shadow_validation import Case, NodeView, shadow_validation
from serving_gym.envs.interface.sharing import InstanceStatus, Reschedule, ResizeKV, SharingCommand, Unload
from serving_gym.envs.sharing.state import SharingState

_EMPTY = int(InstanceStatus.EMPTY)
_TAKES_REQUESTS = (InstanceStatus.LOADING, InstanceStatus.SERVING, InstanceStatus.RESIZING)


class Plan:
    """Placements of one decision, one after another, each with those before it in mind.

    Args:
        mesh: What holds for the episode.
        state: The state.
        memory: (N,) of each node; changed as placements are committed.
        num_pending: (N,) loads of each node that wait in its reservation station.

    Attributes:
        commands: What is to be said, in order.
    """

    def __init__(
        self, mesh: Mesh, state: SharingState, memory: list[MemoryOrchestrator], num_pending: list[int]
    ) -> None:
        self.mesh, self.state, self.memory, self.num_pending = mesh, state, memory, num_pending
        self._own = set(
            range(len(memory))
        )  # nodes whose memory is this plan's to change, not one's it is a trial of
        self.commands: list[SharingCommand] = []
        instances = state.instances
        self.status: list[int] = instances["status"].tolist()
        self.model: list[int] = instances["model"].tolist()
        self.batch: list[int] = (instances["num_running"] + instances["num_waiting"]).tolist()
        self.empty = [[s for s in self.slots(n) if self.status[s] == _EMPTY] for n in range(len(memory))]
        self.tokens: dict[int, float] = {}  # the sum of equation 2, by slot
        self.views: dict[int, NodeView] = {}

    # -- what stands, with what has been committed --------------------------------------------------------------------

    def view(self, node: int) -> NodeView:
        """A node as it will go on."""
        if node not in self.views:
            self.views[node] = view_of(self.state, self.mesh.setting, node, self.mesh.profiles)
        return self.views[node]

    def slots(self, node: int) -> range:
        """Slots of a node."""
        width = self.mesh.setting.slots_per_node
        return range(node * width, (node + 1) * width)

    def expected_tokens(self, slot: int) -> float:
        """What the requests of an instance will need together, tokens."""
        if slot not in self.tokens:
            mean = self.mesh.lengths.mean(self.model[slot])
            self.tokens[slot] = float(expected_tokens(self.state.requests, slot, mean))
        return self.tokens[slot]

    def candidates(self, model: int, but: int = -1) -> list[int]:
        """Instances of a model that take requests, in the order in which they are tried.

        Args:
            model: Which.
            but: A node that is left out.
        """
        width, ranks = self.mesh.setting.slots_per_node, self.mesh.node_rank
        found = (
            (slot, ranks[slot // width], self.batch[slot])
            for slot, own in enumerate(self.model)
            if own == model and self.status[slot] in _TAKES_REQUESTS and slot // width != but
        )
        return instance_order(found, self.mesh.packing)

    def nodes_for_new(self, but: int = -1) -> list[int]:
        """Nodes that may get a new instance, in the order in which they are tried."""
        mesh = self.mesh
        found = (
            (node, mesh.node_rank[node], memory.budget_used / memory.capacity)
            for node, memory in enumerate(self.memory)
            if node != but
            and mesh.node_usable[node]
            and self.empty_slot(node) is not None
            and (mesh.config.sharing or not memory.allocations)
        )
        return node_order(found, mesh.packing)

    def empty_slot(self, node: int) -> int | None:
        """The slot that the next new instance of a node gets."""
        return self.empty[node][0] if len(self.empty[node]) > self.num_pending[node] else None

    # -- where a request fits ------------------------------------------------------------------------------------------

    def find(self, job: Job, but: int = -1) -> Fit | None:
        """An instance that takes a request as things stand."""
        return next(_found(self.fit(job, slot) for slot in self.candidates(job.model, but)), None)

    def find_new(self, job: Job, but: int = -1) -> Fit | None:
        """A node that takes a request with a new instance."""
        return next(_found(self.fit_new(job, node) for node in self.nodes_for_new(but)), None)

    def fit(self, job: Job, slot: int) -> Fit | None:
        """Whether an instance takes a request: its memory first, then its node's time."""
        mesh, node = self.mesh, slot // self.mesh.setting.slots_per_node
        if self.batch[slot] >= mesh.setting.max_num_seqs:
            return None
        tokens = self.expected_tokens(slot) + mesh.expected_tokens(job)
        weights = mesh.setting.models[job.model].weights_bytes
        current = int(self.memory[node].target(slot)) - weights
        kv_bytes = self.pool(job.model, current, tokens, slot)
        if kv_bytes is None:
            return None
        view = self.view(node)
        k = slot - self.slots(node)[0]
        if kv_bytes > current:
            view = _delayed(view, k, mesh.setting.resize_s(node, current, kv_bytes))
        return Fit(slot, node, kv_bytes, False) if self._in_time(view, job, k) else None

    def fit_new(self, job: Job, node: int) -> Fit | None:
        """Whether a node takes a request with a new instance."""
        mesh, slot = self.mesh, self.empty_slot(node)
        if slot is None or self._loads_too_late(job, node):
            return None
        kv_bytes = self.pool(job.model, 0, mesh.expected_tokens(job), slot)
        if kv_bytes is None:
            return None
        view, model, memory = (
            self._with_new(node, slot, job.model),
            mesh.setting.models[job.model],
            self.memory[node],
        )
        if not self._in_time(view, job, slot - self.slots(node)[0]):
            return None
        waits = memory.tracked + model.weights_bytes + kv_bytes > memory.capacity
        return Fit(-1 if waits else slot, node, kv_bytes, True)

    def _loads_too_late(self, job: Job, node: int) -> bool:
        """Whether a new instance cannot prefill a request in time, were it alone: it would fail shadow validation."""
        mesh, setting = self.mesh, self.mesh.setting
        left_s = job.deadline_s - self.state.now_s
        if left_s < 0 or not mesh.config.shadow_validation:
            return False
        load_s = float(setting.load_s[setting.node_kinds[node], setting.models[job.model].size])
        prefill_s = mesh.quantification.prefill(int(mesh.profiles[node, job.model]), job.length)
        return load_s + (1.0 + mesh.config.overestimate) * prefill_s > left_s

    def _with_new(self, node: int, slot: int, model: int) -> NodeView:
        """A node with an instance that begins to load."""
        view, setting = self.view(node), self.mesh.setting
        k, size = slot - self.slots(node)[0], setting.models[model].size
        profile, ready_s = view.profile.copy(), view.ready_s.copy()
        profile[k] = self.mesh.profiles[node, model]
        ready_s[k] = view.now_s + float(setting.load_s[setting.node_kinds[node], size])
        return view._replace(profile=profile, ready_s=ready_s)

    def pool(self, model: int, current: int, tokens: float, slot: int) -> int | None:
        """KV pool for so many tokens, bytes; None where the node's budget has no room for it.

        Args:
            model: Of the instance.
            current: Pool that it has or is to have, bytes.
            tokens: What its requests will need.
            slot: The instance.
        """
        mesh, weights = self.mesh, self.mesh.setting.models[model].weights_bytes
        memory = self.memory[slot // mesh.setting.slots_per_node]
        now, required = mesh.kv_tokens(model, current), max(tokens, mesh.least_tokens(model))

        def approved(size: float) -> bool:
            return memory.approves(slot, weights + mesh.kv_bytes(model, size))

        found = compromise(now, required, mesh.config.watermark, approved, mesh.config.compromise)
        return None if found is None else max(current, mesh.kv_bytes(model, found))

    def _in_time(self, view: NodeView, job: Job, k: int) -> bool:
        config = self.mesh.config
        if not config.shadow_validation:
            return True
        found = shadow_validation(
            view,
            k,
            job.deadline_s,
            job.length,
            self.mesh.quantification,
            job.tpot_slo_s,
            config.overestimate,
        )
        return found is Case.PASSED

    def _demand(self, node: int, slot: int, size: float) -> Verdict:
        if node not in self._own:
            self.memory[node] = self.memory[node].copy()
            self._own.add(node)
        return self.memory[node].demand(slot, size)

    # -- what is decided -----------------------------------------------------------------------------------------------

    def commit(self, job: Job, fit: Fit) -> None:
        """Gives a request its place: in the view of the node, and in its memory."""
        model = self.mesh.setting.models[job.model]
        if fit.new:
            self.begin_load(fit.slot, job.model)
            self._demand(fit.node, fit.slot, model.weights_bytes + fit.kv_bytes)
        else:
            self.resize(fit.slot, fit.kv_bytes)
        k = fit.slot - self.slots(fit.node)[0]
        self.views[fit.node] = self.view(fit.node).with_request(k, job.deadline_s, job.length)
        self.tokens[fit.slot] = self.expected_tokens(fit.slot) + self.mesh.expected_tokens(job)
        self.batch[fit.slot] += 1

    def begin_load(self, slot: int, model: int) -> None:
        """A new instance takes a slot."""
        node = slot // self.mesh.setting.slots_per_node
        self.views[node] = self._with_new(node, slot, model)
        self.empty[node] = self.empty[node][1:]
        self.status[slot], self.model[slot] = InstanceStatus.LOADING, model
        self.batch[slot], self.tokens[slot] = 0, 0.0

    def remove(self, job: Job, slot: int) -> None:
        """Takes a request out of an instance."""
        node = slot // self.mesh.setting.slots_per_node
        k = slot - self.slots(node)[0]
        self.tokens[slot] = self.expected_tokens(slot) - self.mesh.expected_tokens(job)
        self.batch[slot] -= 1
        self.views[node] = self.view(node).without_request(k, job.deadline_s, job.length)

    def resize(self, slot: int, kv_bytes: int) -> None:
        """Demands a KV pool of some size for an instance."""
        setting = self.mesh.setting
        node, model = slot // setting.slots_per_node, setting.models[self.model[slot]]
        current = int(self.memory[node].target(slot)) - model.weights_bytes
        if kv_bytes == current:
            return
        verdict = self._demand(node, slot, model.weights_bytes + kv_bytes)
        if verdict is Verdict.EXECUTE:
            self.commands.append(ResizeKV(slot, kv_bytes))
            self.status[slot] = InstanceStatus.RESIZING
            k = slot - self.slots(node)[0]
            self.views[node] = _delayed(self.view(node), k, setting.resize_s(node, current, kv_bytes))

    # -- proactive defragmentation -------------------------------------------------------------------------------------

    def fork(self) -> Plan:
        """A copy in which something can be tried."""
        other = object.__new__(Plan)
        other.__dict__.update(self.__dict__)
        other.memory, other._own = list(self.memory), set()
        other.commands, other.views, other.tokens = list(self.commands), dict(self.views), dict(self.tokens)
        other.empty = list(self.empty)
        other.status, other.model, other.batch = list(self.status), list(self.model), list(self.batch)
        return other

    def adopt(self, other: Plan) -> None:
        """Makes a trial what is planned."""
        self.memory[:] = other.memory
        self._own |= other._own
        self.commands, self.views, self.tokens = other.commands, other.views, other.tokens
        self.empty = other.empty
        self.status, self.model, self.batch = other.status, other.model, other.batch

    def preempt(self, job: Job) -> Fit | None:
        """An instance that takes a request once it has preempted neighbours, which are then gone."""
        for slot in self.candidates(job.model):
            node = slot // self.mesh.setting.slots_per_node
            neighbours = [
                (other, self.batch[other])
                for other in sorted(self.slots(node), key=self.worth)
                if other != slot and self.status[other] == InstanceStatus.SERVING
            ]
            alone = self.fork()
            for other in preemptible(neighbours, self.batch[slot]):
                alone._vacate(other)
            if alone.fit(job, slot) is None:
                continue  # not even the loss of all of them would help
            trial = self.fork()

            def fits(trial: Plan = trial, slot: int = slot) -> bool:
                return trial.fit(job, slot) is not None

            if preempt(neighbours, self.batch[slot], trial.relocate, fits) is not None:
                self.adopt(trial)
                return self.fit(job, slot)
        return None

    def relocate(self, slot: int) -> bool:
        """Moves all requests of an instance to other nodes and unloads it; False, changing nothing, where one fails."""
        node = slot // self.mesh.setting.slots_per_node
        requests = self.state.requests
        jobs = sorted(
            (Job.of(row) for row in requests[requests["instance"] == slot]), key=lambda job: job.deadline_s
        )
        trial = self.fork()
        for job in jobs:
            fit = trial.find(job, but=node) or trial.find_new(job, but=node)
            if fit is None or fit.place is None:
                return False
            trial.commands.append(Reschedule(job.row, fit.place))
            trial.commit(job, fit)
        trial.commands.append(Unload(slot))
        trial._vacate(slot)
        self.adopt(trial)
        return True

    def _vacate(self, slot: int) -> None:
        """An instance without requests is unloaded."""
        node = slot // self.mesh.setting.slots_per_node
        self._demand(node, slot, 0.0)
        self.views[node] = self.view(node).without_instance(slot - self.slots(node)[0])
        self.status[slot] = InstanceStatus.UNLOADING

    # -- idle instances ------------------------------------------------------------------------------------------------

    def worth(self, slot: int) -> float:
        """What it is worth to keep an instance; of idle ones the least goes first."""
        model = self.model[slot]
        if model < 0 or self.mesh.config.reclaim == Reclaim.NONE:
            return 0.0
        if self.mesh.config.reclaim == Reclaim.LONGEST_IDLE:
            return -float(self.state.instances[slot]["idle_s"])
        return self.mesh.asked.count(model, self.state.now_s)

    def reclaim(self, job: Job) -> Fit | None:
        """A new instance for a request, for whose memory idle ones are unloaded: where the least is lost."""
        if self.mesh.config.reclaim == Reclaim.NONE:
            return None
        best: tuple[int, float, int] | None = None
        chosen: tuple[Plan, Fit] | None = None
        for node, usable in enumerate(self.mesh.node_usable):
            found = self._reclaimed(job, node) if usable and self.empty_slot(node) is not None else None
            if found is not None:
                key = (self.mesh.node_rank[node], found[2], node)
                if best is None or key < best:
                    best, chosen = key, found[:2]
        if chosen is None:
            return None
        self.adopt(chosen[0])
        return chosen[1]

    def _reclaimed(self, job: Job, node: int) -> tuple[Plan, Fit, float] | None:
        """The trial in which idle instances of a node make room, where the request goes then, and the most worth."""
        idle = [
            slot
            for slot in self.slots(node)
            if self.status[slot] == InstanceStatus.SERVING
            and self.batch[slot] == 0
            and self.model[slot] != job.model
        ]
        trial = self.fork()
        for slot in sorted(idle, key=self.worth):
            trial.commands.append(Unload(slot))
            trial._vacate(slot)
            if self.mesh.config.sharing or trial.memory[node].budget_used == 0:
                fit = trial.fit_new(job, node)
                if fit is not None:
                    return trial, fit, self.worth(slot)
        return None


def _found(fits: Iterable[Fit | None]) -> Iterator[Fit]:
    return (fit for fit in fits if fit is not None)


def _delayed(view: NodeView, k: int, by_s: float) -> NodeView:
    """A node one of whose instances computes nothing for a while, which begins with the next iteration."""
    ready_s = view.ready_s.copy()
    ready_s[k] = max(ready_s[k], view.busy_until_s if view.busy_instance == k else view.now_s) + by_s
    return view._replace(ready_s=ready_s)
