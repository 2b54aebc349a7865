"""Resizing KV pools: it takes its time, blocks are used or free, and what would not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.calibration.transitions import kv_resize_s
from serving_gym.envs.interface.fleet import Crash, FleetSpec, GroupSpec, ReplicaSpec, ResizeKV, Stop
from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(1.0, 0.1),)
BLOCK_BYTES = 16 * 2 * 32 * 8 * 128 * 2  # 16 tokens, keys and values, 32 layers, 8 heads of 128, 2 bytes


def fleet(
    kv_blocks: int = 1000, count: int = 1, faults: tuple[Crash, ...] = (), until_s: float = 0.2
) -> FleetSimulator:
    """Replicas with some requests that run."""
    replica = ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=kv_blocks)
    simulator = FleetSimulator(FleetSpec((GroupSpec(replica, count),), start_fixed_s=2.0, engine=""), SLOS)
    rows = 4
    load = Workload(
        np.linspace(0, 0.4, rows),
        np.full(rows, 200),
        np.full(rows, 100),
        max_output_tokens=np.full(rows, 120),
    )
    simulator.reset(load, faults)
    simulator.advance(until_s)
    return simulator


@pytest.mark.parametrize("kv_blocks", [8000, 20000])
def test_the_replica_stands_still_as_long_as_the_copy_takes(kv_blocks: int) -> None:
    simulator = fleet(16000)
    before = simulator.world.engines["generated_tokens"][0]
    assert simulator.apply(ResizeKV(0, kv_blocks)).accepted
    assert "being resized" in simulator.apply(ResizeKV(0, 500)).reason
    simulator.advance(0.22)
    (operation,) = simulator.observe().operations
    took_s = kv_resize_s(16000 * BLOCK_BYTES, kv_blocks * BLOCK_BYTES)
    assert operation.kind == "resizing"
    simulator.advance(operation.due_s - 1e-6)
    assert simulator.world.engines["generated_tokens"][0] - before <= 4, (
        "at most the iteration in flight went on"
    )
    assert 0.2 < operation.due_s - took_s < 0.22
    simulator.run_to_completion()
    assert (simulator.results().outcome == FINISHED).all()
    assert simulator.results().preemptions.sum() == 0
    engine = simulator.observe().engines[0]
    assert (engine["kv_used_blocks"], engine["kv_capacity_blocks"]) == (0, kv_blocks)
    assert simulator.world.endpoints["max_request_tokens"][0] == min(16 * kv_blocks, 131_072)


def test_the_paper_s_numbers() -> None:
    """LLM-Mesh, section 6.2: 32 GB to 16 GB in 0.3 s, to 64 GB in 1.9 s."""
    assert kv_resize_s(32e9, 16e9) == pytest.approx(0.3)
    assert kv_resize_s(32e9, 64e9) == pytest.approx(1.9)


@pytest.mark.parametrize(
    ("kv_blocks", "reason"),
    [(1000, "already"), (10, "uses"), (19, "grow beyond"), (10**6, "GPU memory for")],
)
def test_what_does_not_fit_is_refused_with_a_reason(kv_blocks: int, reason: str) -> None:
    simulator = fleet(until_s=0.1)
    receipt = simulator.apply(ResizeKV(0, kv_blocks))
    assert (receipt.accepted, simulator.refused_commands) == (False, 1)
    assert reason in receipt.reason


def test_a_request_that_waits_for_a_large_pool_is_not_lost() -> None:
    simulator = FleetSimulator(
        FleetSpec(
            (GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=1000, max_num_seqs=1), 1),), engine=""
        ),
        SLOS,
    )
    load = Workload(
        np.zeros(3), np.array([200, 9000, 200]), np.full(3, 100), max_output_tokens=np.full(3, 120)
    )
    simulator.reset(load)
    simulator.advance(0.1)
    assert "a request waits" in simulator.apply(ResizeKV(0, 500)).reason
    simulator.run_to_completion()
    assert (simulator.results().outcome == FINISHED).all()


def test_a_smaller_pool_refuses_longer_requests_and_stays_through_a_crash() -> None:
    simulator = fleet(faults=(Crash(0.5, 0),))
    simulator.apply(ResizeKV(0, 400))
    simulator.advance(20.0)
    assert simulator.observe().engines["kv_capacity_blocks"].tolist() == [400]
    simulator.append(Workload(np.array([21.0]), np.array([6400]), np.array([1])))
    simulator.run_to_completion()
    assert simulator.observe().totals[0, TOTALS.index("refused")] == 1


@pytest.mark.parametrize("kv_blocks", [400, 4000])
def test_a_stop_or_a_crash_breaks_a_resize_off(kv_blocks: int) -> None:
    for breaks in ("stop", "crash"):
        simulator = fleet(count=2, faults=(Crash(0.21, 0),) if breaks == "crash" else ())
        assert simulator.apply(ResizeKV(0, kv_blocks)).accepted
        if breaks == "stop":
            assert simulator.apply(Stop(0)).accepted
        simulator.run_to_completion()
        simulator.advance(simulator.now_s + 20.0)
        assert simulator.observe().engines["kv_capacity_blocks"].tolist() == [1000, 1000]
        assert simulator.observe().operations == ()
