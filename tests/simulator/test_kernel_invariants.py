"""What must hold whatever the load: conservation, independence of how time is sliced, forks, and the latency cost."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st

from serving_gym.envs.simulator.kernel import state
from serving_gym.envs.simulator.kernel.world import advance, is_idle, latency_cost
from tests.simulator.cases import cases, slices
from tests.simulator.oracle import Kind, Settings
from tests.simulator.twins import Case, Kernel, Row, Slot
from tests.tiers import given_in_tiers

HORIZON_PS = 20_000


def everything(kernel: Kernel) -> dict[str, object]:
    """All that a world shows. Floats are compared exactly; the log in order."""
    return {
        "now": kernel.now,
        "engines": [kernel.engine(number) for number in range(len(kernel.case.slots))],
        "requests": kernel.requests(),
        "log": kernel.log(),
        "stats": kernel.world.stats.tolist(),
        "cost": latency_cost(kernel.world),
        "pool": kernel.queue(len(kernel.case.slots)),
    }


def snapshot(kernel: Kernel) -> list[bytes]:
    """Every byte of a world."""
    return [array.tobytes() for array in kernel.world]


def run_in_slices(kernel: Kernel, intervals: list[int], end: int) -> None:
    for interval in intervals:
        kernel.advance(min(kernel.now + interval, end))
    kernel.advance(end)


# -- time --------------------------------------------------------------------------------------------------------------


@given_in_tiers(cases(), slices(30), default=30, full=60)
def test_slicing_time_changes_nothing(case: Case, intervals: list[int]) -> None:
    whole, sliced = Kernel(case), Kernel(case, request_slots=64)
    end = sum(intervals)
    whole.advance(end)
    run_in_slices(sliced, intervals, end)
    assert everything(whole) == everything(sliced)


@given_in_tiers(cases(), slices(6), slices(10), st.integers(0, 2000), default=30, full=60)
def test_a_fork_continues_to_the_same_numbers(
    case: Case, before: list[int], after: list[int], remaining: int
) -> None:
    parent = Kernel(case)
    for interval in before:
        parent.advance(parent.now + interval)
    frozen = snapshot(parent)
    child = parent.fork()
    end = parent.now + remaining
    run_in_slices(child, after, end)
    assert snapshot(parent) == frozen
    grandchild = child.fork()
    parent.advance(end)
    assert everything(parent) == everything(child)
    for kernel in (parent, child, grandchild):
        kernel.advance(end + HORIZON_PS)
    assert everything(parent) == everything(child) == everything(grandchild)


def test_a_fork_has_room_for_the_fate_of_every_request_in_flight() -> None:
    """The log of a fork starts empty; requests that finish or fail before the next arrival must find room."""
    for action in ("finish", "fail"):
        parent = Kernel(busy_case(num_requests=200))
        parent.advance(0)
        child = parent.fork()
        if action == "fail":
            child.fail_running(0)
        else:
            child.advance(10**9)
        assert len(child.world.log) >= int(child.world.cluster["log_length"][0]) > 0


# -- conservation ------------------------------------------------------------------------------------------------------


def check_conservation(kernel: Kernel) -> None:
    """Nothing is lost or counted twice."""
    world, case = kernel.world, kernel.case
    cluster = world.cluster[0]
    stats = dict(zip(state.STAT_NAMES, world.stats.sum(axis=0), strict=True))
    in_flight = kernel.in_flight()
    fates = Counter(request["fate"] for request in kernel.log())
    assert stats["arrived"] == kernel.arrived == len(kernel.log()) + len(in_flight)
    assert stats["finished"] == fates["finished"]
    assert stats["refused"] == fates["refused"]
    assert stats["failed"] == fates["failed"]
    assert int(cluster["num_in_flight"]) == len(in_flight)
    in_queues = int(
        world.engines["num_running"].sum() + world.engines["num_waiting"].sum() + cluster["num_pooled"]
    )
    assert in_queues == len(in_flight)
    assert int(world.engines["generated_tokens"].sum()) == sum(
        int(request["generated"]) for request in kernel.requests().values()
    )
    assert stats["generated_tokens"] == sum(
        case.answer(int(request["index"])) for request in kernel.log() if request["fate"] == "finished"
    )
    for number, engine in enumerate(world.engines):
        check_engine(kernel, number)
        assert 0 <= engine["busy_ps"] - max(engine["step_end_ps"] - kernel.now, 0) <= kernel.now


def check_engine(kernel: Kernel, number: int) -> None:
    """An engine's counters are the sums over its requests."""
    world, engine = kernel.world, kernel.world.engines[number]
    block_size = kernel.case.kinds[kernel.case.slots[number].kind].block_size
    blocks = context = prefill_context = pending = 0
    residues = np.zeros(world.residues.shape[1], np.int64)
    for slot in world.running[number, : engine["num_running"]]:
        request = world.requests[slot]
        assert request["engine"] == number
        decoding = request["phase"] == state.DECODE
        computed = int(engine["tick"] + request["offset"] if decoding else request["computed"])
        blocks += -(-computed // block_size)
        if decoding:
            context += computed
            residues[request["offset"] % block_size] += 1
        else:
            prefill_context += computed
            pending += int(request["prompt"] + request["generated"]) - computed
    rows = kernel.queue(number)
    waiting = [r for r in world.requests[world.requests["phase"] == state.WAITING] if r["engine"] == number]
    assert sorted(int(request["index"]) for request in waiting) == sorted(rows)
    pending += sum(int(request["prompt"] + request["generated"]) for request in waiting)
    assert int(engine["used_blocks"]) == blocks
    assert int(engine["decode_context"]) == context
    assert int(engine["prefill_context"]) == prefill_context
    assert int(engine["pending_prefill_tokens"]) == pending
    assert world.residues[number].tolist() == residues.tolist()


@given_in_tiers(cases(), slices(), default=30, full=60)
def test_conservation(case: Case, intervals: list[int]) -> None:
    kernel = Kernel(case)
    for interval in [*intervals, HORIZON_PS]:
        kernel.advance(kernel.now + interval)
        check_conservation(kernel)
        used, capacity = kernel.world.engines["used_blocks"], kernel.world.engines["capacity_blocks"]
        assert (used <= capacity).all()


@given_in_tiers(
    cases(),
    st.lists(
        st.tuples(
            st.integers(0, 200),
            st.sampled_from(["pool_waiting", "pool_running", "fail_running", "dispatch"]),
            st.integers(0, 3),
        ),
        max_size=10,
    ),
    default=30,
    full=60,
)
def test_conservation_under_a_control_plane(case: Case, plan: list[tuple[int, str, int]]) -> None:
    kernel = Kernel(case)
    for interval, action, number in plan:
        kernel.advance(kernel.now + interval)
        if action == "dispatch":
            kernel.dispatch()
        else:
            getattr(kernel, action)(number % len(case.slots))
        check_conservation(kernel)
    kernel.dispatch()
    kernel.advance(kernel.now + HORIZON_PS)
    check_conservation(kernel)


# -- the latency cost --------------------------------------------------------------------------------------------------


def cost_by_request(kernel: Kernel) -> float:
    """TTFT over its SLO plus TPOT over its SLO, of what has passed of them, request by request."""
    total = 0.0
    for request in kernel.requests().values():
        if request["fate"] == "refused":
            continue
        row = kernel.case.rows[int(request["index"])]
        ttft_slo, tpot_slo = kernel.case.slos_ps[row.class_id]
        end = int(request["finish_ps"]) if request["fate"] != "in flight" else kernel.now
        first = int(request["first_token_ps"])
        total += ((first if first >= 0 else end) - row.arrival_ps) / ttft_slo
        output = kernel.case.answer(int(request["index"]))
        if first >= 0 and output > 1:
            total += (end - first) / (output - 1) / tpot_slo
    return total


@given_in_tiers(cases(), slices(), st.booleans(), default=30, full=60)
def test_latency_cost_is_the_sum_over_requests(case: Case, intervals: list[int], crash: bool) -> None:
    kernel = Kernel(case)
    for interval in [*intervals, HORIZON_PS]:
        kernel.advance(kernel.now + interval)
        assert latency_cost(kernel.world) == pytest.approx(cost_by_request(kernel), rel=1e-9, abs=1e-9)
        if crash:
            kernel.fail_running(0)


@given_in_tiers(cases(), default=30, full=60)
def test_class_totals_are_sums_over_requests(case: Case) -> None:
    kernel = Kernel(case)
    kernel.advance(HORIZON_PS)
    for class_id, (ttft_slo, tpot_slo) in enumerate(case.slos_ps):
        totals = dict(zip(state.STAT_NAMES, kernel.world.stats[class_id], strict=True))
        requests = [r for r in kernel.requests().values() if case.rows[int(r["index"])].class_id == class_id]
        started = [r for r in requests if int(r["first_token_ps"]) >= 0]
        done = [r for r in requests if r["fate"] == "finished"]
        rows = {int(r["index"]): case.rows[int(r["index"])] for r in requests}
        ttft = {int(r["index"]): int(r["first_token_ps"]) - rows[int(r["index"])].arrival_ps for r in started}
        tpot = {
            int(r["index"]): (int(r["finish_ps"]) - int(r["first_token_ps"]))
            / max(case.answer(int(r["index"])) - 1, 1)
            for r in done
        }
        assert totals["arrived"] == len(requests)
        assert totals["arrived_tokens"] == sum(row.prompt for row in rows.values())
        assert totals["first_tokens"] == len(started)
        assert totals["ttft_met"] == sum(value <= ttft_slo for value in ttft.values())
        assert totals["tpot_met"] == sum(value <= tpot_slo for value in tpot.values())
        assert totals["good"] == sum(tpot[i] <= tpot_slo and ttft[i] <= ttft_slo for i in tpot)
        assert totals["ttft_sum_s"] == pytest.approx(sum(ttft.values()) / state.PS_PER_S)
        assert totals["tpot_sum_s"] == pytest.approx(sum(tpot.values()) / state.PS_PER_S)


# -- notices -----------------------------------------------------------------------------------------------------------


def busy_case(num_requests: int = 3, num_engines: int = 1, output: int = 10) -> Case:
    """Requests of one prompt token that all arrive at once; every iteration takes 10 ps."""
    kind = Kind([10] * 300, [10] * 300, 0, 0, 0, 4, max_num_seqs=256, max_batched_tokens=256)
    return Case(
        kinds=(kind,),
        slots=tuple(Slot(0, 10_000) for _ in range(num_engines)),
        rows=tuple(Row(0, 1, output + number, output + number) for number in range(num_requests)),
        settings=Settings(router="round_robin"),
    )


def test_a_drained_engine_stops_the_clock_when_its_last_request_ends() -> None:
    kernel = Kernel(busy_case())
    kernel.advance(5)
    kernel.world.engines["status"] = state.DRAINING
    kernel.world.engines["notify"] = 1
    assert kernel.advance(1_000_000)
    assert kernel.now == 120  # 12 tokens of 10 ps
    assert is_idle(kernel.world, kernel.traffic)
    assert kernel.advance(1_000_000), "it goes on telling until it is told not to"
    kernel.world.engines["notify"] = 0
    assert not kernel.advance(1_000_000)
    assert kernel.now == 1_000_000


def test_an_idle_engine_gives_notice_at_once() -> None:
    kernel = Kernel(busy_case(num_requests=1, num_engines=2))
    kernel.advance(5)
    kernel.world.engines["notify"][1] = 1
    assert kernel.advance(1_000_000)
    assert kernel.now == 5


def test_a_held_engine_stands_still_after_the_iteration_in_flight_and_goes_on_where_it_was() -> None:
    kernel = Kernel(busy_case())
    kernel.advance(43)
    kernel.world.engines["hold"] = kernel.world.engines["notify"] = 1
    assert kernel.advance(1_000_000)
    assert kernel.now == 50
    assert [request["generated"] for request in kernel.in_flight()] == [5, 5, 5]
    kernel.world.engines["notify"] = 0
    assert not kernel.advance(1_000)
    assert kernel.engine(0)["steps"] == 5
    kernel.world.engines["hold"] = 0
    kernel.dispatch()
    kernel.advance(1_000_000)
    assert [request["finish_ps"] for request in kernel.log()] == [1_050, 1_060, 1_070]
    assert [request["preemptions"] for request in kernel.log()] == [0, 0, 0]


def test_the_first_of_several_notices_counts_and_others_of_that_instant_are_seen_with_it() -> None:
    case = busy_case(num_requests=4, num_engines=2)  # outputs 10, 12 on engine 0; 11, 13 on engine 1
    kernel = Kernel(case)
    kernel.advance(5)
    kernel.world.engines["notify"] = 1
    assert kernel.advance(1_000_000)
    assert kernel.now == 120
    assert kernel.engine(0)["num_running"] == 0
    assert kernel.engine(1)["num_running"] == 1
    kernel.world.engines["notify"][0] = 0
    assert kernel.advance(1_000_000)
    assert kernel.now == 130


def test_requests_sent_to_the_pool_are_recomputed_elsewhere_with_the_tokens_they_have() -> None:
    kernel = Kernel(busy_case(num_requests=1, num_engines=2))
    kernel.advance(43)  # four tokens out, the fifth in flight
    kernel.world.engines["status"][0] = state.DOWN
    kernel.pool_running(0)
    assert kernel.world.cluster["num_pooled"][0] == 1
    assert kernel.world.cluster["pooled_tokens"][0] == 1 + 4
    kernel.dispatch()
    kernel.advance(1_000)
    (request,) = kernel.log()
    assert request["engine"] == 1
    assert request["preemptions"] == 1
    assert request["first_token_ps"] == 10
    assert request["finish_ps"] == 43 + 60  # tokens five to ten
    check_conservation(kernel)


def test_a_trigger_stops_the_clock_with_every_request_of_the_instant_in_the_pool() -> None:
    case = busy_case(num_requests=3)
    kernel = Kernel(case)
    kernel.world.cluster["router"] = state.HOLD
    kernel.world.cluster["stop_on_trigger"] = 1
    kernel.traffic.trigger[0] = 1
    kernel.world = state.with_more_slots(kernel.world)
    assert advance(kernel.world, kernel.traffic, kernel.tables, 1_000) == state.NEED_LOG
    kernel.world = state.with_more_log(kernel.world)
    assert advance(kernel.world, kernel.traffic, kernel.tables, 1_000) == state.TRIGGERED
    assert kernel.now == 0
    assert kernel.queue(1) == [0, 1, 2]
    kernel.send_first(0)
    assert kernel.engine(0)["step_end_ps"] == 10
    assert advance(kernel.world, kernel.traffic, kernel.tables, 1_000) == state.REACHED
    assert [request["index"] for request in kernel.log()] == [0]
    assert kernel.queue(1) == [1, 2]
