"""What the kernel's and the oracle's drivers share: a scenario in their terms, and the form of a trace."""

from __future__ import annotations

from typing import Protocol

from tests.simulator.oracle import Kind, Settings
from tests.simulator.twins import Case, Row, Slot
from tests.vllm.scenarios import Scenario

Step = dict[str, object]
MOST_STEPS = 5000


class Engine(Protocol):
    """What a driver offers: one engine, told what to do step by step. Requests go by their number."""

    def add(self, number: int) -> None: ...
    def abort(self, number: int) -> None: ...
    def begin(self, step: int) -> Step: ...
    def end(self, step: int) -> Step: ...
    @property
    def empty(self) -> bool: ...


def replay(scenario: Scenario, engine: Engine) -> list[Step]:
    """The trace of a scenario: what each step did and left behind. One that does not end is cut off."""
    steps: list[Step] = []
    asynchronous = scenario.settings.async_scheduling
    added = _add(scenario, engine, 0, 0)
    for step in range(MOST_STEPS):
        _abort(scenario, engine, step, during=False)
        begun = engine.begin(step)
        _abort(scenario, engine, step, during=True)
        if asynchronous:
            added = _add(scenario, engine, added, step + 1)
        steps.append({"step": step, **begun, **engine.end(step)})
        if not asynchronous:
            added = _add(scenario, engine, added, step + 1)
        if added == len(scenario.requests) and engine.empty:
            break
    return steps


def _add(scenario: Scenario, engine: Engine, added: int, step: int) -> int:
    """Adds the requests of a step, the first of which is number `added`; returns the number behind the last."""
    while added < len(scenario.requests) and scenario.requests[added].step == step:
        engine.add(added)
        added += 1
    return added


def _abort(scenario: Scenario, engine: Engine, step: int, during: bool) -> None:
    for abort in scenario.aborts:
        if abort.step == step and abort.during == during:
            engine.abort(abort.request)


def case_of(scenario: Scenario) -> Case:
    """A scenario as a cluster of one engine; the kernel knows nothing of the null block, which holds no KV."""
    settings = scenario.settings
    budget = settings.max_num_batched_tokens
    kind = Kind(
        decode_ps=[1] * (budget + 1),
        mixed_ps=[1] * (budget + 1),
        sequence_ps=0,
        kv_ps=0,
        attn_fs=0,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=budget,
    )
    return Case(
        kinds=(kind,),
        slots=(Slot(0, settings.num_blocks - 1),),
        rows=tuple(
            Row(
                arrival_ps=request.arrival,
                prompt=request.num_prompt_tokens,
                output=len(request.tokens) - request.num_prompt_tokens,
                max_output=len(request.tokens) - request.num_prompt_tokens,
                level=request.priority,
                hash_ids=ids,
            )
            for request, ids in zip(scenario.requests, hash_ids(scenario), strict=True)
        ),
        settings=Settings(
            router="hold",
            order=settings.policy,
            chunked_prefill=settings.chunked_prefill,
            reserve_full_prompt=settings.reserve_full_isl,
            long_prefill_threshold=settings.long_prefill_token_threshold,
            prefix_caching=settings.prefix_caching,
            hash_block_tokens=settings.block_size,
            async_scheduling=settings.async_scheduling,
        ),
    )


def hash_ids(scenario: Scenario) -> list[tuple[int, ...]]:
    """Per request one id a full block of its tokens; equal ids name equal tokens up to there.

    A last one, its own, says that the block before it is full also where the prompt ends in that block.
    """
    names: dict[tuple[int, ...], int] = {}
    size = scenario.settings.block_size
    return [
        (
            *(
                names.setdefault(request.tokens[:end], len(names))
                for end in range(size, len(request.tokens) + 1, size)
            ),
            -1 - number,
        )
        for number, request in enumerate(scenario.requests)
    ]
