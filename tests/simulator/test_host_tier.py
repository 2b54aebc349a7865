"""KV beyond the GPU: a tier in host memory whose blocks are conserved, and whose loads take time and no computing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(1.0, 0.1),)
BLOCK = 16


def fleet(host_kv_gib: float = 4.0, kv_blocks: int = 100, count: int = 1, **changes: object) -> FleetSpec:
    replica = ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=kv_blocks, block_size=BLOCK)
    return FleetSpec(
        (GroupSpec(replica, count),), prefix_caching=True, host_kv_gib=host_kv_gib, **changes, engine=""
    )  # type: ignore[arg-type]


def prompts(*names: str, tokens: int = 1200, gap_s: float = 1.0) -> Workload:
    """Requests one after another; those of one name have one prompt."""
    blocks = -(-tokens // BLOCK)
    first = {name: number * blocks for number, name in enumerate(dict.fromkeys(names))}
    ids = np.concatenate([np.arange(blocks) + first[name] for name in names])
    return Workload(
        arrival_s=np.arange(len(names)) * gap_s,
        input_tokens=np.full(len(names), tokens),
        output_tokens=np.full(len(names), 4),
        hash_offsets=np.arange(len(names) + 1) * blocks,
        hash_ids=ids,
        hash_block_tokens=BLOCK,
    ).validate()


def played(workload: Workload, spec: FleetSpec) -> FleetSimulator:
    simulator = FleetSimulator(spec, SLOS)
    simulator.reset(workload)
    simulator.run_to_completion()
    assert simulator.idle
    return simulator


def assert_conserved(simulator: FleetSimulator) -> None:
    """What an engine counts on the host is what its nodes have there, and no more than fits."""
    for engine, nodes in zip(simulator.world.engines, simulator.world.host, strict=True):
        held = nodes["end"] - nodes["begin"]
        assert (held >= 0).all()
        assert held.sum() == engine["host_used"] <= engine["host_blocks"]
        chain, node = [], int(engine["host_first"])
        while node >= 0:
            chain.append(node)
            node = int(nodes["next"][node])
        assert sorted(chain) == np.flatnonzero(held).tolist()


def test_what_the_gpu_has_forgotten_is_loaded_from_the_host() -> None:
    """Two prompts that do not fit the GPU together: the first one comes back from the host, but for its last token."""
    workload = prompts("a", "b", "a")
    without = played(workload, fleet(host_kv_gib=0.0)).results()
    simulator = played(workload, fleet())
    records = simulator.results()
    assert without.cached_tokens[2] < 1184
    assert records.cached_tokens.tolist() == [0, 0, (1200 - 1) // BLOCK * BLOCK]
    assert records.ttft_s[2] < without.ttft_s[2]
    assert_conserved(simulator)


def test_a_load_takes_its_blocks_over_the_link() -> None:
    """Worked by hand: bytes of the blocks that the GPU has not, over the bandwidth, before the request is scheduled."""
    slow = fleet(host_bytes_per_s=1e9)
    simulator = played(prompts("a", "b", "a"), slow)
    records = simulator.results()
    loaded = int(simulator.world.engines["loaded_blocks"][0])
    kv_bytes = 2 * 32 * 8 * 128 * 2  # keys and values, layers, heads, width, bytes
    assert 0 < loaded <= 74
    waited_s = records.first_scheduled_s[2] - records.arrival_s[2]
    assert waited_s == pytest.approx(loaded * BLOCK * kv_bytes / 1e9, rel=1e-6)


def test_an_engine_goes_on_while_it_loads() -> None:
    """A request that comes behind one that is being loaded is served first."""
    workload = prompts("a", "b", "a", "c")
    late = replace(workload, arrival_s=np.array([0.0, 1.0, 2.0, 2.001]))
    records = played(late, fleet(host_bytes_per_s=5e8)).results()
    assert records.first_scheduled_s[3] < records.first_scheduled_s[2]


def test_the_host_forgets_what_was_used_longest_ago() -> None:
    """Room for one prompt: of two the later one stays."""
    one = 80 * BLOCK * 131072 / 2**30
    simulator = played(prompts("a", "b", "b", "a"), fleet(host_kv_gib=one))
    assert_conserved(simulator)
    assert simulator.world.engines["host_used"][0] <= 80


SMALL = {
    "history_s": 30.0, "human_median_s": 0.5, "longest_wait_s": 2.0, "mean_steps": 3.0, "sub_agent_share": 0.1,
    "shared_tokens": 300, "sub_agent_tokens": 200, "context_tokens": 4000, "compacted_tokens": 100,
    "longest_output_tokens": 300,
}  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.01, 0.1, 1.0]), st.sampled_from([1e8, 1e10, None]))
def test_blocks_are_conserved(seed: int, host_kv_gib: float, host_bytes_per_s: float | None) -> None:
    """Coding agents on small engines, some of whose clients hang up: nothing is lost and nothing is left behind."""
    spec = WorkloadSpec(
        "agentic_coding", num_requests=120, rate_rps=20.0, params={**SMALL, "patience_s": 5.0}
    )
    workload = WorkloadSource(spec).sample(seed)
    simulator = FleetSimulator(fleet(host_kv_gib, 400, 2, host_bytes_per_s=host_bytes_per_s), SLOS)
    simulator.reset(workload)
    while not simulator.idle:
        simulator.advance(simulator.now_s + 0.5)
        assert_conserved(simulator)
        assert (simulator.world.engines["used_blocks"] <= simulator.world.engines["capacity_blocks"]).all()
    assert simulator.world.engines["used_blocks"].sum() == 0
    assert simulator.world.cluster["num_in_flight"][0] == 0


def test_a_fork_loads_on_its_own() -> None:
    simulator = FleetSimulator(fleet(host_bytes_per_s=1e9), SLOS)
    simulator.reset(prompts("a", "b", "a", "b", "a"))
    simulator.advance(2.05)
    fork = simulator.fork()
    fork.run_to_completion()
    simulator.run_to_completion()
    np.testing.assert_array_equal(simulator.results().finish_s, fork.results().finish_s)
    assert_conserved(fork)


def test_it_is_off_by_default_and_needs_prefix_caching() -> None:
    assert FleetSpec((GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1),), engine="").host_kv_gib == 0.0
    with pytest.raises(ValueError, match="prefix_caching"):
        FleetSpec((GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1),), host_kv_gib=1.0, engine="")
    with pytest.raises(ValueError, match="host_kv_gib"):
        fleet(-1.0)
