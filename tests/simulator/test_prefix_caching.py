"""Prefix caching: blocks are conserved, hits save exactly what they hit, and a workload without ids is unaffected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.kernel.state import ANONYMOUS
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(1.0, 0.1),)
BLOCK = 16


def cluster(num_gpus: int = 1, caching: bool = True, memory: float = 0.8, seqs: int = 16) -> ClusterSpec:
    """Engines of one GPU each."""
    return ClusterSpec(
        model="llama-3.1-8b",
        gpu="H100",
        num_gpus=num_gpus,
        max_num_seqs=seqs,
        max_num_batched_tokens=512,
        router="round_robin",
        order="fcfs",
        memory_utilization=memory,
        prefix_caching=caching,
        engine="",
    )


def conversations(seed: int, requests: int, gap_s: float = 0.05) -> Workload:
    """Prompts drawn from a small tree: each repeats the beginning of an earlier one and goes on by itself."""
    random = np.random.default_rng(seed)
    paths: list[list[int]] = []
    new_id = 0
    for _ in range(requests):
        path = list(paths[random.integers(len(paths))]) if paths and random.random() < 0.8 else []
        path = path[: random.integers(len(path) + 1)]
        extra = int(random.integers(1, 40))
        path += range(new_id, new_id + extra)
        new_id += extra
        paths.append(path)
    lengths = [len(path) for path in paths]
    return Workload(
        arrival_s=np.cumsum(random.exponential(gap_s, requests)),
        input_tokens=np.array([BLOCK * n - random.integers(BLOCK) for n in lengths]),
        output_tokens=random.integers(1, 60, requests),
        hash_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        hash_ids=np.concatenate(paths),
        hash_block_tokens=BLOCK,
    )


def free_blocks(simulator: Simulator, e: int) -> int:
    """Blocks in an engine's list of free ones, which is well formed."""
    world = simulator.world
    total, before, x = 0, -1, int(world.engines["free_first"][e])
    while x >= 0:
        extent = world.extents[x]
        assert extent["refs"] == 0
        assert extent["prev"] == before
        assert extent["end"] > extent["start"]
        total += int(extent["end"] - extent["start"])
        before, x = x, int(extent["next"])
    assert world.engines["free_last"][e] == before
    return total


def copies(simulator: Simulator, e: int) -> list[int]:
    """Extents that hold something shared in an engine."""
    world = simulator.world
    found = []
    for node, first in enumerate(world.node_extents[e]):
        x = int(first)
        while x >= 0:
            assert world.extents[x]["node"] == node
            found.append(x)
            x = int(world.extents[x]["sibling"])
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.26, 0.27, 0.8]), st.integers(1, 2))
def test_blocks_are_conserved(seed: int, memory: float, num_gpus: int) -> None:
    """Used and free blocks add up to the pool at every instant, and all are free in the end."""
    simulator = Simulator(cluster(num_gpus, memory=memory), SLOS)
    simulator.reset(conversations(seed, 60))
    engines = simulator.world.engines
    for until_s in np.linspace(0.1, 6.0, 25):
        simulator.advance(float(until_s))
        engines = simulator.world.engines
        for e in np.flatnonzero(engines["status"] == 1):
            assert free_blocks(simulator, e) + engines["used_blocks"][e] == engines["capacity_blocks"][e]
            held = [x for x in copies(simulator, e) if simulator.world.extents[x]["refs"] > 0]
            sizes = simulator.world.extents[held]
            assert (sizes["end"] - sizes["start"]).sum() <= engines["used_blocks"][e]
    simulator.run_to_completion()
    engines = simulator.world.engines
    assert (engines["used_blocks"] == 0).all()
    cluster_row = simulator.world.cluster[0]
    assert cluster_row["num_free_holds"] == len(simulator.world.holds)
    free = sum(1 for extent in simulator.world.extents if extent["node"] != ANONYMOUS and extent["refs"] > 0)
    assert free == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_tokens_are_either_cached_or_computed(seed: int) -> None:
    """Where nothing is preempted, every prompt token is found in the cache or prefilled."""
    workload = conversations(seed, 60)
    simulator = Simulator(cluster(), SLOS)
    simulator.reset(workload)
    simulator.run_to_completion()
    engines = simulator.world.engines
    assert engines["preemptions"].sum() == 0
    total = engines["cached_tokens"].sum() + engines["prefilled_tokens"].sum()
    assert total == workload.input_tokens.sum()
    assert engines["cached_tokens"].sum() > 0
    assert simulator.results().cached_tokens.sum() == engines["cached_tokens"].sum()


def test_a_repeated_prompt_is_hit_but_for_its_last_block() -> None:
    """The last token must be computed, and blocks are hit whole (vLLM's get_computed_blocks)."""
    workload = Workload(
        arrival_s=np.array([0.0, 5.0, 10.0]),
        input_tokens=np.array([64, 64, 70]),
        output_tokens=np.full(3, 4),
        hash_offsets=np.array([0, 4, 8, 12]),
        hash_ids=np.array([0, 1, 2, 3] * 3),
        hash_block_tokens=BLOCK,
    )
    simulator = Simulator(cluster(), SLOS)
    simulator.reset(workload)
    simulator.run_to_completion()
    assert simulator.results().cached_tokens.tolist() == [0, 48, 64]


def test_ids_beyond_the_prompt_name_what_was_generated() -> None:
    """A later turn of a conversation hits the answer of the earlier one."""
    workload = Workload(
        arrival_s=np.array([0.0, 5.0]),
        input_tokens=np.array([32, 96]),
        output_tokens=np.array([33, 4]),
        hash_offsets=np.array([0, 4, 10]),
        hash_ids=np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 5]),
        hash_block_tokens=BLOCK,
    )
    simulator = Simulator(cluster(), SLOS)
    simulator.reset(workload)
    simulator.run_to_completion()
    assert simulator.results().cached_tokens.tolist() == [0, 64]


@pytest.mark.parametrize("memory", [0.26, 0.8])
def test_a_workload_without_ids_runs_as_without_caching(memory: float) -> None:
    """Nothing is shared; only a preempted request may find its own blocks again."""
    workload = conversations(3, 200, gap_s=0.01)
    plain = Workload(workload.arrival_s, workload.input_tokens, workload.output_tokens)
    finish = []
    for caching in (False, True):
        simulator = Simulator(cluster(caching=caching, memory=memory), SLOS)
        simulator.reset(plain)
        simulator.run_to_completion()
        finish.append(simulator.results().finish_s)
    if simulator.world.engines["preemptions"].sum() == 0:
        np.testing.assert_array_equal(*finish)


def test_a_fork_continues_to_the_same_numbers() -> None:
    """The cache is part of what is copied."""
    simulator = Simulator(cluster(num_gpus=2, memory=0.27), SLOS)
    simulator.reset(conversations(5, 200, gap_s=0.01))
    simulator.advance(1.0)
    fork = simulator.fork()
    fork.run_to_completion()
    simulator.run_to_completion()
    np.testing.assert_array_equal(simulator.results().finish_s, fork.results().finish_s)
    assert simulator.results().cached_tokens.sum() > 0


def test_ids_that_contradict_each_other_are_refused() -> None:
    """Equal ids mean equal prompts up to there."""
    workload = Workload(
        arrival_s=np.array([0.0, 1.0]),
        input_tokens=np.array([32, 32]),
        output_tokens=np.array([1, 1]),
        hash_offsets=np.array([0, 2, 4]),
        hash_ids=np.array([0, 1, 2, 1]),
        hash_block_tokens=BLOCK,
    )
    with pytest.raises(ValueError, match="hash_ids"):
        Simulator(cluster(), SLOS).reset(workload)


def test_blocks_that_do_not_fit_the_ids_are_refused() -> None:
    """A block must be made of whole ids or lie within one."""
    workload = conversations(0, 4)
    odd = Workload(
        workload.arrival_s,
        workload.input_tokens,
        workload.output_tokens,
        hash_offsets=workload.hash_offsets,
        hash_ids=workload.hash_ids,
        hash_block_tokens=24,
    )
    with pytest.raises(ValueError, match="hash_block_tokens"):
        Simulator(cluster(), SLOS).reset(odd)
