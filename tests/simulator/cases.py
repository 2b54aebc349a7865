"""Hypothesis strategies for small, nasty clusters and loads.

Times are a few picoseconds, so that events often fall on one instant; block pools, token budgets and sequence limits
are so small that requests preempt, starve and split each other.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import strategies as st

from tests.simulator.oracle import Kind, Settings
from tests.simulator.twins import Case, Row, Slot

LONGEST = 100  # tokens of the longest request


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    """An engine kind with affine iteration times."""
    seqs = draw(st.integers(2, 8))
    budget = draw(st.one_of(st.integers(1, seqs), st.integers(8, 24), st.integers(16, 96)))
    base, slope = draw(st.integers(1, 40)), draw(st.integers(0, 5))
    mixed_base, mixed_slope = draw(st.integers(1, 40)), draw(st.integers(0, 2))
    return Kind(
        decode_ps=[base + slope * batch for batch in range(max(seqs, budget) + 1)],
        mixed_ps=[mixed_base + mixed_slope * tokens for tokens in range(budget + 1)],
        sequence_ps=draw(st.integers(0, 4)),
        kv_ps=draw(st.integers(0, 3)),
        attn_fs=draw(st.integers(0, 2000)),
        block_size=draw(st.integers(1, 32)),
        max_num_seqs=seqs,
        max_batched_tokens=budget,
        speed=draw(st.sampled_from([1.0, 0.5, 2.7])),
    )


@st.composite
def settings_of_clusters(draw: st.DrawFn) -> Settings:
    """Router and scheduler settings.

    Under DPA prompts are chunked: an idle engine whose next request can never be served would wait for another to
    become next, which the kernel does not look for, as such a request is refused when it arrives.
    """
    order = draw(st.sampled_from(["fcfs", "priority", "fcfs", "priority", "edf", "dpa"]))
    asynchronous = order != "dpa" and draw(st.booleans())
    return Settings(
        async_scheduling=asynchronous,
        router=draw(st.sampled_from(["jsq", "jsq", "round_robin", "least_requests", "affinity", "hold"])),
        order=order,
        expired_ps=draw(st.sampled_from([0, 30, 1000])),
        urgent_ps=draw(st.sampled_from([0, 20, 1000])),
        chunked_prefill=order == "dpa" or draw(st.sampled_from([True, True, False])),
        reserve_full_prompt=draw(st.booleans()),
        long_prefill_threshold=draw(st.sampled_from([0, 0, 1, 5, 20])),
        max_request_tokens=draw(st.sampled_from([1 << 40, 80, 40])),
    )


@st.composite
def rows(draw: st.DrawFn, at: int) -> Row:
    """A request that arrives at `at`."""
    prompt = draw(st.one_of(st.integers(1, 8), st.integers(1, 60)))
    output = draw(st.one_of(st.just(1), st.integers(1, 40), st.integers(20, 40)))
    declared = draw(st.sampled_from([0, 0, 0, 10]))
    return Row(at, prompt, output, output + declared, draw(st.integers(0, 3)), draw(st.integers(0, 1)))


@st.composite
def loads(draw: st.DrawFn, least: int, most: int) -> tuple[Row, ...]:
    """Requests in order of arrival."""
    found, at = [], 0
    for gap in draw(
        st.lists(
            st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 200)), min_size=least, max_size=most
        )
    ):
        at += gap
        found.append(draw(rows(at)))
    return tuple(found)


@st.composite
def sharing(draw: st.DrawFn, case: Case) -> Case:
    """The same with prefix caching: ids from a small tree, some of them naming what is generated.

    Blocks of all engines are as large as those that ids name, a multiple or a part of it.
    """
    size = draw(st.sampled_from([1, 2, 4, 8]))
    kinds = tuple(replace(kind, block_size=size * draw(st.sampled_from([1, 1, 2]))) for kind in case.kinds)
    slots = tuple(
        replace(
            slot, capacity_blocks=-(-draw(st.integers(LONGEST, 2 * LONGEST)) // kinds[slot.kind].block_size)
        )
        for slot in case.slots
    )
    names, paths = itertools.count(), [[]]
    rows = []
    for row in case.rows:
        parent = paths[draw(st.integers(0, len(paths) - 1))]
        shared = parent[: draw(st.integers(0, len(parent)))] if draw(st.booleans()) else parent
        most = row.prompt + row.output if draw(st.booleans()) else row.prompt
        path = shared[: most // size]
        path = path + [next(names) for _ in range(most // size - len(path))]
        paths.append(path)
        rows.append(replace(row, hash_ids=(*path, next(names))))
    settings = replace(case.settings, prefix_caching=True, hash_block_tokens=size)
    return replace(case, kinds=kinds, slots=slots, rows=tuple(rows), settings=settings)


@st.composite
def cases(draw: st.DrawFn, least: int = 6, most: int = 24) -> Case:
    """A cluster and its load. Most requests fit most engines, barely."""
    found = tuple(draw(st.lists(kinds(), min_size=1, max_size=2)))
    slots = []
    for _ in range(draw(st.sampled_from([1, 1, 2, 2, 3, 4]))):
        kind = draw(st.integers(0, len(found) - 1))
        tokens = draw(st.one_of(st.integers(LONGEST // 2, LONGEST), st.integers(LONGEST, 2 * LONGEST)))
        slots.append(Slot(kind, -(-tokens // found[kind].block_size), draw(st.sampled_from([1, 1, 2]))))
    return Case(
        kinds=found,
        slots=tuple(slots),
        rows=draw(loads(least, most)),
        settings=draw(settings_of_clusters()),
        slos_ps=((500, 30), (2000, 100)),
    )


@st.composite
def before_v1(draw: st.DrawFn, case: Case) -> Case:
    """The same under vLLM's scheduler before V1, whose budget has room for a token of every running request.

    Host memory holds no request, few of them or all.
    """
    kinds = []
    for kind in case.kinds:
        budget = draw(st.sampled_from([kind.max_num_seqs, 60, 200]))
        slope = kind.mixed_ps[-1] - kind.mixed_ps[0] > 0
        kinds.append(
            replace(
                kind,
                max_batched_tokens=budget,
                mixed_ps=[kind.mixed_ps[0] + slope * tokens for tokens in range(budget + 1)],
                load_ps=draw(st.integers(1, 20)),
            )
        )
    settings = replace(
        case.settings,
        scheduler="v0",
        order="fcfs",
        chunked_prefill=False,
        async_scheduling=False,
        long_prefill_threshold=0,
        preemption=draw(st.sampled_from(["recompute", "swap"])),
        swap_blocks=draw(st.sampled_from([0, 3, 20, 1000])),
    )
    return replace(case, kinds=tuple(kinds), settings=settings)


def slices(most: int = 12) -> st.SearchStrategy[list[int]]:
    """Lengths of the intervals between observations."""
    return st.lists(st.one_of(st.integers(0, 5), st.integers(0, 200)), max_size=most)
