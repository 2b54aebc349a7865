"""Disaggregated prefill: some replicas compute prompts, others what comes after, and KV travels between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec, Stop
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.state import FREE
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(1.0, 0.1),)


def fleet(prefill: int = 2, decode: int = 2, blocks: int | None = None, **options: object) -> FleetSpec:
    """Replicas of one GPU."""
    groups = tuple(
        GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", role=role, max_num_seqs=16, kv_blocks=blocks), count)
        for role, count in (("decode", decode), ("prefill", prefill))
    )
    return FleetSpec(groups, **options, engine="")  # type: ignore[arg-type]


def load(requests: int, seed: int = 0, gap_s: float = 0.02) -> Workload:
    """Prompts and outputs of all sizes, some of one token."""
    random = np.random.default_rng(seed)
    return Workload(
        arrival_s=np.cumsum(random.exponential(gap_s, requests)),
        input_tokens=random.integers(1, 1500, requests),
        output_tokens=random.integers(1, 60, requests),
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([130, 400, None]), st.integers(1, 3), st.integers(1, 3))
def test_requests_blocks_and_tokens_are_conserved(
    seed: int, blocks: int | None, prefill: int, decode: int
) -> None:
    """Every request ends, its first token from one replica and the others from another; all blocks are free."""
    workload = load(80, seed)
    simulator = FleetSimulator(fleet(prefill, decode, blocks), SLOS)
    simulator.reset(workload)
    for until_s in np.linspace(0.1, 3.0, 12):
        simulator.advance(float(until_s))
        engines = simulator.world.engines
        assert (engines["used_blocks"] >= 0).all()
        assert (engines["used_blocks"] <= engines["capacity_blocks"]).all()
    simulator.run_to_completion()
    records, engines = simulator.results(), simulator.world.engines
    assert np.isfinite(records.finish_s).all()
    assert (simulator.world.requests["phase"] == FREE).all()
    assert (engines["used_blocks"] == 0).all()
    assert engines["generated_tokens"].sum() == workload.output_tokens.sum()
    if engines["preemptions"].sum() == 0:
        assert engines["prefilled_tokens"][:prefill].sum() == workload.input_tokens.sum()
        assert engines["generated_tokens"][:prefill].sum() == len(workload)
    one_token = workload.output_tokens == 1
    assert (records.engine[one_token] < prefill).all()
    assert (records.engine[~one_token] >= prefill).all()


def test_the_second_token_waits_for_the_kv() -> None:
    """With one request it comes a transfer and one iteration after the first."""
    finish = []
    for bandwidth in (25e9, 1e9):
        simulator = FleetSimulator(fleet(1, 1, link_bytes_per_s=bandwidth), SLOS)
        simulator.reset(Workload(np.array([0.0]), np.array([1000]), np.array([2])))
        simulator.run_to_completion()
        records = simulator.results()
        finish.append(records.finish_s[0] - records.first_token_s[0])
    kv_bytes = 1000 * 2 * 32 * 8 * 128 * 2
    assert finish[1] - finish[0] == pytest.approx(kv_bytes / 1e9 - kv_bytes / 25e9, rel=1e-6)


def test_a_link_sends_one_after_another() -> None:
    """Two prompts of one batch: the second arrives a transfer after the first."""
    simulator = FleetSimulator(fleet(1, 1, link_bytes_per_s=1e9), SLOS)
    simulator.reset(Workload(np.zeros(2), np.full(2, 1000), np.full(2, 2)))
    simulator.run_to_completion()
    records = simulator.results()
    assert records.first_token_s[0] == records.first_token_s[1]
    kv_bytes = 1000 * 2 * 32 * 8 * 128 * 2
    assert records.finish_s[1] - records.finish_s[0] == pytest.approx(kv_bytes / 1e9, rel=1e-6)


@pytest.mark.parametrize("drain", [True, False])
def test_stopping_a_prefill_replica_with_kv_on_the_way_loses_nothing(drain: bool) -> None:
    """Drained, it goes when everything has been sent; else what it had is computed again."""
    simulator = FleetSimulator(fleet(2, 1, link_bytes_per_s=2e8), SLOS)
    simulator.reset(load(40, gap_s=0.005))
    simulator.advance(0.4)
    assert (simulator.world.engines["first_transit"][:2] >= 0).any()
    assert simulator.apply(Stop(0, drain)).accepted
    simulator.run_to_completion()
    assert np.isfinite(simulator.results().finish_s).all()
    assert simulator.observe().engines["status"][0] == EngineStatus.INACTIVE


def test_without_a_decode_replica_requests_wait() -> None:
    """Their KV is lost, and they are computed again when one is there; nothing fails."""
    simulator = FleetSimulator(fleet(1, 1), SLOS)
    simulator.reset(Workload(np.array([0.0]), np.array([1000]), np.array([5])))
    simulator.apply(Stop(1))
    simulator.advance(2.0)
    assert simulator.observe().totals[0, 5] == 1  # has its first token
    assert not simulator.idle


def test_a_fork_continues_to_the_same_numbers() -> None:
    """With KV on the way."""
    simulator = FleetSimulator(fleet(link_bytes_per_s=5e8), SLOS)
    simulator.reset(load(100))
    simulator.advance(0.5)
    assert (simulator.world.engines["first_transit"] >= 0).any()
    fork = simulator.fork()
    fork.run_to_completion()
    simulator.run_to_completion()
    np.testing.assert_array_equal(simulator.results().finish_s, fork.results().finish_s)


def test_roles_must_be_both_or_neither() -> None:
    """The message names model and region."""
    lonely = FleetSpec((GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", role="prefill"), 1),), engine="")
    with pytest.raises(ValueError, match=r"llama-3.1-8b in local.*role decode"):
        FleetSimulator(lonely, SLOS)
