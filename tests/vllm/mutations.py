"""Schedulers that vLLM's might have been, or once was, as changes to the oracle: each must be told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulator.block_pool import Block, BlockPool
from tests.simulator.oracle import Engine, Request
from tests.vllm.compare import KERNEL, ORACLE, Subject, first_difference
from tests.vllm.replay import Step
from tests.vllm.scenarios import Scenario

Method = Callable[..., object]


@dataclass(frozen=True)
class Mutation:
    """A method of the oracle and what takes its place, made from the method itself."""

    owner: type
    method: str
    wrong: Callable[[Method], Method]

    def told_apart(self, scenario: Scenario, trace: list[Step]) -> bool:
        """Whether a scenario shows that the changed oracle is not vLLM, by what the kernel too must equal."""
        right = getattr(self.owner, self.method)
        setattr(self.owner, self.method, self.wrong(right))
        try:
            mutant = Subject("mutant", ORACLE.trace, KERNEL.fields)
            return first_difference(mutant, scenario, trace) is not None
        finally:
            setattr(self.owner, self.method, right)


def _null_block_is_used(right: Method) -> Method:
    def wrong(self: Engine) -> None:
        self.capacity_blocks += 1
        right(self)

    return wrong


def _least_urgent_by_place(right: Method) -> Method:
    return lambda self: self.running[-1]


def _first_gives_way(right: Method) -> Method:
    return lambda self: self.running[0] if self.settings.order == "fcfs" else right(self)


def _most_urgent_gives_way(right: Method) -> Method:
    return lambda self: min(self.running, key=lambda running: running.urgency)


def _preempted_to_the_tail(right: Method) -> Method:
    """After a preemption the queue's head goes to its tail."""

    def wrong(self: Engine) -> bool:
        preempted = right(self)
        if preempted and self.settings.order == "fcfs":
            self.waiting.append(self.waiting.pop(0))
        return preempted

    return wrong


def _admits_after_preempting(right: Method) -> Method:
    def wrong(self: Engine) -> bool:
        return right(self) and not self.scheduled

    return wrong


def _lone_requests_are_cut(right: Method) -> Method:
    return lambda self: self.settings.long_prefill_threshold or 1 << 60


def _threshold_is_unknown(right: Method) -> Method:
    return lambda self: 1 << 60


def _refund_is_forgotten(right: Method) -> Method:
    """A step's budget does not get back what a request was given that is preempted in the same step."""

    def wrong(self: Engine) -> int:
        given: dict[Request, int] = self.__dict__.setdefault("given", {})
        if not self.scheduled:
            given.clear()
        given.update(self.scheduled)
        return right(self) - sum(tokens for request, tokens in given.items() if request not in self.scheduled)

    return wrong


def _one_block_less_is_hit(right: Method) -> Method:
    return lambda self, request: right(self, request)[:-1]


def _whole_prompt_is_hit(right: Method) -> Method:
    """The limit is n // block_size blocks instead of (n - 1) // block_size, one token of them computed again."""

    def wrong(self: Engine, request: Request) -> list[Block]:
        request.generated += 1
        found = right(self, request)
        request.generated -= 1
        return found if len(found) * self.kind.block_size < request.tokens else found[:-2]

    return wrong


def _partly_computed_blocks_wait(right: Method) -> Method:
    """Blocks are cached an iteration late, when their last token has been computed."""

    def wrong(self: Engine, request: Request, tokens: int) -> None:
        right(self, request, tokens - 1)
        request.blocks += self.pool.take(self.blocks_for(tokens) - len(request.blocks))

    return wrong


def _free_blocks_are_not_hit(right: Method) -> Method:
    """What nobody holds any more is forgotten."""

    def wrong(self: BlockPool, contents: object) -> object:
        found = right(self, contents)
        return [block for block in found if block.users > 0]

    return wrong


def _head_first(right: Method) -> Method:
    return lambda self, blocks: right(self, blocks[::-1])


def _worthless_blocks_queue_up(right: Method) -> Method:
    """Blocks without content go to the end of the free list, as in older vLLM."""

    def wrong(self: BlockPool, blocks: list[Block]) -> None:
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                self.free.append(block)

    return wrong


def _youngest_copy_is_hit(right: Method) -> Method:
    def wrong(self: BlockPool, block: Block, content: object) -> None:
        right(self, block, content)
        self.cached[content].insert(0, self.cached[content].pop())

    return wrong


def _use_is_forgotten(right: Method) -> Method:
    """Free blocks stand in the order of their numbers, not of their last use."""

    def wrong(self: BlockPool, blocks: list[Block]) -> None:
        right(self, blocks)
        self.free.sort(key=lambda block: block.number)

    return wrong


def _whoever_comes_is_known(right: Method) -> Method:
    return lambda self: self.waiting


def _whoever_is_over_is_gone(right: Method) -> Method:
    """Blocks and places are handed on at once."""

    def wrong(self: Engine, now: int) -> list[Request]:
        done = right(self, now)
        self._let_those_go_who_are_over()
        return done  # type: ignore[return-value]

    return wrong


def _decoded_blocks_are_cached_at_once(right: Method) -> Method:
    def wrong(self: Engine, request: Request, tokens: int) -> None:
        self.last.discard(request)
        right(self, request, tokens)

    return wrong


MUTATIONS = {
    "null block is used": Mutation(Engine, "__post_init__", _null_block_is_used),
    "least urgent by place": Mutation(Engine, "_victim", _least_urgent_by_place),
    "first gives way": Mutation(Engine, "_victim", _first_gives_way),
    "most urgent gives way": Mutation(Engine, "_victim", _most_urgent_gives_way),
    "preempted to the tail": Mutation(Engine, "_schedule_running", _preempted_to_the_tail),
    "admits after preempting": Mutation(Engine, "_schedule_running", _admits_after_preempting),
    "lone requests are cut": Mutation(Engine, "_threshold", _lone_requests_are_cut),
    "threshold is unknown": Mutation(Engine, "_threshold", _threshold_is_unknown),
    "refund is forgotten": Mutation(Engine, "budget", _refund_is_forgotten),
    "one block less is hit": Mutation(Engine, "_hits", _one_block_less_is_hit),
    "whole prompt is hit": Mutation(Engine, "_hits", _whole_prompt_is_hit),
    "blocks are cached late": Mutation(Engine, "allocate", _partly_computed_blocks_wait),
    "free blocks are not hit": Mutation(BlockPool, "longest_hit", _free_blocks_are_not_hit),
    "head first": Mutation(BlockPool, "give_back", _head_first),
    "worthless blocks queue up": Mutation(BlockPool, "give_back", _worthless_blocks_queue_up),
    "youngest copy is hit": Mutation(BlockPool, "remember", _youngest_copy_is_hit),
    "use is forgotten": Mutation(BlockPool, "give_back", _use_is_forgotten),
    "whoever comes is known": Mutation(Engine, "_known", _whoever_comes_is_known),
    "whoever is over is gone": Mutation(Engine, "end", _whoever_is_over_is_gone),
    "decoded blocks are cached at once": Mutation(Engine, "allocate", _decoded_blocks_are_cached_at_once),
}
