"""Sessions: requests that wait for the answers of others; clients that lose patience; time limits of a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.metrics import ABANDONED, FAILED, FINISHED, RequestRecords, summarise
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.simulator.oracle_of import oracle_of, run_oracle

SPEC = ClusterSpec(
    model="llama-3.1-8b", gpu="H100", num_gpus=1, base_width=1, order="fcfs", router="jsq", engine=""
)
CLIENTS = "llama-3.1-8b_h100_vllm-0.24"  # a profile with a front end
SLOS = (SLO(1.0, 0.1),)


def three_turns(**columns: object) -> Workload:
    """One session: the second turn 0.5 s after the first answer, the third 0.25 s after the second."""
    return Workload(
        arrival_s=[0.0, 0.5, 0.75], input_tokens=[64, 96, 128], output_tokens=[8, 8, 8], session_id=[0, 0, 0],
        delay_s=[0.0, 0.5, 0.25], after_offsets=[0, 0, 1, 2], after=[0, 1], **columns,  # type: ignore[arg-type]
    ).validate()  # fmt: skip


def played(workload: Workload, spec: ClusterSpec = SPEC) -> RequestRecords:
    """Records of a workload that a simulator has served."""
    simulator = Simulator(spec, SLOS)
    simulator.reset(workload)
    simulator.run_to_completion()
    assert simulator.idle
    return simulator.results()


def sessions_of(seed: int, count: int = 40, rate_rps: float = 20.0, **columns: object) -> Workload:
    """Random sessions that fan out and join: some turns wait for two others, several may wait for one."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, int, int, float, tuple[int, ...], int]] = []
    for session in range(count):
        begin_s = float(rng.uniform(0, count / rate_rps))
        own: list[int] = []
        for turn in range(int(rng.integers(1, 6))):
            waits = tuple(sorted(set(rng.choice(own, size=min(len(own), 2)).tolist()))) if turn else ()
            delay_s = float(rng.choice([0.0, 0.01, rng.uniform(0, 0.5)])) if turn else 0.0
            own.append(len(rows))
            rows.append(
                (begin_s, int(rng.integers(1, 1200)), int(rng.integers(1, 60)), delay_s, waits, session)
            )
    begin_s, prompt, output, delay_s, after, session = zip(*rows, strict=True)  # type: ignore[assignment]
    planned = list(begin_s)
    for row, waits in enumerate(after):
        if waits:
            planned[row] = max(planned[other] for other in waits) + delay_s[row]
    order = np.argsort(planned, kind="stable")
    number = np.empty(len(rows), int)
    number[order] = np.arange(len(rows))
    waits_in_order = [sorted(number[list(after[row])]) for row in order]
    return Workload(
        arrival_s=np.array(planned)[order],
        input_tokens=np.array(prompt)[order],
        output_tokens=np.array(output)[order],
        session_id=np.array(session)[order],
        delay_s=np.array(delay_s)[order],
        after_offsets=np.concatenate([[0], np.cumsum([len(waits) for waits in waits_in_order])]),
        after=np.array([row for waits in waits_in_order for row in waits], int),
        **columns,  # type: ignore[arg-type]
    ).validate()


def test_a_turn_arrives_its_delay_after_the_answer_before_has_ended() -> None:
    """A hand-worked example: alone on its engine, every turn's answer ends as if it were the only request."""
    records = played(three_turns())
    alone = [
        played(Workload(arrival_s=[0.0], input_tokens=[tokens], output_tokens=[8])).e2e_s[0]
        for tokens in (64, 96, 128)
    ]
    np.testing.assert_allclose(records.e2e_s, alone, rtol=1e-12)
    expected = [0.0, alone[0] + 0.5, alone[0] + 0.5 + alone[1] + 0.25]
    np.testing.assert_allclose(records.arrival_s, expected, rtol=1e-12)
    assert records.turn is not None
    assert records.turn.tolist() == [0, 1, 2]


@pytest.mark.parametrize("router", ["jsq", "round_robin", "least_requests"])
@pytest.mark.parametrize("limits", ["none", "patience", "both"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("profile", [None, CLIENTS])
def test_sessions_give_the_oracles_times(
    router: str, limits: str, asynchronous: bool, profile: str | None
) -> None:
    for seed in range(4):
        workload = sessions_of(seed, rate_rps=200.0)
        spec = replace(
            SPEC,
            num_gpus=2,
            max_group=1,
            router=router,
            max_num_seqs=6,
            async_scheduling=asynchronous,
            profile=profile,
        )
        if limits != "none":
            patience_s = np.random.default_rng(seed).choice([0.02, 0.1, np.inf], len(workload))
            workload = replace(workload, patience_s=patience_s)
        if limits == "both":
            spec = replace(spec, request_timeout_s=0.4)
        simulator = Simulator(spec, SLOS)
        simulator.reset(workload)
        oracle = oracle_of(simulator)
        run_oracle(oracle)
        simulator.run_to_completion()
        records = simulator.results()
        assert [request.index for request in oracle.arrivals] == records.index.tolist()
        for column in ("arrival", "first_scheduled", "first_token"):
            times = np.array([getattr(request, f"{column}_ps") for request in oracle.arrivals])
            expected = np.where(times < 0, np.nan, times / PS_PER_S)
            np.testing.assert_array_equal(getattr(records, f"{column}_s"), expected)
        fates = {"finished": FINISHED, "aborted": ABANDONED, "failed": FAILED}
        assert [fates[request.fate] for request in oracle.arrivals] == records.outcome.tolist()
        if limits == "patience":
            assert (records.outcome == ABANDONED).any()
        if limits == "both":
            assert (records.outcome == FAILED).any()


def test_sessions_with_prefixes_give_the_oracles_hits() -> None:
    """Coding agents on small engines: hits, preemptions and times to the picosecond."""
    spec = WorkloadSpec(
        "agentic_coding",
        num_requests=150,
        rate_rps=30.0,
        params={
            "history_s": 30.0,
            "human_median_s": 0.5,
            "longest_wait_s": 2.0,
            "mean_steps": 3.0,
            "sub_agent_share": 0.1,
            "shared_tokens": 300,
            "sub_agent_tokens": 200,
            "context_tokens": 4000,
            "compacted_tokens": 100,
            "longest_output_tokens": 300,
        },
    )
    workload = WorkloadSource(spec).sample(0)
    cluster = replace(SPEC, num_gpus=2, prefix_caching=True, kv_blocks_override=400, max_num_seqs=16)
    simulator = Simulator(cluster, SLOS)
    simulator.reset(workload)
    oracle = oracle_of(simulator)
    run_oracle(oracle)
    simulator.run_to_completion()
    records = simulator.results()
    assert [request.index for request in oracle.arrivals] == records.index.tolist()
    finish_s = np.array([request.finish_ps for request in oracle.arrivals]) / PS_PER_S
    np.testing.assert_array_equal(records.finish_s, finish_s)
    assert records.preemptions.sum() == sum(request.preemptions for request in oracle.arrivals)
    assert records.cached_tokens.sum() > 0.5 * records.input_tokens.sum()


def test_a_session_whose_client_gave_up_has_no_later_turns() -> None:
    """It ends there; what its requests held is free."""
    simulator = Simulator(SPEC, SLOS)
    simulator.reset(three_turns(patience_s=[np.inf, 0.001, np.inf]))
    simulator.run_to_completion()
    records = simulator.results()
    assert simulator.idle
    assert records.outcome.tolist() == [FINISHED, ABANDONED]
    assert records.index.tolist() == [0, 1]
    assert simulator.world.engines["used_blocks"].sum() == 0
    figures = summarise(records, {"standard": SLOS[0]}, ("standard",), simulator.now_s)
    assert figures["abandoned"] == 1
    assert figures["session_abandoned_ratio"] == 1.0
    assert np.isinf(figures["session_time_p50_s"])


def test_session_figures_of_a_hand_worked_example() -> None:
    """Two sessions, one of two turns; hits only where there are ids."""
    records = played(three_turns())
    figures = summarise(records, {"standard": SLOS[0]}, ("standard",), 2.0)
    assert figures["sessions"] == 1
    assert figures["session_completed_ratio"] == 1.0
    assert figures["session_time_p50_s"] == pytest.approx(records.finish_s[2] - records.arrival_s[0])
    assert figures["ttft_p50_s/first_turn"] == pytest.approx(records.ttft_s[0])
    assert figures["ttft_p50_s/later_turns"] == pytest.approx(np.mean(records.ttft_s[1:]))


def test_a_fork_goes_its_own_way_to_the_same_numbers() -> None:
    """Arrivals follow from what happened, so a fork keeps arrivals of its own."""
    simulator = Simulator(SPEC, SLOS)
    simulator.reset(sessions_of(3, patience_s=None))
    simulator.advance(1.0)
    before = simulator.world.turns.copy()
    fork = simulator.fork()
    fork.run_to_completion()
    np.testing.assert_array_equal(before, simulator.world.turns)
    simulator.run_to_completion()
    np.testing.assert_array_equal(simulator.results().finish_s, fork.results().finish_s)


@pytest.mark.parametrize("step_s", [0.003, 0.1])
def test_slicing_time_changes_nothing(step_s: float) -> None:
    """Results do not depend on how often the clock is stopped."""
    whole = played(sessions_of(5))
    simulator = Simulator(SPEC, SLOS)
    simulator.reset(sessions_of(5))
    while not simulator.idle:
        simulator.advance(simulator.now_s + step_s)
    sliced = simulator.results()
    np.testing.assert_array_equal(whole.finish_s, sliced.finish_s)
    np.testing.assert_array_equal(whole.index, sliced.index)


def test_what_waits_for_answers_of_no_one_else_is_an_open_loop() -> None:
    """A workload with sessions of one turn each gives the results of the same workload without."""
    plain = Workload(
        arrival_s=np.arange(50) * 0.01, input_tokens=np.full(50, 300), output_tokens=np.full(50, 20)
    )
    alone = replace(
        plain, session_id=np.arange(50), delay_s=np.zeros(50), after_offsets=np.zeros(51, int), after=np.zeros(0)
    )  # fmt: skip
    np.testing.assert_array_equal(played(plain).finish_s, played(alone).finish_s)


@pytest.mark.parametrize("block_tokens", [16, 512])
def test_a_later_turn_hits_what_the_turn_before_has_left(block_tokens: int) -> None:
    """Worked by hand: whole KV blocks of 16 tokens of prompt and answer, and never the whole prompt."""
    prompts, output = [block_tokens * 2, block_tokens * 3 + 5], block_tokens
    ids = [[0, 1, 2], [0, 1, 2, 3]]  # the first turn's third id names its answer
    workload = Workload(
        arrival_s=[0.0, 0.5], input_tokens=prompts, output_tokens=[output, 4], session_id=[0, 0],
        delay_s=[0.0, 0.5], after_offsets=[0, 0, 1], after=[0], hash_offsets=[0, 3, 7],
        hash_ids=np.concatenate(ids), hash_block_tokens=block_tokens,
    ).validate()  # fmt: skip
    records = played(workload, replace(SPEC, prefix_caching=True))
    computed = prompts[0] + output - 1  # the last token of an answer is never computed
    assert records.cached_tokens.tolist() == [0, computed // 16 * 16]


def test_less_than_a_block_in_common_is_no_hit() -> None:
    """Two turns that share 15 tokens of a block of 16 share nothing."""
    workload = Workload(
        arrival_s=[0.0, 0.5], input_tokens=[8, 40], output_tokens=[8, 4], session_id=[0, 0],
        delay_s=[0.0, 0.5], after_offsets=[0, 0, 1], after=[0], hash_offsets=[0, 1, 4],
        hash_ids=[0, 0, 1, 2], hash_block_tokens=16,
    ).validate()  # fmt: skip
    records = played(workload, replace(SPEC, prefix_caching=True))
    assert records.cached_tokens.tolist() == [0, 0]


def test_tokens_recomputed_after_a_preemption_are_no_hits() -> None:
    """Hits are counted when a request is first scheduled, so that a preemption cannot add any."""
    count, blocks = 8, 80
    workload = Workload(
        arrival_s=np.zeros(count), input_tokens=np.full(count, 128), output_tokens=np.full(count, 200),
        hash_offsets=np.arange(count + 1) * 8, hash_ids=np.arange(count * 8), hash_block_tokens=16,
    ).validate()  # fmt: skip
    spec = replace(SPEC, prefix_caching=True, kv_blocks_override=blocks, reserve_full_prompt=False)
    records = played(workload, spec)
    assert records.preemptions.sum() > 0
    assert records.cached_tokens.sum() == 0


BROKEN: dict[str, Callable[[Workload], Workload]] = {
    "delay_s": lambda workload: replace(workload, delay_s=[0.0, -1.0, 0.0]),
    "after": lambda workload: replace(workload, after=[0, 2]),
    "after_offsets": lambda workload: replace(workload, after_offsets=[0, 0, 1, 3]),
    "patience_s": lambda workload: replace(workload, patience_s=[1.0, 0.0, 1.0]),
    "given together": lambda workload: replace(workload, delay_s=None),
    "num_clients": lambda workload: replace(workload, num_clients=2),
}


@pytest.mark.parametrize("named", BROKEN)
def test_impossible_sessions_are_refused(named: str) -> None:
    with pytest.raises(ValueError, match=named):
        BROKEN[named](three_turns()).validate()


def test_windows_keep_sessions_whole() -> None:
    """A session belongs to where its first request arrives; what waits for a row outside is left out."""
    workload = sessions_of(1)
    window = workload.window(0.2, 0.8).validate()
    assert window.session_id is not None
    assert workload.session_id is not None
    for session in np.unique(window.session_id):
        assert (window.session_id == session).sum() == (workload.session_id == session).sum()
    tail = workload.rows(10, len(workload)).validate()
    assert len(tail) < len(workload) - 10


def test_two_workloads_with_sessions_merge() -> None:
    """Every row waits for the answers of its own workload, and sessions stay apart."""
    a, b = sessions_of(1, count=5), sessions_of(2, count=6)
    merged = Workload.merge(a, b).validate()
    assert merged.session_id is not None
    assert np.unique(merged.session_id).size == 11
    assert merged.num_awaited.sum() == a.num_awaited.sum() + b.num_awaited.sum()
    faster = merged.with_rate_scale(2.0).validate()
    np.testing.assert_allclose(
        np.sort(faster.arrival_s[faster.turn == 0]), np.sort(merged.arrival_s[merged.turn == 0]) / 2
    )
