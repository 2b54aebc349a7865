"""A shared cluster in plain Python, one object a thing, written from the descriptions and not from the kernel.

It is told and asked the same as `envs.simulator.sharing.simulator.SharingSimulator`, and reads only what things take
from the simulator's tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

NEVER = 1 << 62


@dataclass(eq=False)
class Request:
    row: int
    arrival: int
    prompt: int
    output: int
    model: int
    ttft: int
    tpot: int
    generated: int = 0
    evictions: int = 0
    place: Any = None  # an Instance, or None at the gateway
    phase: str = "coming"  # held, waiting, running, gone
    held_since: int = 0
    offer: int = 0
    retry: str = "always"
    stirred: bool = False
    first: int = -1
    finish: int = -1
    outcome: str = ""

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated

    @property
    def deadline(self) -> int:
        return self.arrival + self.ttft + self.tpot * self.generated


@dataclass(eq=False)
class Instance:
    slot: int
    model: int
    weights: int
    kv: int
    target: int
    status: str = "loading"  # serving, resizing, unloading
    due: int = NEVER
    idle: int = NEVER
    shortage: int = 0
    running: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)

    @property
    def held(self) -> int:
        return self.weights + max(self.kv, self.target)

    @property
    def requests(self) -> list[Request]:
        return self.running + self.waiting


@dataclass(eq=False)
class Node:
    number: int
    kind: int
    memory: int
    job: tuple[Instance, Request | None, bool] | None = (
        None  # instance, request to prefill, whether it decodes
    )
    due: int = NEVER
    last: int = -1
    busy: int = 0
    begun: int = 0
    asked: Any = None  # None: not asked; else (slot or None, prefill)


class Oracle:
    """See the module."""

    def __init__(self, simulator: Any) -> None:
        self.t, self.setting = simulator.tables, simulator.setting
        self.p = {
            name: simulator.tables.parameters[0][name] for name in simulator.tables.parameters.dtype.names
        }
        self.width = int(self.p["slots_per_node"])
        self.now, self.next_arrival = 0, 0
        self.manages, self.scheduler = False, str(simulator.scheduler)
        self.keep_alive = round(simulator.spec.keep_alive_s * 1e12)
        self.nodes = [
            Node(n, int(kind), int(memory))
            for n, (kind, memory) in enumerate(
                zip(self.setting.node_kinds, self.setting.memory_bytes, strict=True)
            )
        ]
        self.slots: list[Instance | None] = [None] * (self.width * len(self.nodes))
        t = self.t
        self.requests = [
            Request(r, *(int(column[r]) for column in (t.arrival_ps, t.input_tokens, t.output_tokens, t.model)),
                    int(t.ttft_ps[r]), int(t.tpot_ps[r]))
            for r in range(len(t.arrival_ps))
        ]  # fmt: skip
        self.held: list[Request] = []
        self.ooms = 0
        self.operated: set[int] = set()
        self.ended: set[int] = set()
        self.outputs: dict[int, list[int]] = {}
        self.event: tuple[str, int, int, int] = ("", -1, -1, -1)  # kind, node, slot, request
        self.asked = False  # whether anybody has been asked anything

    # -- helpers -------------------------------------------------------------------------------------------------------

    def node_of(self, slot: int) -> Node:
        return self.nodes[slot // self.width]

    def on(self, node: Node) -> list[Instance]:
        here = self.slots[node.number * self.width : (node.number + 1) * self.width]
        return [instance for instance in here if instance is not None]

    def memory_held(self, node: Node) -> int:
        return sum(instance.held for instance in self.on(node))

    def blocks(self, tokens: int) -> int:
        return math.ceil(tokens / int(self.p["block_tokens"]))

    def block_bytes(self, model: int) -> int:
        return int(self.t.token_bytes[model]) * int(self.p["block_tokens"])

    def pool(self, instance: Instance) -> int:
        return instance.kv // self.block_bytes(instance.model)

    def used(self, instance: Instance) -> int:
        return sum(self.blocks(request.tokens) for request in instance.running)

    def fits(self, instance: Instance, request: Request) -> bool:
        enough = self.used(instance) + self.blocks(request.tokens + 1) <= self.pool(instance)
        return enough and len(instance.running) < int(self.p["max_running"])

    def candidate(self, instance: Instance, by_headroom: bool) -> Request | None:
        if instance.status != "serving" or not instance.waiting:
            return None
        chosen = min(instance.waiting, key=lambda r: r.deadline) if by_headroom else instance.waiting[0]
        return chosen if self.fits(instance, chosen) else None

    @property
    def by_headroom(self) -> bool:
        return self.scheduler in ("shortest_headroom", "policy")

    def runnable(self, instance: Instance | None) -> bool:
        if instance is None or instance.status != "serving":
            return False
        return bool(instance.running) or self.candidate(instance, self.by_headroom) is not None

    def short(self, instance: Instance) -> bool:
        return sum(self.blocks(r.tokens + 1) for r in instance.running) > self.pool(instance)

    def stuck(self, instance: Instance) -> bool:
        idle = instance.status == "serving" and not instance.running and bool(instance.waiting)
        return idle and self.candidate(instance, self.by_headroom) is None

    # -- requests ------------------------------------------------------------------------------------------------------

    def leave(self, request: Request, evicted: bool) -> None:
        instance = request.place
        if instance is None:
            self.held.remove(request)
            return
        self.stir(request.model)
        if request.phase == "running":
            instance.running.remove(request)
            request.evictions += evicted
        else:
            instance.waiting.remove(request)
            node = self.node_of(instance.slot)
            if node.job is not None and node.job[1] is request:
                node.job = (node.job[0], None, False)
        request.place = None
        if not instance.requests and instance.status == "serving":
            instance.idle = self.now

    def to_gateway(self, request: Request) -> None:
        request.phase, request.place = "held", None
        request.held_since = request.offer = self.now
        request.retry = "always"
        self.held.append(request)

    def to_queue(self, request: Request, instance: Instance, front: bool = False) -> None:
        request.phase, request.place, instance.idle = "waiting", instance, NEVER
        instance.waiting.insert(0 if front else len(instance.waiting), request)

    def die(self, request: Request) -> None:
        if self.p["restart_on_oom"]:
            request.evictions += 1
            self.to_gateway(request)
        else:
            request.phase, request.outcome = "gone", "failed"

    def refuse(self, request: Request) -> None:
        request.phase, request.outcome = "gone", "refused"

    # -- operations ----------------------------------------------------------------------------------------------------

    def load(self, node: Node, model: int, kv: int) -> Instance | str | None:
        """The instance, None where it died at once, or why it is refused."""
        base = node.number * self.width
        free = [i for i in range(base, base + self.width) if self.slots[i] is None]
        if not free:
            return "the node has no empty slot"
        if kv < self.block_bytes(model):
            return "a KV pool must hold a block at least"
        if self.memory_held(node) + int(self.t.weights[model]) + kv > node.memory:
            self.ooms += 1
            return None
        instance = Instance(free[0], model, int(self.t.weights[model]), 0, kv)
        instance.due = self.now + int(self.t.load_ps[node.kind, self.t.size[model]])
        self.slots[free[0]] = instance
        self.stir(model)
        self.operated.discard(free[0])
        self.ended.discard(free[0])
        return instance

    def begins(self, instance: Instance) -> int:
        node = self.node_of(instance.slot)
        return node.due if node.job is not None and node.job[0] is instance else self.now

    def resize(self, instance: Instance, kv: int) -> None:
        node = self.node_of(instance.slot)
        others = self.memory_held(node) - instance.held
        if others + instance.weights + max(instance.kv, kv) > node.memory:
            self.ooms += 1
            if node.job is not None and node.job[0] is instance:
                node.busy += self.now - node.begun
                node.job, node.due = None, NEVER
            for request in instance.requests:
                self.leave(request, False)
                self.die(request)
            self.empty(instance)
            return
        copied, created = min(instance.kv, kv), max(kv - instance.kv, 0)
        kept_fs, added_fs = self.t.resize_fs[node.kind].tolist()
        cost = copied * kept_fs + created * added_fs
        instance.due = self.begins(instance) + int(cost / 1000 + 0.5)
        instance.status, instance.target, instance.idle = "resizing", kv, NEVER

    def unload(self, instance: Instance) -> None:
        instance.due = self.begins(instance) + int(self.p["unload_ps"])
        instance.status, instance.idle = "unloading", NEVER

    def empty(self, instance: Instance) -> None:
        self.slots[instance.slot] = None
        self.ended.discard(instance.slot)
        if not self.on(self.node_of(instance.slot)):
            self.stir(None)

    def finish_operation(self, instance: Instance) -> None:
        self.operated.add(instance.slot)
        instance.due = NEVER
        if instance.status == "unloading":
            self.empty(instance)
            return
        instance.kv, instance.status, instance.shortage = instance.target, "serving", 0
        if not instance.requests:
            instance.idle = self.now

    # -- the environment's manager -------------------------------------------------------------------------------------

    def mean(self, model: int) -> float:
        count, total = self.outputs.get(model, [0, 0])
        weight = float(self.p["mean_weight"])
        return (total + weight * float(self.p["mean_output"])) / (count + weight)

    def rounded(self, model: int, tokens: float) -> int:
        size = int(self.p["block_tokens"])
        return int((tokens + size - 1e-6) // size) * self.block_bytes(model)

    def demand(self, instance: Instance) -> float:
        mean = self.mean(instance.model)
        total = sum(r.prompt + max(float(r.generated + 1), mean) for r in instance.requests)
        return max(total, float(self.p["least_tokens"]))

    def fit_pool(self, instance: Instance) -> bool:
        if instance.status != "serving":
            return False
        need, w = self.demand(instance), float(self.p["watermark"])
        node = self.node_of(instance.slot)
        ample = self.rounded(instance.model, need * (1.0 + w))
        bare = self.rounded(instance.model, need)
        free = node.memory - self.memory_held(node) + instance.kv
        if instance.kv < bare:
            target = ample if ample <= free else bare
            if target > free:
                return False
            self.resize(instance, target)
            return True
        if instance.requests and ample * (1.0 + w) < instance.kv:
            self.resize(instance, ample)
            return True
        return False

    def relieve(self, instance: Instance) -> None:
        if self.fit_pool(instance) or instance.status != "serving":
            return
        if self.stuck(instance):
            for request in list(instance.waiting):
                self.leave(request, True)
                self.to_gateway(request)
                request.offer = self.now + int(self.p["retry_ps"])
            return
        while len(instance.running) > 1 and self.short(instance):
            longest = max(instance.running, key=lambda r: (r.deadline, -instance.running.index(r)))
            self.leave(longest, True)
            self.to_gateway(longest)

    # -- commands ------------------------------------------------------------------------------------------------------

    def place_at(self, request: Request, slot: int) -> str:
        instance = self.slots[slot]
        if instance is None or instance.status == "unloading":
            return "the instance is empty or being unloaded"
        if instance.model != request.model:
            return "the instance is of another model than the request"
        if request.place is instance:
            return "the request is in that instance already"
        self.leave(request, True)
        self.to_queue(request, instance)
        if not self.manages:
            self.fit_pool(instance)
        return ""

    def place_new(self, request: Request, node: int, kv: int) -> str:
        begun = self.load(self.nodes[node], request.model, kv)
        if isinstance(begun, str):
            return begun
        self.leave(request, True)
        if begun is None:
            self.die(request)
        else:
            self.to_queue(request, begun)
        return ""

    def has_place(self, request: Request) -> bool:
        """Whether the environment's manager has a pool for a request, in an instance or a new one."""
        own = max(float(request.generated + 1), self.mean(request.model))
        for instance in self.slots:
            if instance is None or instance.model != request.model or instance.status == "unloading":
                continue
            node = self.node_of(instance.slot)
            bare = self.rounded(instance.model, self.demand(instance) + request.prompt + own)
            free = node.memory - self.memory_held(node)
            if bare <= max(free + max(instance.kv, instance.target), instance.kv):
                return True
        bare = self.rounded(request.model, max(request.prompt + own, float(self.p["least_tokens"])))
        bare += int(self.t.weights[request.model])
        return any(
            len(self.on(node)) < self.width and bare <= node.memory - self.memory_held(node)
            for node in self.nodes
        )

    def await_turn(self, request: Request, retry: str) -> None:
        """Holds what was offered, and those of its model that wait already, unless it has a place."""
        if request.phase != "held":
            return
        request.retry, request.stirred = retry, False
        if retry == "never":
            request.offer = NEVER
        else:
            self.put_off(request)

    def stir(self, model: int | None) -> None:
        """Something has come free, for a model or (None) for all."""
        for request in self.held:
            request.stirred |= model in (None, request.model)

    def put_off(self, request: Request) -> None:
        due = self.now + int(self.p["retry_ps"])
        for other in self.held:
            if other.model == request.model and other.offer <= self.now and other.held_since < self.now:
                other.offer = due
        request.offer = due

    # -- time ----------------------------------------------------------------------------------------------------------

    def gain(self, request: Request) -> None:
        request.generated += 1
        if request.first < 0:
            request.first = self.now
        if request.generated == request.output:
            self.ended.add(request.place.slot)
            self.leave(request, False)
            request.phase, request.outcome, request.finish = "gone", "finished", self.now
            entry = self.outputs.setdefault(request.model, [0, 0])
            entry[0] += 1
            entry[1] += request.output

    def finish_iteration(self, node: Node) -> None:
        assert node.job is not None
        instance, request, decodes = node.job
        node.busy += self.now - node.begun
        node.job, node.due = None, NEVER
        if decodes:
            for member in list(instance.running):
                self.gain(member)
        elif request is not None:
            instance.waiting.remove(request)
            instance.running.append(request)
            request.phase = "running"
            self.gain(request)

    def happen(self) -> None:
        for instance in [i for i in self.slots if i is not None and i.due <= self.now]:
            self.finish_operation(instance)
        for node in self.nodes:
            if node.due <= self.now:
                self.finish_iteration(node)
        while self.next_arrival < len(self.requests) and self.requests[self.next_arrival].arrival <= self.now:
            request = self.requests[self.next_arrival]
            self.next_arrival += 1
            if request.prompt >= int(self.t.max_tokens[request.model]):
                self.refuse(request)
            else:
                self.to_gateway(request)
        while self.held and self.now - self.held[0].held_since >= int(self.p["patience_ps"]):
            self.refuse(self.held.pop(0))
        for instance in self.slots:
            if instance is not None and instance.idle < NEVER and self.now - instance.idle >= self.keep_alive:
                self.unload(instance)

    def tell(self, kind: str, node: int = -1, slot: int = -1, request: int = -1) -> str:
        self.event = (kind, node, slot, request)
        return kind

    def look_at_memory(self) -> str:
        for pending, kind in ((self.operated, "operation"), (self.ended, "finished")):
            for slot in sorted(pending):
                pending.discard(slot)
                node = self.node_of(slot)
                if self.manages:
                    return self.tell(kind, node.number, slot)
                for instance in self.on(node):
                    self.fit_pool(instance)
        return ""

    def resolve(self, instance: Instance) -> str:
        if instance.shortage <= self.now:
            instance.shortage = self.now + int(self.p["retry_ps"])
            if self.manages:
                return self.tell("shortage", instance.slot // self.width, instance.slot)
            self.relieve(instance)
        if instance.status == "serving":
            while instance.running and self.short(instance):
                last = instance.running[-1]
                self.leave(last, True)
                self.to_queue(last, instance, front=True)
        return ""

    def choose(self, node: Node, scheduler: str) -> tuple[Instance, Request | None] | None:
        able = [instance for instance in self.on(node) if self.runnable(instance)]
        if scheduler == "shortest_headroom":
            options = []
            for instance in self.on(node):
                if instance.status != "serving":
                    continue
                urgent = self.candidate(instance, True)
                running = min((r.deadline for r in instance.running), default=NEVER)
                if urgent is not None and urgent.deadline < running:
                    options.append((urgent.deadline, instance.slot, instance, urgent))
                elif instance.running:
                    options.append((running, instance.slot, instance, None))
            return min(options, key=lambda o: o[:2])[2:] if options else None
        if not able:
            return None
        chosen = min(able, key=lambda i: (min(r.arrival for r in i.requests), i.slot))
        if scheduler == "exclusive":
            chosen = next((i for i in able if i.slot == node.last), chosen)
        if scheduler == "round_robin":
            base = node.number * self.width
            start = node.last - base + 1 if node.last >= 0 else 0
            chosen = min(able, key=lambda i: (i.slot - base - start) % self.width)
        return chosen, self.candidate(chosen, False)

    def dispatch(self, node: Node) -> str:
        for instance in self.on(node):
            if instance.shortage <= self.now and self.stuck(instance) and self.resolve(instance):
                return "shortage"
        while node.job is None:
            if self.scheduler != "policy":
                choice = self.choose(node, self.scheduler)
            elif node.asked is None and sum(self.runnable(i) for i in self.on(node)) > 1:
                return self.tell("iteration", node.number)
            else:
                slot, prefill = node.asked or (None, None)
                node.asked = None
                instance = None if slot is None else self.slots[slot]
                if instance is None or not self.runnable(instance):
                    choice = self.choose(node, "shortest_headroom")
                else:
                    request = self.candidate(instance, True) if prefill is not False else None
                    if request is None and not instance.running:
                        request = self.candidate(instance, True)
                    choice = (instance, request)
            if choice is None:
                return ""
            instance, request = choice
            if request is None and self.short(instance):
                if self.resolve(instance):
                    return "shortage"
                continue
            size = self.t.size[instance.model]
            if request is not None:
                duration = int(self.t.prefill_ps[node.kind, size, request.tokens])
            else:
                context = sum(r.tokens for r in instance.running)
                duration = int(self.t.decode_ps[node.kind, size, len(instance.running)])
                duration += int(self.t.context_ps[node.kind, size]) * context
            duration = int(duration * float(self.t.time_factor[node.kind]) + 0.5)
            node.job, node.begun, node.due = (
                (instance, request, request is None),
                self.now,
                self.now + duration,
            )
            node.last = instance.slot
        return ""

    def next_time(self) -> int:
        times = [NEVER]
        if self.next_arrival < len(self.requests):
            times.append(self.requests[self.next_arrival].arrival)
        times += [request.offer for request in self.held]
        times += [request.held_since + int(self.p["patience_ps"]) for request in self.held]
        times += [node.due for node in self.nodes]
        for instance in self.slots:
            if instance is not None:
                times += [instance.due, min(instance.idle + self.keep_alive, NEVER)]
                if instance.shortage > self.now and self.stuck(instance):
                    times.append(instance.shortage)
        return min(times)

    def next_offered(self) -> Request | None:
        """The first that is due; who manages no memory is not asked about one that there is no place for."""
        for request in self.held:
            if request.offer <= self.now:
                stirred = request.retry == "always" or request.stirred
                if stirred and (self.manages or not self.asked or self.has_place(request)):
                    return request
                self.put_off(request)
        return None

    def advance(self) -> str:
        while True:
            self.happen()
            event = self.look_at_memory()
            offered = None if event else self.next_offered()
            if offered is not None:
                event = self.tell("placement", request=offered.row)
            for node in self.nodes:
                if not event and node.job is None:
                    event = self.dispatch(node)
            if event:
                self.asked = True
                return event
            if all(request.phase == "gone" for request in self.requests):
                return self.tell("end")
            self.now = max(self.next_time(), self.now)
