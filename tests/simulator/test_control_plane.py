"""The control plane: each way to switch does to running requests what Flying Serving says it does."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec, Fault
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import all_layouts
from serving_gym.envs.interface.metrics import FAILED, FINISHED, REFUSED, UNFINISHED
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload

SPEC = ClusterSpec(num_gpus=4, router="jsq", engine="")
DP, TP = (1, 1, 1, 1), (4,)
SWITCH_S = 0.015


def workload(*rows: tuple[float, int, int], max_output: int = 4000) -> Workload:
    """Requests as (arrival_s, input_tokens, output_tokens)."""
    arrival, prompt, output = zip(*rows, strict=True)
    return Workload(
        arrival_s=np.array(arrival, float),
        input_tokens=np.array(prompt),
        output_tokens=np.array(output),
        max_output_tokens=np.full(len(rows), max_output),
    )


def start(load: Workload, spec: ClusterSpec = SPEC, faults: tuple[Fault, ...] = ()) -> Simulator:
    simulator = Simulator(spec, (SLO(1.0, 0.05),))
    simulator.reset(load, faults)
    return simulator


def statuses(simulator: Simulator) -> list[str]:
    """Status of every engine slot that is not inactive."""
    rows = simulator.observe().engines
    return [EngineStatus(s).name for s in rows["status"] if s != EngineStatus.INACTIVE]


def run_until_layout(simulator: Simulator, layout: tuple[int, ...], limit_s: float = 500.0) -> float:
    """Advances in millisecond steps until the layout stands; returns when."""
    while simulator.observe().layout != layout or simulator.observe().transitions:
        assert simulator.now_s < limit_s, "the switch never came about"
        simulator.advance(simulator.now_s + 0.001)
    return simulator.now_s


def test_sequential_waits_for_the_straggler() -> None:
    simulator = start(workload((0.0, 100, 50), (0.0, 100, 400)))
    simulator.advance(0.05)
    assert simulator.apply(SetLayout(TP)).accepted
    switched = run_until_layout(simulator, TP)
    finish = simulator.results().finish_s
    assert switched == pytest.approx(finish.max() + SWITCH_S, abs=0.0011)
    assert simulator.results().preemptions.sum() == 0


def test_nothing_new_starts_while_a_sequential_switch_drains() -> None:
    simulator = start(workload((0.0, 100, 400), (0.1, 100, 10)))
    simulator.advance(0.05)
    simulator.apply(SetLayout(TP))
    simulator.advance(0.2)
    assert simulator.observe().num_pooled == 1
    switched = run_until_layout(simulator, TP)
    assert simulator.results().first_scheduled_s[1] == pytest.approx(switched, abs=0.0011)


def test_soft_serves_speculatively_and_recomputes_after() -> None:
    simulator = start(workload((0.0, 100, 600), (0.1, 100, 900)))
    simulator.advance(0.05)
    simulator.apply(SetLayout(TP, SwitchMode.SOFT))
    simulator.advance(0.2)
    assert statuses(simulator).count("SPECULATIVE") == 3
    assert simulator.observe().num_pooled == 0
    straggler_done = None
    while simulator.observe().layout != TP:
        simulator.advance(simulator.now_s + 0.001)
        if straggler_done is None and np.isfinite(simulator.results().finish_s[0]):
            straggler_done = simulator.now_s
            progress = simulator.results().generated_tokens[1]
            assert progress > 0
    assert straggler_done is not None
    simulator.run_to_completion()
    records = simulator.results()
    assert records.preemptions.tolist() == [0, 1]
    assert records.generated_tokens.tolist() == [600, 900]
    assert records.engine[1] == len(simulator.cluster.groups) - 1, "it ends on the merged engine"


def test_hard_pauses_in_place_and_resumes_without_recomputing() -> None:
    simulator = start(workload((0.0, 1000, 400), (1.0, 1000, 20)))
    simulator.advance(0.5)
    before = simulator.results().generated_tokens[0]
    simulator.apply(SetLayout(TP, SwitchMode.HARD))
    simulator.advance(0.6)
    assert statuses(simulator).count("PAUSED") == 1
    paused_at = simulator.results().generated_tokens[0]
    assert paused_at - before <= 2, "at most the iteration in flight goes on"
    merged = simulator.observe().engines[-1]
    paused = simulator.observe().engines[simulator.observe().engines["status"] == EngineStatus.PAUSED][0]
    whole = simulator.cluster.blocks_per_base
    assert merged["kv_capacity_blocks"] == whole - paused["kv_used_blocks"], (
        "blocks of both degrees share the pool"
    )
    simulator.advance(2.0)
    assert simulator.results().generated_tokens[0] == paused_at
    assert np.isfinite(simulator.results().finish_s[1]), "the TP request is served meanwhile"
    simulator.apply(SetLayout(DP))
    simulator.run_to_completion()
    records = simulator.results()
    assert records.preemptions.sum() == 0
    assert records.generated_tokens.tolist() == [400, 20]
    assert simulator.world.engines["prefilled_tokens"].sum() == 2000


def test_hard_split_recomputes_the_requests_of_the_group() -> None:
    simulator = start(workload((0.0, 1000, 400)), ClusterSpec(num_gpus=4, router="jsq", layout=TP, engine=""))
    simulator.advance(0.5)
    done = simulator.results().generated_tokens[0]
    simulator.apply(SetLayout(DP, SwitchMode.HARD))
    simulator.run_to_completion()
    records = simulator.results()
    assert records.preemptions.tolist() == [1]
    recomputed = simulator.world.engines["prefilled_tokens"].sum() - 1000
    assert 1000 + done <= recomputed <= 1000 + done + 2


def test_paused_requests_are_recomputed_when_their_group_is_cut_smaller() -> None:
    simulator = start(
        workload((0.0, 1000, 400)), ClusterSpec(num_gpus=4, router="jsq", layout=(2, 2), engine="")
    )
    simulator.advance(0.3)
    simulator.apply(SetLayout(TP, SwitchMode.HARD))
    run_until_layout(simulator, TP)
    simulator.apply(SetLayout(DP, SwitchMode.SEQUENTIAL))
    simulator.run_to_completion()
    assert simulator.results().preemptions.tolist() == [1]
    assert simulator.results().outcome.tolist() == [FINISHED]


def test_the_first_layout_is_chosen_for_nothing() -> None:
    simulator = start(workload((0.0, 100, 5)))
    assert simulator.apply(SetLayout((2, 2))).accepted
    state = simulator.observe()
    assert (state.layout, state.transitions) == ((2, 2), ())
    assert statuses(simulator) == ["ACTIVE", "ACTIVE"]
    assert simulator.apply(SetLayout((4,))).accepted, "it may be thought over until the clock starts"
    simulator.run_to_completion()
    assert simulator.results().engine.tolist() == [len(simulator.cluster.groups) - 1]


def test_regions_switch_independently() -> None:
    simulator = start(workload((0.0, 100, 2000)))
    simulator.advance(0.05)
    simulator.apply(SetLayout((2, 2)))
    simulator.advance(0.2)
    state = simulator.observe()
    assert state.layout == (1, 1, 2), "the idle half is merged while the other waits for its straggler"
    assert state.target_layout == (2, 2)
    assert not simulator.apply(SetLayout(TP)).accepted
    assert simulator.apply(SetLayout((2, 1, 1))).accepted, "the free half may change again"


def test_a_waiting_switch_can_be_hurried() -> None:
    simulator = start(workload((0.0, 100, 2000)))
    simulator.advance(0.05)
    simulator.apply(SetLayout(TP))
    simulator.advance(0.2)
    assert simulator.apply(SetLayout(TP, SwitchMode.HARD)).accepted
    assert run_until_layout(simulator, TP) == pytest.approx(0.2 + SWITCH_S, abs=0.01)


def test_redeploy_is_free_at_the_start_and_costs_a_cold_start_later() -> None:
    spec = ClusterSpec(model="llama-3-70b", num_gpus=8, base_width=2, router="jsq", engine="")
    simulator = start(workload((1.0, 100, 400), (400.0, 100, 10)), spec)
    assert simulator.apply(Redeploy((4,))).accepted
    assert simulator.observe().layout == (4,)
    assert not simulator.apply(SetLayout((1, 1, 1, 1))).accepted, "sharded weights cannot be switched live"
    simulator.advance(1.5)
    simulator.apply(Redeploy((1, 1, 1, 1)))
    assert set(statuses(simulator)) == {"DOWN"}
    simulator.run_to_completion()
    first = simulator.results()
    assert first.preemptions[0] == 1
    assert first.finish_s[0] > 1.5 + 292.38
    assert simulator.observe().layout == (1, 1, 1, 1)


def test_a_cold_start_with_whole_weights_builds_the_communicator_pool() -> None:
    spec = ClusterSpec(model="llama-3-70b", num_gpus=8, base_width=2, router="jsq", engine="")
    ends = {}
    for weights in ("sharded", "whole"):
        simulator = start(workload((0.5, 100, 4)), spec)
        simulator.advance(1.0)
        simulator.apply(Redeploy((1, 1, 1, 1), weights=weights))
        (restart,) = simulator.observe().transitions
        assert restart.mode is None
        assert restart.due_s is not None
        ends[weights] = restart.due_s
    assert ends["sharded"] == pytest.approx(1.0 + 292.38)
    assert ends["whole"] == pytest.approx(ends["sharded"] + 3.0), (
        "groups of 2, 2 and 4 base engines, 1 s each"
    )


def test_a_failed_gpu_loses_what_was_streaming_and_comes_back() -> None:
    fault = Fault(0.5, 0)
    load = workload((0.0, 100, 900), (0.0, 100, 900), (0.6, 100, 10))
    simulator = start(load, ClusterSpec(num_gpus=2, router="jsq", cold_start_s=None, engine=""), (fault,))
    simulator.advance(0.7)
    assert sorted(statuses(simulator)) == ["ACTIVE", "DOWN"]
    simulator.run_to_completion()
    outcomes = simulator.results().outcome.tolist()
    assert outcomes == [FAILED, FINISHED, FINISHED]
    simulator.advance(400.0)
    assert statuses(simulator) == ["ACTIVE", "ACTIVE"]


def test_a_request_that_fits_no_engine_waits_and_one_that_never_fits_is_refused() -> None:
    simulator = start(workload((0.0, 700_000, 10), (0.0, 40_000_000, 10), max_output=10))
    one = simulator.observe().engines["kv_capacity_tokens"][0]
    assert one < 700_010 * 4
    spec = ClusterSpec(
        model="llama-3-70b", num_gpus=8, base_width=2, router="jsq", max_model_len=100_000_000, engine=""
    )
    simulator = start(workload((0.0, 300_000, 10), (0.0, 40_000_000, 10), max_output=10), spec)
    simulator.advance(5.0)
    assert simulator.observe().num_pooled == 1
    assert simulator.results().outcome.tolist() == [UNFINISHED, REFUSED]
    simulator.apply(SetLayout((2, 1, 1)))
    simulator.run_to_completion()
    assert simulator.results().outcome.tolist() == [FINISHED, REFUSED]


@pytest.mark.parametrize("seed", range(6))
def test_random_commands_lose_nothing_and_forks_agree(seed: int) -> None:
    """Requests and blocks are conserved under any commands, and a fork continues to the same numbers."""
    rng = np.random.default_rng(seed)
    count = 120
    load = workload(
        *zip(
            np.sort(rng.uniform(0, 20, count)).tolist(),
            rng.integers(1, 6000, count).tolist(),
            rng.integers(1, 300, count).tolist(),
            strict=True,
        ),
        max_output=300,
    )
    faults = (Fault(float(rng.uniform(5, 15)), int(rng.integers(4))),) if seed % 2 else ()
    spec = ClusterSpec(
        num_gpus=4, router="jsq", cold_start_s={1: 2.0, 2: 2.0, 4: 2.0}, switch_s=0.015, engine=""
    )
    simulator = start(load, spec, faults)
    layouts = all_layouts(4)
    fork = None
    commands = []
    for step in range(60):
        command = SetLayout(layouts[rng.integers(len(layouts))], SwitchMode(int(rng.integers(3))))
        commands.append(command if rng.random() < 0.5 else None)
        if step == 20 + seed:
            fork, fork_at = simulator.fork(), step
        if commands[-1]:
            simulator.apply(commands[-1])
        simulator.advance(simulator.now_s + 0.4)
        check_conservation(simulator)
    simulator.apply(SetLayout(DP, SwitchMode.HARD))
    simulator.run_to_completion(100.0)
    assert fork is not None
    for command in commands[fork_at:]:
        if command:
            fork.apply(command)
        fork.advance(fork.now_s + 0.4)
    fork.apply(SetLayout(DP, SwitchMode.HARD))
    fork.run_to_completion(100.0)
    mine, theirs = simulator.results(), fork.results()
    for name in (
        "first_scheduled_s",
        "first_token_s",
        "finish_s",
        "generated_tokens",
        "preemptions",
        "outcome",
    ):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    assert simulator.latency_cost == fork.latency_cost


def check_conservation(simulator: Simulator) -> None:
    engines, cluster = simulator.world.engines, simulator.world.cluster[0]
    outcomes = simulator.results().outcome
    assert (outcomes == UNFINISHED).sum() == cluster["num_in_flight"]
    assert (
        engines["num_running"].sum() + engines["num_waiting"].sum() + cluster["num_pooled"]
        == cluster["num_in_flight"]
    )
    assert (engines["used_blocks"] <= np.maximum(engines["capacity_blocks"], engines["total_blocks"])).all()
    for slot in range(len(engines)):
        if engines["num_running"][slot] == 0:
            assert engines["used_blocks"][slot] == 0
            assert engines["decode_context"][slot] == 0
    for base in range(simulator.spec.num_base):
        resident = sum(
            int(engines["used_blocks"][slot])
            for slot, group in enumerate(simulator.cluster.groups)
            if base in group.members
        )
        assert resident <= simulator.cluster.blocks_per_base
