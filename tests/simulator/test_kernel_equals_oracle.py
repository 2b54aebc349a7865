"""The compiled kernel gives the oracle's numbers, to the picosecond, whatever is asked of it and whenever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from serving_gym.envs.simulator.kernel.state import PS_PER_S
from tests.simulator.cases import cases, sharing, slices
from tests.simulator.oracle import Cluster, Kind, Settings
from tests.simulator.twins import Case, Kernel, Row, Slot, assert_equal, build_oracle
from tests.tiers import given_in_tiers

HORIZON_PS = 20_000


def advance_both(kernel: Kernel, cluster: Cluster, until: int) -> bool:
    """Advances both, checks that they agree, and returns whether they stopped for a notice."""
    noticed = cluster.advance(until)
    assert kernel.advance(until) == noticed
    assert_equal(kernel, cluster)
    return noticed


@given_in_tiers(cases(), slices(), default=40, full=200)
def test_every_number_is_the_oracles(case: Case, intervals: list[int]) -> None:
    kernel, cluster = Kernel(case), build_oracle(case)
    for interval in intervals:
        advance_both(kernel, cluster, cluster.now + interval)
    advance_both(kernel, cluster, cluster.now + HORIZON_PS)
    assert sorted(kernel.requests()) == list(range(kernel.arrived))


@given_in_tiers(cases().flatmap(sharing), slices(), default=40, full=200)
def test_every_number_is_the_oracles_with_prefix_caching(case: Case, intervals: list[int]) -> None:
    kernel, cluster = Kernel(case), build_oracle(case)
    for interval in intervals:
        advance_both(kernel, cluster, cluster.now + interval)
    advance_both(kernel, cluster, cluster.now + HORIZON_PS)
    assert sorted(kernel.requests()) == list(range(kernel.arrived))


@pytest.mark.parametrize("seed", range(4))
def test_equal_at_the_scale_of_real_engines(seed: int) -> None:
    """Iterations of 10 to 100 ms, hundreds of tokens, a KV pool that preempts now and then, odd picoseconds."""
    random = np.random.default_rng(seed)
    kind = Kind(
        decode_ps=[10_000_000_019 + 60_000_007 * batch for batch in range(33)],
        mixed_ps=[10_000_000_033 + 30_000_001 * tokens for tokens in range(2049)],
        sequence_ps=9_000_011,
        kv_ps=16_007,
        attn_fs=101,
        block_size=16,
        max_num_seqs=32,
        max_batched_tokens=2048,
    )
    arrival_ps = np.cumsum(random.exponential(8e10, 100)).astype(np.int64)
    rows = tuple(
        Row(int(at), int(prompt), int(output), int(output), int(level))
        for at, prompt, output, level in zip(
            arrival_ps,
            random.integers(1, 3000, 100),
            random.integers(1, 300, 100),
            random.integers(0, 3, 100),
            strict=True,
        )
    )
    case = Case(
        (kind,),
        (Slot(0, 1200), Slot(0, 700)),
        rows,
        Settings(router="jsq", order=("fcfs", "priority", "edf", "dpa")[seed % 4]),
    )
    kernel, cluster = Kernel(case), build_oracle(case)
    while cluster.now < 20 * PS_PER_S:
        advance_both(kernel, cluster, cluster.now + int(random.exponential(5e11)))
    advance_both(kernel, cluster, 1000 * PS_PER_S)
    assert {request.fate for request in cluster.arrivals} == {"finished"}
    assert sum(engine.preemptions for engine in cluster.engines) > 0


def priority_case(capacity_blocks: int, *rows: tuple[int, int, int, int]) -> Case:
    """One engine with priority order; iterations of 1 ps, blocks of one token. Rows: arrival, prompt, output, level."""
    kind = Kind([1] * 7, [1] * 7, 0, 0, 0, block_size=1, max_num_seqs=3, max_batched_tokens=6)
    return Case(
        kinds=(kind,),
        slots=(Slot(0, capacity_blocks),),
        rows=tuple(Row(at, prompt, output, output, level) for at, prompt, output, level in rows),
        settings=Settings(order="priority", reserve_full_prompt=False),
    )


@pytest.mark.parametrize("capacity_blocks", range(35, 50, 2))
@pytest.mark.parametrize("levels", [(0, 1, 0), (1, 0, 0)])
def test_a_request_that_gives_way_to_itself(levels: tuple[int, int, int], capacity_blocks: int) -> None:
    """Rare paths of the priority scheduler, one iteration at a time.

    Where the first of the running list is the least urgent, it gives way to itself and nobody is scheduled in that
    pass, or it is scheduled and then gives way to one behind it. Where the middle one is, the first goes on and the
    last stands still for an iteration.
    """
    rows = ((0, 5, 30, levels[0]), (1, 2, 30, levels[1]), (2, 2, 30, levels[2]))
    case = priority_case(capacity_blocks, *rows)
    kernel, cluster = Kernel(case), build_oracle(case)
    for now in range(200):
        advance_both(kernel, cluster, now)
    assert cluster.engines[0].preemptions > 0
    assert {request.fate for request in cluster.arrivals} == {"finished"}


@pytest.mark.parametrize(
    ("urgent_ps", "expired_ps", "ttft_slos_ps", "begins_ps"),
    [
        pytest.param(30, 1000, (2000, 100), 70, id="it becomes urgent"),
        pytest.param(1000, 1000, (10, 50), 11, id="the first one expires"),
        pytest.param(1000, 20, (1000, 10), 31, id="it expires severely"),
    ],
)
def test_who_is_next_changes_while_an_engine_stands_idle(
    urgent_ps: int, expired_ps: int, ttft_slos_ps: tuple[int, int], begins_ps: int
) -> None:
    """DPA: the engine has no room for the one that is next, and nothing but time brings the other one to the front."""
    case = Case(
        kinds=(Kind([1] * 7, [1] * 7, 0, 0, 0, block_size=1, max_num_seqs=3, max_batched_tokens=6),),
        slots=(Slot(0, 4),),
        rows=(Row(0, 3, 1, 1, level=0, class_id=0), Row(0, 1, 1, 1, level=1, class_id=1)),
        settings=Settings(order="dpa", urgent_ps=urgent_ps, expired_ps=expired_ps),
        slos_ps=tuple((ttft_ps, 50) for ttft_ps in ttft_slos_ps),
    )
    wish = {"serves": True, "steps_allowed": True, "held": True, "notify": False, "capacity_percent": 100}
    kernel, cluster = Kernel(case), build_oracle(case)
    intervene(kernel, cluster, "set", 0, wish)
    advance_both(kernel, cluster, 0)
    intervene(kernel, cluster, "set", 0, wish | {"held": False, "capacity_percent": 50})
    kernel.dispatch()
    cluster.dispatch()
    advance_both(kernel, cluster, HORIZON_PS)
    assert [request.first_scheduled_ps for request in cluster.arrivals] == [-1, begins_ps]


MOVES = ("pool_waiting", "pool_running", "fail_running", "send", "abort")
ACTIONS = (*MOVES, "set")
MIGRATIONS = ("leave", "leave", "leave", "join", "join", "requeue")


@st.composite
def interventions(
    draw: st.DrawFn, actions: tuple[str, ...] = ACTIONS
) -> tuple[str, int, dict[str, bool | int]]:
    """Something the control plane does: an action, an engine's number, and the engine's new settings."""
    serves, steps_allowed = draw(st.sampled_from([(True, True), (True, True), (False, True), (False, False)]))
    return (
        draw(st.sampled_from(actions)),
        draw(st.integers(0, 3)),
        {
            "serves": serves,
            "steps_allowed": steps_allowed,
            "held": draw(st.sampled_from([False, False, True])),
            "notify": draw(st.sampled_from([False, True])),
            "capacity_percent": draw(st.sampled_from([100, 100, 120, 60, 10])),
        },
    )


def intervene(
    kernel: Kernel, cluster: Cluster, action: str, number: int, wish: dict[str, bool | int]
) -> None:
    """Does the same to both."""
    if action == "abort":
        away = [request for engine in cluster.engines for request in engine.away]
        arrived = cluster.arrivals[: cluster.arrived]
        alive = [request for request in arrived if request.fate == "in flight" and request not in away]
        if alive:
            request = alive[number % len(alive)]
            kernel.abort(request.index)
            cluster.abort(request)
        return
    if action in MIGRATIONS:
        migrate(kernel, cluster, action, number, bool(wish["held"]))
        return
    number %= len(cluster.engines)
    engine = cluster.engines[number]
    if action in ("pool_running", "fail_running"):
        for request in list(engine.away):  # they share the fate of those that run
            kernel.join(request.index, number)
            cluster.join(request, number)
    if action == "set":
        capacity = max(1, kernel.case.slots[number].capacity_blocks * wish["capacity_percent"] // 100)
        kernel.set(number, wish["serves"], wish["steps_allowed"], wish["held"], wish["notify"], capacity)
        engine.serves, engine.steps_allowed = bool(wish["serves"]), bool(wish["steps_allowed"])
        engine.held, engine.notify, engine.capacity_blocks = (
            bool(wish["held"]),
            bool(wish["notify"]),
            capacity,
        )
    elif action == "send":
        if cluster.pool:
            kernel.send_first(number)
            cluster.send(cluster.pool[0], number)
    else:
        getattr(kernel, action)(number)
        getattr(cluster, action)(number)


def migrate(kernel: Kernel, cluster: Cluster, action: str, number: int, broken_off: bool) -> None:
    """Lets a request leave its batch, or join another's (or its own again), or moves one that waits."""
    engines = cluster.engines
    if action == "leave":
        running = [(engine, request) for engine in engines for request in engine.running]
        leaving = [request for engine in engines for request in engine.leaving]
        able = [pair for pair in running if pair[1].decoding and pair[1] not in leaving]
        if able:
            engine, request = able[number % len(able)]
            kernel.leave(request.index)
            engine.leave(request)
            cluster.kick()
    elif action == "requeue":
        for request in [request for engine in engines for request in engine.waiting][:1]:
            kernel.requeue(request.index, number % len(engines))
            cluster.requeue(request, number % len(engines))
    else:
        for request in [request for engine in engines for request in engine.away][:1]:
            able = [
                other for other in engines if other.number != request.engine and other.has_room_for(request)
            ]
            target = request.engine
            if able:
                engine = able[number % len(able)]
                kernel.keep(engine.number, engine.keep(request), 1)
                if broken_off:
                    kernel.keep(engine.number, -len(engine.kept[request]), -1)
                    engine.let_go_of(request)
                else:
                    target = engine.number
            kernel.join(request.index, target)
            cluster.join(request, target)


def test_a_request_finds_its_own_blocks_again_where_it_has_left_them() -> None:
    """Prefix caching: it goes from engine 0 to engine 1 and back; nobody else has its tokens."""
    case = Case(
        kinds=(Kind([1] * 4, [1] * 9, 0, 0, 0, block_size=4, max_num_seqs=3, max_batched_tokens=8),),
        slots=(Slot(0, 50), Slot(0, 50)),
        rows=(Row(0, 6, 40, 40, hash_ids=(0, 1)),),
        settings=Settings(router="hold", prefix_caching=True, hash_block_tokens=4),
    )
    kernel, cluster = Kernel(case), build_oracle(case)
    advance_both(kernel, cluster, 0)
    for number, until in ((0, 11), (1, 22), (0, 1000)):
        kernel.send_first(number)
        cluster.send(cluster.pool[0], number)
        advance_both(kernel, cluster, until)
        kernel.pool_running(number)
        cluster.pool_running(number)
        assert_equal(kernel, cluster)
    assert [engine.hit_tokens for engine in cluster.engines] == [16, 0]
    assert [request.fate for request in cluster.arrivals] == ["finished"]


@given_in_tiers(
    cases(), st.lists(st.tuples(st.integers(0, 200), interventions()), max_size=12), default=40, full=200
)
def test_every_number_is_the_oracles_under_a_control_plane(
    case: Case, plan: list[tuple[int, tuple[str, int, dict[str, bool | int]]]]
) -> None:
    kernel = run_both(case, plan)
    assert sorted(kernel.requests()) == list(range(kernel.arrived)), "nobody is lost"


@given_in_tiers(
    cases(),
    st.lists(st.tuples(st.integers(0, 60), interventions((*ACTIONS, *MIGRATIONS))), min_size=6, max_size=24),
    default=40,
    full=200,
)
def test_every_number_is_the_oracles_when_requests_migrate(
    case: Case, plan: list[tuple[int, tuple[str, int, dict[str, bool | int]]]]
) -> None:
    kernel = run_both(case, plan)
    assert sorted(kernel.requests()) == list(range(kernel.arrived)), "nobody is lost"


@given_in_tiers(
    cases().flatmap(sharing),
    st.lists(st.tuples(st.integers(0, 60), interventions((*MOVES, *MIGRATIONS))), min_size=6, max_size=24),
    default=40,
    full=200,
)
def test_every_number_is_the_oracles_when_requests_migrate_with_prefix_caching(
    case: Case, plan: list[tuple[int, tuple[str, int, dict[str, bool | int]]]]
) -> None:
    kernel = run_both(case, plan)
    assert sorted(kernel.requests()) == list(range(kernel.arrived)), "nobody is lost"


def run_both(case: Case, plan: list[tuple[int, tuple[str, int, dict[str, bool | int]]]]) -> Kernel:
    """Advances both and intervenes in both, and checks that they agree throughout; returns the kernel at the end."""
    kernel, cluster = Kernel(case), build_oracle(case)
    for interval, (action, number, wish) in plan:
        advance_both(kernel, cluster, cluster.now + interval)
        intervene(kernel, cluster, action, number, wish)
        if action != "send":
            kernel.dispatch()
            cluster.dispatch()
            cluster.advance(cluster.now)  # as the kernel does: whoever arrives at this instant comes
        assert_equal(kernel, cluster)
    for number, engine in enumerate(cluster.engines):
        kernel.set(number, engine.serves, engine.steps_allowed, engine.held, False, engine.capacity_blocks)
        engine.notify = False
    advance_both(kernel, cluster, cluster.now + HORIZON_PS)
    return kernel
