"""A cluster of vLLM engines in plain Python, one iteration at a time: what the compiled kernel must equal.

Written from the semantics of vLLM's V1 scheduler and from the kernel's documentation, sharing no code with the kernel
and taking no shortcut. A request holds a list of blocks (`block_pool.py`), an iteration is a dictionary from request to
tokens, and nothing is skipped or updated incrementally.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from tests.simulator import oracle_before_v1
from tests.simulator.block_pool import Block, BlockPool


@dataclass
class Kind:
    """What an engine costs and allows; times in picoseconds, attention in femtoseconds."""

    decode_ps: list[int]  # by batch size
    mixed_ps: list[int]  # by scheduled tokens
    sequence_ps: int  # per decoding request beside prefill
    kv_ps: int
    attn_fs: int
    block_size: int
    max_num_seqs: int
    max_batched_tokens: int
    speed: float = 1.0
    load_ps: int = 0  # per block swapped between GPU and host
    front_ps: tuple[int, int, int] = (
        0,
        0,
        0,
    )  # to clients: fixed, per token of the prompt, per decoding request


@dataclass
class Settings:
    """The cluster's constants."""

    router: str = "round_robin"
    order: str = "fcfs"  # or priority, edf, dpa
    expired_ps: int = 0
    urgent_ps: int = 0
    chunked_prefill: bool = True
    reserve_full_prompt: bool = True
    long_prefill_threshold: int = 0
    max_request_tokens: int = 1 << 40
    prefix_caching: bool = False
    hash_block_tokens: int = 1  # tokens that each of a request's hash ids stands for
    async_scheduling: bool = False  # an iteration is put together while the one before it runs
    scheduler: str = "v1"  # or v0
    preemption: str = "recompute"  # or swap
    swap_blocks: int = 0  # of an engine's host memory
    time_limit_ps: float = math.inf  # from a request's arrival to its end


@dataclass(eq=False)
class Request:
    """A request and everything that happens to it."""

    index: int
    arrival_ps: int
    prompt: int
    output: int
    max_output: int
    level: int = 0
    hash_ids: tuple[int, ...] = ()  # equal ids: equal tokens up to there; what follows the last is its own
    deadline_ps: int = 0
    computed: int = 0  # tokens with KV, those of the iteration in flight included
    generated: int = 0
    blocks: list[Block] = field(default_factory=list)
    cached: int = 0  # leading blocks that are in the prefix cache
    decoding: bool = False  # has got a token since it was last admitted
    over: bool = False  # has all its tokens
    preemptions: int = 0
    engine: int = -1
    known_from: int = 0  # iterations of its engine after which it is known to it
    first_scheduled_ps: int = -1
    lag_ps: int = -1  # from a token's end in the engine to its client; -1: it has none yet
    first_token_ps: int = -1  # when its client has it
    finish_ps: int = -1
    fate: str = "in flight"
    after: tuple[int, ...] = ()  # requests that must have finished before it arrives ...
    delay_ps: int = 0  # ... so long before
    patience_ps: float = math.inf  # from its arrival to the first token
    in_session: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that must be computed before the next one comes out."""
        return self.prompt + self.generated

    @property
    def due(self) -> tuple[int, int, int]:
        """Key of the order of deadlines."""
        return (self.deadline_ps, self.arrival_ps, self.index)

    @property
    def urgency(self) -> tuple[int, int, int]:
        """Key of the priority order; the lowest is served first and preempted last."""
        return (self.level, self.arrival_ps, self.index)

    def content(self, start: int, end: int, hash_block_tokens: int) -> Hashable:
        """What stands for tokens [start, end) and all before them.

        Ids name the prompt, the last of them perhaps a block that is partly filled; further ids name generated tokens.
        """
        last = (end - 1) // hash_block_tokens
        named = self.prompt
        length = len(self.hash_ids) * hash_block_tokens
        if length - self.prompt >= hash_block_tokens or (self.in_session and length >= named + self.output):
            named += self.output
        if last < len(self.hash_ids) and end <= named:
            return (self.hash_ids[last], end - last * hash_block_tokens, end - start)
        return ("own", self.index, start)


@dataclass(eq=False)
class Engine:
    """One engine: a waiting queue, a running list and an iteration in flight."""

    number: int
    kind: Kind
    settings: Settings
    capacity_blocks: int
    width: int = 1
    serves: bool = True  # takes new requests
    steps_allowed: bool = True
    held: bool = False
    notify: bool = False
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    swapped: list[Request] = field(default_factory=list)  # v0: wait with their KV on the host
    scheduled: dict[Request, int] = field(default_factory=dict)  # the iteration in flight
    last: set[Request] = field(default_factory=set)  # who got tokens from the last iteration
    ahead: bool = False  # the next iteration is planned while the last one runs
    returning: list[tuple[int, bool, Request]] = field(
        default_factory=list
    )  # first tokens, and last, and when
    leaving: list[Request] = field(default_factory=list)  # to migrate when the iteration in flight ends
    away: list[Request] = field(default_factory=list)  # in no batch, but with blocks and a place in this one
    kept: dict[Request, list[Block]] = field(default_factory=dict)  # blocks (and a place) for those to come
    ends_ps: int | None = None
    tries_again_ps: int | None = None  # stands idle as who is next has no room: when another may be next
    steps: int = 0
    busy_ps: int = 0
    preemptions: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    hit_tokens: int = 0
    pool: BlockPool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.capacity_blocks)
        self.total_blocks = self.capacity_blocks  # whatever its capacity becomes

    # What it shows.

    @property
    def used_blocks(self) -> int:
        return self.pool.used

    @property
    def swapped_blocks(self) -> int:
        return sum(self.blocks_for(request.computed) for request in self.swapped)

    @property
    def pending_prefill_tokens(self) -> int:
        prefilling = [request for request in self.running if not request.decoding]
        return sum(request.tokens - request.computed for request in self.waiting + self.swapped + prefilling)

    @property
    def decode_context(self) -> int:
        return sum(request.computed for request in self.running if request.decoding)

    @property
    def prefill_context(self) -> int:
        return sum(request.computed for request in self.running if not request.decoding)

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.swapped and all(request.over for request in self.running)

    @property
    def due_ps(self) -> int | None:
        """When its iteration ends, or it tries to begin one."""
        return self.tries_again_ps if self.ends_ps is None else self.ends_ps

    @property
    def has_news(self) -> bool:
        """Whether it was asked to tell and has nothing left to run, or stands still as told."""
        done = self.empty and not self.away and not self.kept
        return self.notify and self.ends_ps is None and (self.held or done)

    # What it does.

    def add(self, request: Request) -> None:
        request.engine = self.number
        request.known_from = self.steps if self.ends_ps is None else self.steps + 1
        self.waiting.append(request)
        self._sort_waiting()

    def begin(self, now: int) -> None:
        """Begins an iteration if there is anything to run."""
        self.scheduled, self.ends_ps, self.tries_again_ps = {}, None, None
        if self.held or not self.steps_allowed or self.empty:
            self._wait_for_the_end()
            return
        if self.settings.scheduler == "v0":
            oracle_before_v1.begin(self, now)
            return
        preempted = again = True
        while again:
            preempted = self._schedule_running()
            if not preempted:
                self._admit(now)
            again = not self.scheduled and (preempted or self.ahead)
            if again:
                self._wait_for_the_end()
        for request in self.running:
            self._remember(request, request.computed)
        self._let_those_go_who_are_over()
        self.ahead = False
        if not self.scheduled:
            self.tries_again_ps = self._next_change(now)
            return
        self.start(now, self.duration_ps())

    def start(self, now: int, duration: int) -> None:
        """Lets the iteration that was put together begin."""
        for request, tokens in self.scheduled.items():
            if not request.decoding:
                self.prefilled_tokens += tokens
            request.computed += tokens
        self.steps += 1
        self.busy_ps += duration
        self.ends_ps = now + duration

    def end(self, now: int) -> list[Request]:
        """Ends the iteration in flight. Returns the requests that are done."""
        decoding = sum(request.decoding and not request.over for request in self.running)
        fixed_ps, token_ps, request_ps = self.kind.front_ps
        for request in self.scheduled:
            if request.computed == request.tokens:
                request.generated += 1
                request.decoding = True
                self.generated_tokens += 1
                if request.lag_ps < 0:
                    request.lag_ps = fixed_ps + token_ps * request.prompt + request_ps * decoding
                    if request.lag_ps == 0:
                        request.first_token_ps = now
                    else:
                        self.returning.append((now + request.lag_ps, False, request))
        done = [request for request in self.running if request.generated >= request.output]
        for request in done:
            request.over = True
            self.returning.append((now + request.lag_ps, True, request))
        self.last, self.scheduled, self.ends_ps = set(self.scheduled), {}, None
        self.ahead = self.settings.async_scheduling
        if not self.ahead:
            self._let_those_go_who_are_over()
        self._let_go()
        return done

    def deliver(self, now: int) -> None:
        """Gives clients the tokens that have come."""
        for due_ps, is_last, request in self.returning:
            if due_ps <= now and request.fate == "in flight":
                if is_last:
                    request.finish_ps, request.fate = due_ps, "finished"
                else:
                    request.first_token_ps = due_ps
        self.returning = [
            entry for entry in self.returning if entry[0] > now and entry[2].fate == "in flight"
        ]

    @property
    def num_returning(self) -> int:
        """Requests that have left, with the end of their answers on the way."""
        return sum(is_last for _, is_last, request in self.returning if request.fate == "in flight")

    def _wait_for_the_end(self) -> None:
        """Learns what the last iteration came to before the next one is planned."""
        for request in self.running:
            self._remember(request, request.computed)
        self._let_those_go_who_are_over()
        self.ahead = False

    def _let_those_go_who_are_over(self) -> None:
        for request in [request for request in self.running if request.over]:
            self.running.remove(request)
            self._remember(request, request.computed)
            self._release(request)

    def give_up_running(self, now: int) -> list[Request]:
        """Drops all running requests with their KV, the last first, and the iteration in flight."""
        dropped = self.running[::-1]
        for request in dropped:
            self.drop(request)
        if self.ends_ps is not None:
            self.busy_ps -= self.ends_ps - now
        self.scheduled, self.ends_ps = {}, None
        return dropped

    def abort(self, request: Request, now: int) -> None:
        """Lets a request go whose client has hung up; the iteration in flight gives it no token."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.swapped:
            self.swapped.remove(request)
        elif not request.over:
            self.running.remove(request)
            self.leaving = [other for other in self.leaving if other is not request]
            self.scheduled.pop(request, None)
            self._release(request)
        request.finish_ps, request.fate = now, "aborted"

    def leave(self, request: Request) -> None:
        """Takes a decoding request out of the batch, KV and all, when the iteration in flight ends."""
        self.leaving.append(request)
        if self.ends_ps is None:
            self._let_go()

    def _let_go(self) -> None:
        for request in [request for request in self.running if request in self.leaving and not request.over]:
            self._remember(request, request.computed)
            self.running.remove(request)
            self.away.append(request)
        self.leaving = []

    def has_room_for(self, request: Request) -> bool:
        """Whether there are blocks for a request's KV, and a place in the batch."""
        needed = self.blocks_for(request.computed)
        return (
            needed <= self.capacity_blocks - self.used_blocks and self.places_taken() < self.kind.max_num_seqs
        )

    def keep(self, request: Request) -> int:
        """Keeps blocks and a place for a request that is to come; returns how many blocks."""
        self.kept[request] = self.pool.take(self.blocks_for(request.computed))
        return len(self.kept[request])

    def let_go_of(self, request: Request) -> None:
        """Keeps them no longer."""
        self.pool.give_back(self.kept.pop(request))

    def take_over(self, request: Request, other: Engine) -> None:
        """Puts a request that has left a batch into this one, where blocks are kept for it or where it was."""
        other.away.remove(request)
        if other is not self:
            other._release(request)
            request.blocks, request.engine = self.kept.pop(request), self.number
            self.allocate(request, request.computed)
        self.running.append(request)
        self.last.discard(request)

    def places_taken(self) -> int:
        return len(self.running) + len(self.away) + len(self.kept)

    def _known(self) -> list[Request]:
        """Waiting requests that are known, in order."""
        return [request for request in self.waiting if not self.ahead or request.known_from <= self.steps]

    def _threshold(self) -> int:
        limit = self.settings.long_prefill_threshold
        alone = len(self.running) + len(self._known()) <= 1
        return limit if limit > 0 and not alone else 1 << 60

    def blocks_for(self, tokens: int) -> int:
        return math.ceil(tokens / self.kind.block_size)

    def _schedule_running(self) -> bool:
        """Gives running requests their tokens, in order. Returns whether any was preempted."""
        threshold = self._threshold()
        preempted = False
        position = 0
        while position < len(self.running) and self.budget() > 0:
            request = self.running[position]
            if request.over:
                position += 1
                continue
            tokens = min(request.tokens - request.computed, threshold, self.budget())
            while (
                self.blocks_for(request.computed + tokens) - len(request.blocks)
                > self.capacity_blocks - self.used_blocks
            ):
                victim = self._victim()
                preempted = True
                self.preemptions += 1
                if self.running.index(victim) < position:
                    position -= 1
                self.scheduled.pop(victim, None)
                self.drop(victim)
                if not victim.over:
                    self.waiting.insert(0, victim)
                    self._sort_waiting()
                if victim is request:
                    return True
            self.allocate(request, request.computed + tokens)
            self.scheduled[request] = tokens
            position += 1
        return preempted

    def _victim(self) -> Request:
        if self.settings.order == "priority":
            return max(self.running, key=lambda running: running.urgency)
        if self.settings.order == "edf":
            return max(self.running, key=lambda running: running.due)
        return self.running[-1]

    def _sort_waiting(self) -> None:
        """Brings the queue into the order in which it is kept; under FCFS it is in order."""
        if self.settings.order == "priority":
            self.waiting.sort(key=lambda waiting: waiting.urgency)
        elif self.settings.order == "edf":
            self.waiting.sort(key=lambda waiting: waiting.due)
        elif self.settings.order == "dpa":
            self.waiting.sort(key=lambda waiting: (waiting.level, *waiting.due))

    def _next(self, now: int) -> Request:
        """The waiting request that is served next."""
        if self.settings.order == "dpa":
            return min(self.waiting, key=lambda waiting: self._dpa_rank(waiting, now))
        return self._known()[0]

    def _next_change(self, now: int) -> int | None:
        """When the rank of a waiting request changes next, with nothing but time passing."""
        if self.settings.order != "dpa":
            return None
        after_deadline = (-self.settings.urgent_ps, 1, self.settings.expired_ps + 1)
        changes = [waiting.deadline_ps + after for waiting in self.waiting for after in after_deadline]
        return min((at for at in changes if at > now), default=None)

    def _dpa_rank(self, request: Request, now: int) -> tuple[int, ...]:
        """SageServe, section 6.5: severely expired, urgent by tier, not urgent by tier, recently expired."""
        left = request.deadline_ps - now
        if left < -self.settings.expired_ps:
            return (0, request.deadline_ps, request.level, request.arrival_ps, request.index)
        if left < 0:
            return (3, request.deadline_ps, request.level, request.arrival_ps, request.index)
        return (1 if left <= self.settings.urgent_ps else 2, request.level, *request.due)

    def drop(self, request: Request) -> None:
        self.running.remove(request)
        if request in self.leaving:
            self.leaving.remove(request)
        self._release(request)
        request.computed = 0
        request.decoding = False
        request.preemptions += 1

    def allocate(self, request: Request, tokens: int) -> None:
        """Gives a request blocks for its first `tokens` tokens; full ones are cached before they are computed."""
        request.blocks += self.pool.take(self.blocks_for(tokens) - len(request.blocks))
        unknown = self.ahead and request.decoding and request in self.last
        self._remember(request, min(tokens, request.tokens - unknown))

    def _remember(self, request: Request, tokens: int) -> None:
        """Caches the blocks that a request's first `tokens` tokens fill."""
        while self.settings.prefix_caching and (request.cached + 1) * self.kind.block_size <= tokens:
            self.pool.remember(request.blocks[request.cached], self._content(request, request.cached))
            request.cached += 1

    def _release(self, request: Request) -> None:
        self.pool.give_back(request.blocks)
        request.blocks, request.cached = [], 0

    def _content(self, request: Request, block: int) -> Hashable:
        start = block * self.kind.block_size
        return request.content(start, start + self.kind.block_size, self.settings.hash_block_tokens)

    def _hits(self, request: Request) -> list[Block]:
        """Cached blocks a waiting request can begin with; its last token is always computed."""
        if not self.settings.prefix_caching:
            return []
        most = (request.tokens - 1) // self.kind.block_size
        return self.pool.longest_hit(self._content(request, block) for block in range(most))

    def _admit(self, now: int) -> None:
        """Lets waiting requests into the batch, in order, until one does not fit."""
        threshold = self._threshold()
        while self._known() and self.budget() > 0 and self.places_taken() < self.kind.max_num_seqs:
            request = self._next(now)
            hits = self._hits(request)
            start = len(hits) * self.kind.block_size
            tokens = min(request.tokens - start, threshold)
            if tokens > self.budget() and not self.settings.chunked_prefill:
                return
            tokens = min(tokens, self.budget())
            must_fit = request.tokens if self.settings.reserve_full_prompt else start + tokens
            needed = self.blocks_for(must_fit) - sum(block.users > 0 for block in hits)
            if needed > self.capacity_blocks - self.used_blocks:
                return
            self.waiting.remove(request)
            self.running.append(request)
            self.scheduled[request] = tokens
            self.pool.share(hits)
            request.blocks, request.cached, request.computed = hits, len(hits), start
            self.allocate(request, start + tokens)
            self.hit_tokens += start
            if request.first_scheduled_ps < 0:
                request.first_scheduled_ps = now

    def budget(self) -> int:
        return self.kind.max_batched_tokens - sum(self.scheduled.values())

    def duration_ps(self) -> int:
        decodes = [request for request in self.scheduled if request.decoding]
        prefills = [request for request in self.scheduled if not request.decoding]
        reading_ps = self.kind.kv_ps * sum(request.computed for request in decodes)
        if not prefills:
            return self.kind.decode_ps[len(decodes)] + reading_ps
        pairs = 0
        for request in prefills:
            for query in range(self.scheduled[request]):
                pairs += request.computed + query + 1
        return (
            self.kind.mixed_ps[sum(self.scheduled.values())]
            + self.kind.sequence_ps * len(decodes)
            + reading_ps
            + self.kind.attn_fs * pairs // 1000
        )


@dataclass(eq=False)
class Cluster:
    """Engines, a router, a pool of requests that no engine took, and a clock."""

    settings: Settings
    engines: list[Engine]
    arrivals: list[Request]  # by arrival time
    now: int = 0
    turn: int = 0
    arrived: int = 0
    pool: list[Request] = field(default_factory=list)
    to_come: list[Request] = field(default_factory=list)  # wait for answers of others

    def __post_init__(self) -> None:
        self.by_index = {request.index: request for request in self.arrivals}
        self.to_come = [request for request in self.arrivals if request.after]
        self.arrivals = [request for request in self.arrivals if not request.after]

    def advance(self, until: int) -> bool:
        """Runs to `until`, or to the first instant at which an engine has news. Returns whether one had."""
        if self._news_now():
            return True
        while True:
            ends = [engine.due_ps for engine in self.engines if engine.due_ps is not None]
            if self.arrived < len(self.arrivals):
                ends.append(self.arrivals[self.arrived].arrival_ps)
            ends += [due_ps for due_ps, _ in self._limits()]
            ends += [due_ps for engine in self.engines for due_ps, _, _ in engine.returning]
            if not ends or min(ends) > until:
                self.now = until
                return False
            self.now = min(ends)
            self._end_iterations()
            for engine in self.engines:
                engine.deliver(self.now)
            if any(engine.has_news for engine in self.engines):
                return True
            self._release()
            self._end_overdue()
            self._let_arrive()
            self.kick()

    def _release(self) -> None:
        """Lets those be among the arrivals whose awaited answers have all ended."""
        for request in list(self.to_come):
            awaited = [self.by_index[index] for index in request.after]
            if all(other.fate == "finished" for other in awaited):
                self.to_come.remove(request)
                request.arrival_ps = max(other.finish_ps for other in awaited) + request.delay_ps
                self.arrivals.append(request)
        later = sorted(self.arrivals[self.arrived :], key=lambda request: (request.arrival_ps, request.index))
        self.arrivals[self.arrived :] = later

    def _limits(self) -> list[tuple[int, Request]]:
        """When the time limits of requests that are here run out."""
        limits = []
        for request in self.arrivals[: self.arrived]:
            if request.fate != "in flight":
                continue
            if request.first_token_ps < 0 and request.patience_ps < math.inf:
                limits.append((request.arrival_ps + int(request.patience_ps), request))
            if self.settings.time_limit_ps < math.inf and not request.over:
                limits.append((request.arrival_ps + int(self.settings.time_limit_ps), request))
        return limits

    def _end_overdue(self) -> None:
        for due_ps, request in sorted(self._limits(), key=lambda limit: (limit[0], limit[1].index)):
            if due_ps == self.now and request.fate == "in flight":
                number = request.engine
                self.abort(request)
                if due_ps == request.arrival_ps + self.settings.time_limit_ps:
                    request.fate = "failed"
                if number >= 0 and self.engines[number].ends_ps is None:
                    self.engines[number].begin(self.now)

    def dispatch(self) -> None:
        """Offers pooled requests to the router again and starts idle engines."""
        for request in list(self.pool):
            number = self._route(request)
            if number is not None:
                self.pool.remove(request)
                self.engines[number].add(request)
        self.kick()

    def kick(self) -> None:
        """Lets idle engines begin."""
        for engine in self.engines:
            if engine.ends_ps is None:
                engine.begin(self.now)

    def pool_waiting(self, number: int) -> None:
        """Sends an engine's waiting requests to the pool."""
        engine = self.engines[number]
        for request in engine.swapped:
            request.computed, request.decoding = 0, False
        self._to_pool(engine.waiting + engine.swapped)
        engine.waiting, engine.swapped = [], []

    def pool_running(self, number: int) -> None:
        """Sends an engine's running requests to the pool, their KV lost."""
        self._to_pool(self.engines[number].give_up_running(self.now))

    def fail_running(self, number: int) -> None:
        """Loses an engine's running requests."""
        for request in self.engines[number].give_up_running(self.now):
            request.finish_ps, request.fate = self.now, "failed"

    def abort(self, request: Request) -> None:
        """Lets a request go whose client has hung up."""
        if request in self.pool:
            self.pool.remove(request)
            request.finish_ps, request.fate = self.now, "aborted"
        else:
            self.engines[request.engine].abort(request, self.now)

    def send(self, request: Request, number: int) -> None:
        """Moves a pooled request to an engine of the caller's choice."""
        self.pool.remove(request)
        self.engines[number].add(request)
        self.kick()

    def join(self, request: Request, number: int) -> None:
        """Puts a request that has left a batch into an engine's."""
        self.engines[number].take_over(request, self.engines[request.engine])
        self.kick()

    def requeue(self, request: Request, number: int) -> None:
        """Moves a waiting request to another engine's queue."""
        self.engines[request.engine].waiting.remove(request)
        self.engines[number].add(request)
        self.kick()

    def _news_now(self) -> bool:
        """Whether an engine has news at once; iterations that end at this very instant are ended first."""
        if not any(engine.has_news for engine in self.engines):
            return False
        self._end_iterations()
        for engine in self.engines:
            engine.deliver(self.now)
        return True

    def _end_iterations(self) -> None:
        for engine in self.engines:
            if engine.due_ps == self.now:
                if engine.ends_ps is not None:
                    engine.end(self.now)
                engine.begin(self.now)

    def _let_arrive(self) -> None:
        while self.arrived < len(self.arrivals) and self.arrivals[self.arrived].arrival_ps == self.now:
            request = self.arrivals[self.arrived]
            self.arrived += 1
            room = self.settings.max_request_tokens - request.prompt
            if room < 1:
                request.finish_ps, request.fate = self.now, "refused"
                continue
            request.max_output = min(request.max_output, room)
            request.output = min(request.output, room)
            number = self._route(request)
            if number is None:
                self._to_pool([request])
            else:
                self.engines[number].add(request)

    def _to_pool(self, requests: list[Request]) -> None:
        for request in requests:
            request.engine = -1
            self.pool.append(request)
        self.pool.sort(key=lambda pooled: pooled.urgency)

    def _route(self, request: Request) -> int | None:
        most_tokens = request.prompt + request.max_output
        fitting = [
            engine
            for engine in self.engines
            if engine.serves and most_tokens <= engine.capacity_blocks * engine.kind.block_size
        ]
        if not fitting or self.settings.router == "hold":
            return None
        if self.settings.router == "round_robin":
            chosen = min(fitting, key=lambda engine: (engine.number - self.turn) % len(self.engines))
            self.turn = (chosen.number + 1) % len(self.engines)
            return chosen.number
        if self.settings.router == "least_requests":
            return min(fitting, key=_num_requests).number
        if self.settings.router == "affinity":
            fitting = self._by_width(fitting, urgent=request.level == 0)
        return min(fitting, key=_tokens_over_speed).number

    def _by_width(self, fitting: list[Engine], urgent: bool) -> list[Engine]:
        widest = max(engine.width for engine in fitting)
        if all(engine.width == widest for engine in fitting):
            return fitting
        return [engine for engine in fitting if (engine.width == widest) == urgent]


def _num_requests(engine: Engine) -> int:
    return len(engine.running) + len(engine.waiting) + len(engine.swapped) + engine.num_returning


def _tokens_over_speed(engine: Engine) -> float:
    resident = sum(request.computed for request in engine.running)
    return (engine.pending_prefill_tokens + resident) / engine.kind.speed
