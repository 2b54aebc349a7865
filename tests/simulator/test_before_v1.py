"""vLLM's scheduler before V1: the kernel equals the oracle, and both equal what is worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from serving_gym.calibration.engines import scheduler_of
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.cluster import build_cluster
from serving_gym.envs.simulator.deployment.build import build_factory
from serving_gym.envs.simulator.fleet.build import build_fleet
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.state import PS_PER_S, V0, V0_SWAP, V1
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload
from tests.simulator.cases import before_v1, cases, slices
from tests.simulator.oracle import Kind, Settings
from tests.simulator.oracle_of import oracle_of, run_oracle
from tests.simulator.test_kernel_equals_oracle import (
    ACTIONS,
    HORIZON_PS,
    MIGRATIONS,
    advance_both,
    interventions,
    run_both,
)
from tests.simulator.twins import Case, Kernel, Row, Slot, build_oracle, fate_of
from tests.tiers import given_in_tiers

SLOS = (SLO(ttft_s=1.0, tpot_s=1.0),)
OLD = ClusterSpec(
    model="llama-3.1-70b",
    gpu="H100",
    num_gpus=4,
    base_width=4,
    max_group=1,
    router="round_robin",
    order="fcfs",
    chunked_prefill=False,
    max_num_batched_tokens=8192,
    profile="llama-3.1-70b_h100_vllm-0.6",
)
REPLICA = ReplicaSpec(
    "llama-3.1-70b", "H100", tp_size=4, engine="vllm-0.6", max_num_seqs=64, max_num_batched_tokens=4096
)


# -- by the oracle -----------------------------------------------------------------------------------------------------


@given_in_tiers(cases().flatmap(before_v1), slices(), default=60, full=300)
def test_every_number_is_the_oracles(case: Case, intervals: list[int]) -> None:
    kernel, cluster = Kernel(case), build_oracle(case)
    for interval in intervals:
        advance_both(kernel, cluster, cluster.now + interval)
    advance_both(kernel, cluster, cluster.now + HORIZON_PS)
    assert sorted(kernel.requests()) == list(range(kernel.arrived))


@given_in_tiers(
    cases().flatmap(before_v1),
    st.lists(st.tuples(st.integers(0, 60), interventions((*ACTIONS, *MIGRATIONS))), min_size=4, max_size=24),
    default=40,
    full=200,
)
def test_every_number_is_the_oracles_under_a_control_plane(
    case: Case, plan: list[tuple[int, tuple[str, int, dict[str, bool | int]]]]
) -> None:
    kernel = run_both(case, plan)
    assert sorted(kernel.requests()) == list(range(kernel.arrived)), "nobody is lost"


def large_case(seed: int, preemption: str) -> Case:
    """Iterations of 10 to 100 ms, hundreds of tokens, KV pools that are too small at times, odd picoseconds."""
    random = np.random.default_rng(seed)
    kind = Kind(
        decode_ps=[10_000_000_019 + 60_000_007 * batch for batch in range(33)],
        mixed_ps=[10_000_000_033 + 30_000_001 * tokens for tokens in range(4097)],
        sequence_ps=9_000_011,
        kv_ps=16_007,
        attn_fs=101,
        block_size=16,
        max_num_seqs=32,
        max_batched_tokens=4096,
        load_ps=200_000_003,
    )
    arrival_ps = np.cumsum(random.exponential(6e10, 120)).astype(np.int64)
    lengths = zip(random.integers(1, 1500, 120), random.integers(1, 900, 120), strict=True)
    rows = tuple(
        Row(int(at), int(prompt), int(output), int(output))
        for at, (prompt, output) in zip(arrival_ps, lengths, strict=True)
    )
    settings = Settings(
        router="jsq", scheduler="v0", chunked_prefill=False, preemption=preemption, swap_blocks=10_000
    )
    return Case((kind,), (Slot(0, 1201), Slot(0, 700)), rows, settings)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("seed", range(3))
def test_equal_at_the_scale_of_real_engines(seed: int, preemption: str) -> None:
    case = large_case(seed, preemption)
    random = np.random.default_rng(seed)
    kernel, cluster = Kernel(case), build_oracle(case)
    while cluster.now < 20 * PS_PER_S:
        advance_both(kernel, cluster, cluster.now + int(random.exponential(5e11)))
    advance_both(kernel, cluster, 1000 * PS_PER_S)
    assert {request.fate for request in cluster.arrivals} == {"finished"}
    assert sum(engine.preemptions for engine in cluster.engines) > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_fork_continues_to_the_same_numbers(preemption: str) -> None:
    kernel = Kernel(large_case(3, preemption))
    kernel.advance(8 * PS_PER_S)
    for stop_s in (9.3, 11.1, 14.7):
        kernel.advance(int(stop_s * PS_PER_S))
        copy = kernel.fork()
        copy.advance(1000 * PS_PER_S)
        straight = Kernel(large_case(3, preemption))
        straight.advance(1000 * PS_PER_S)
        assert copy.requests() == straight.requests()


# -- by hand: an iteration takes 10 ps, copying a block 1 ps, blocks hold one token ------------------------------------


def served(
    *rows: tuple[int, int, int], blocks: int = 99, seqs: int = 4, budget: int = 100, **settings: Any
) -> tuple[list[tuple[str, int, int]], Kernel]:
    """Fate, first token and end of each request, ps; rows are arrival, prompt and output."""
    kind = Kind(
        [10] * (budget + 1), [10] * (budget + 1), 0, 0, 0, block_size=1, max_num_seqs=seqs,
        max_batched_tokens=budget, load_ps=1,
    )  # fmt: skip
    words = Settings(router="jsq", scheduler="v0", chunked_prefill=False, **settings)
    load = tuple(Row(at, prompt, output, output) for at, prompt, output in rows)
    case = Case((kind,), (Slot(0, blocks),), load, words)
    kernel, cluster = Kernel(case), build_oracle(case)
    advance_both(kernel, cluster, 10_000)
    found = kernel.requests()
    return [
        (str(found[i]["fate"]), int(found[i]["first_token_ps"]), int(found[i]["finish_ps"]))
        for i in range(len(rows))
    ], kernel


def test_a_prompt_stops_those_who_decode() -> None:
    # The second comes in the second iteration, is computed alone in the third, and both decode from 30 on.
    found, _ = served((0, 5, 4), (15, 5, 2))
    assert found == [("finished", 10, 50), ("finished", 30, 40)]


def test_prompts_are_computed_together_and_never_in_part() -> None:
    # Together the first two fill the budget; the third comes an iteration later, and decoding waits for that as well.
    found, _ = served((0, 6, 2), (0, 4, 2), (0, 7, 2), budget=10)
    assert found == [("finished", 10, 30), ("finished", 10, 30), ("finished", 20, 30)]


def test_a_prompt_beyond_the_budget_or_the_watermark_is_refused() -> None:
    found, _ = served((0, 11, 2), (0, 10, 2), budget=10)
    assert [fate for fate, _, _ in found] == ["refused", "finished"]
    found, _ = served((0, 199, 1), (0, 198, 1), budget=500, blocks=200)  # two of 200 blocks are to stay free
    assert [fate for fate, _, _ in found] == ["refused", "finished"]


def test_the_watermark_keeps_prompts_out_but_not_decoding() -> None:
    # 150 + 48 of 200 blocks leave the two that the watermark keeps. The third waits until the first two are over: they
    # decode once, which takes those two blocks.
    found, kernel = served((0, 150, 2), (0, 48, 2), (0, 1, 1), budget=500, blocks=200)
    assert found == [("finished", 10, 20), ("finished", 10, 20), ("finished", 30, 30)]
    assert kernel.engine(0)["preemptions"] == 0


def test_one_that_gives_way_is_first_in_the_queue_and_computed_as_a_whole() -> None:
    # Ten blocks and two places. At 20 none is free, and the second gives way with two tokens. From 30 on there is room
    # for the third, which came before, but it stands behind. At 60 the first is over, and both are computed.
    found, kernel = served((0, 4, 6), (0, 4, 4), (5, 1, 1), blocks=10, seqs=2)
    assert found == [("finished", 10, 60), ("finished", 10, 80), ("finished", 70, 70)]
    requests = kernel.requests()
    assert [requests[i]["preemptions"] for i in range(3)] == [0, 1, 0]
    assert kernel.engine(0)["prefilled_tokens"] == 4 + 4 + 6 + 1


def test_one_that_needs_no_block_gives_way_too_if_none_is_free() -> None:
    """Blocks of four tokens: two prompts of five leave two of four blocks half empty, and none free."""
    kind = Kind([10] * 41, [10] * 41, 0, 0, 0, block_size=4, max_num_seqs=4, max_batched_tokens=40)
    rows = tuple(Row(0, 5, 3, 3) for _ in range(2))
    old = Settings(router="jsq", scheduler="v0", chunked_prefill=False)
    for settings, preemptions in ((old, 2), (replace(old, scheduler="v1"), 0)):
        kernel = Kernel(Case((kind,), (Slot(0, 4),), rows, settings))
        kernel.advance(10_000)
        assert kernel.engine(0)["preemptions"] == preemptions


def test_one_that_is_swapped_out_comes_back_with_its_kv() -> None:
    # At 20 the second's five blocks are copied out, which takes 5 ps. The first ends at 25 + 40 = 65; then they are
    # copied in and the second decodes twice: 65 + 5 + 10 + 10.
    found, kernel = served((0, 4, 6), (0, 4, 4), blocks=10, preemption="swap", swap_blocks=5)
    assert found == [("finished", 10, 65), ("finished", 10, 90)]
    assert kernel.engine(0)["prefilled_tokens"] == 8
    assert kernel.world.engines["loaded_blocks"][0] == 5


def test_no_prompt_is_computed_while_one_is_swapped_out() -> None:
    # There is room for the third from 35 on. It is computed when the second is back, which stands still meanwhile.
    found, _ = served((0, 4, 6), (0, 4, 4), (5, 1, 1), blocks=10, seqs=2, preemption="swap", swap_blocks=5)
    assert found == [("finished", 10, 65), ("finished", 10, 100), ("finished", 90, 90)]


def test_a_full_host_fails_the_request() -> None:
    found, kernel = served((0, 4, 6), (0, 4, 4), blocks=10, preemption="swap", swap_blocks=4)
    assert found == [("finished", 10, 60), ("failed", 10, 20)]
    assert kernel.engine(0)["used_blocks"] == 0


def test_those_who_were_swapped_out_first_come_back_first() -> None:
    # The third gives way at 10, the second at 33. At 48 there is room for the third, which went first, at 61 for both;
    # at 76 the second gives way again, now the last of the list, and is back at 92.
    found, kernel = served((0, 3, 5), (0, 3, 6), (0, 3, 4), blocks=11, preemption="swap", swap_blocks=8)
    assert found == [("finished", 10, 61), ("finished", 10, 118), ("finished", 10, 92)]
    assert kernel.engine(0)["preemptions"] == 3


# -- in clusters -------------------------------------------------------------------------------------------------------


def workload(count: int, seed: int) -> Workload:
    random = np.random.default_rng(seed)
    output = random.integers(1, 300, count)
    return Workload(
        arrival_s=np.cumsum(random.exponential(0.02, count)),
        input_tokens=random.integers(1, 1500, count),
        output_tokens=output,
        max_output_tokens=output,
    )


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_node_serves_as_the_oracle_does(preemption: str) -> None:
    spec = replace(OLD, kv_blocks_override=1500, preemption=preemption)
    simulator = Simulator(spec, SLOS)
    simulator.reset(workload(150, 1))
    cluster = oracle_of(simulator)
    assert (cluster.settings.scheduler, cluster.settings.preemption) == ("v0", preemption)
    run_oracle(cluster)
    simulator.run_to_completion()
    records = simulator.results()
    assert records.preemptions.sum() > 0
    expected = [fate_of(request)["finish_ps"] / PS_PER_S for request in cluster.arrivals]
    assert records.finish_s.tolist() == expected


def test_none_is_the_scheduler_of_the_engine() -> None:
    assert [scheduler_of(engine) for engine in ("vllm-0.6", "vllm-0.11", "")] == ["v0", "v1", "v1"]
    assert (build_cluster(OLD, SLOS).tables.kinds["scheduler"] == V0).all()
    assert (build_cluster(replace(OLD, scheduler="v1"), SLOS).tables.kinds["scheduler"] == V1).all()
    assert (build_cluster(replace(OLD, chunked_prefill=True), SLOS).tables.kinds["scheduler"] == V1).all()
    assert (build_cluster(replace(OLD, preemption="swap"), SLOS).tables.kinds["scheduler"] == V0_SWAP).all()
    new = replace(REPLICA, engine="vllm-0.15")
    fleet = FleetSpec((GroupSpec(REPLICA, 1), GroupSpec(new, 1)), chunked_prefill=False)
    assert build_fleet(fleet, SLOS).tables.kinds["scheduler"].tolist() == [V0, V1]
    machines = DeploymentSpec(model="llama-3.1-70b", engine="vllm-0.6", num_machines=1, chunked_prefill=False)
    assert (build_factory(machines, SLOS).tables.kinds["scheduler"] == V0).all()


def test_swapping_takes_as_long_as_the_link_to_the_host_does() -> None:
    spec = replace(OLD, preemption="swap", swap_gib=1.0)
    kinds = build_cluster(spec, SLOS).tables.kinds
    fleet = FleetSpec((GroupSpec(REPLICA, 1),), chunked_prefill=False, preemption="swap", swap_gib=1.0)
    others = build_fleet(fleet, SLOS).tables.kinds
    block_bytes = 80 * 2 * 8 * 128 * 2 * 16 / 4  # layers, K and V, heads, head size, bytes, tokens; of 4 GPUs
    assert kinds["load_ps"][0] == pytest.approx(block_bytes / 64e9 * PS_PER_S, rel=1e-6)
    assert kinds["load_ps"][0] == others["load_ps"][0]
    assert kinds["swap_blocks"][0] == others["swap_blocks"][0] == 2**30 // block_bytes


def test_a_fleet_under_pressure_loses_nobody() -> None:
    replica = replace(REPLICA, kv_blocks=1500)
    fleet = FleetSpec((GroupSpec(replica, 2),), chunked_prefill=False, preemption="swap", swap_gib=4.0)
    simulator = FleetSimulator(fleet, SLOS)
    simulator.reset(workload(300, 2))
    simulator.run_to_completion()
    records = simulator.results()
    assert records.preemptions.sum() > 0
    assert np.isfinite(records.finish_s).all()
    assert (simulator.world.engines["host_used"] == 0).all()
    assert (simulator.world.engines["used_blocks"] == 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduler": "v2"}, "scheduler.*'v2'.*allowed: v1, v0"),
        ({"preemption": "swop"}, "did you mean 'swap'"),
        ({"swap_gib": -1.0}, "swap_gib must be finite and not negative, got -1.0"),
        ({"scheduler": "v0", "chunked_prefill": True}, "scheduler=v0 needs chunked_prefill=false"),
        ({"order": "priority"}, r"\(the scheduler of vllm-0.6\) needs order=fcfs, got priority"),
        ({"prefix_caching": True}, "scheduler=v0 .* needs prefix_caching=false"),
        ({"async_scheduling": True}, "scheduler=v0 .* needs async_scheduling=false"),
        ({"max_num_seqs": 256, "max_num_batched_tokens": 128}, r"at least max_num_seqs \(256\)"),
        ({"scheduler": "v1", "preemption": "swap"}, "preemption=swap needs cluster.scheduler=v0"),
    ],
)
def test_what_it_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_cluster(replace(OLD, **changes), SLOS)


def test_workers_that_only_prefill_are_refused() -> None:
    groups = tuple(GroupSpec(replace(REPLICA, role=role), 1) for role in ("prefill", "decode"))
    with pytest.raises(ValueError, match=r"scheduler=v0 .* needs replicas that prefill and decode"):
        build_fleet(FleetSpec(groups, chunked_prefill=False), SLOS)
