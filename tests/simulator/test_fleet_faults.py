"""Faults and commands at random times: requests are conserved, slow nodes are exactly as slow, forks agree."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.envs.interface.fleet import (
    Crash,
    FleetFault,
    FleetSpec,
    GroupSpec,
    Migrate,
    ReplicaSpec,
    ResizeKV,
    SlowNode,
    Start,
    Stop,
)
from serving_gym.envs.interface.metrics import FAILED, FINISHED, UNFINISHED
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.fleet.migrating import Migrating
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.state import DECODE, FREE, NEVER, PREFILL, TRANSIT
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(1.0, 0.1),)
REPLICA = ReplicaSpec(
    "llama-3.1-8b", "H100", max_num_seqs=8, max_num_batched_tokens=512, kv_blocks=400, memory_utilization=0.9
)
PLACES = 4
EXAMPLES = int(os.environ.get("SERVING_GYM_EXAMPLES", "60"))
PEERS = FleetSpec(
    (GroupSpec(REPLICA, 2, 3), GroupSpec(replace(REPLICA, gpu="A100-80GB"), 0, 1)),
    weight_source="peer",
    link_bytes_per_s=20e9,
    storage_bytes_per_s=5e9,
    start_fixed_s=0.5,
    engine="",
)
SPLIT = replace(
    PEERS,
    groups=(
        GroupSpec(replace(REPLICA, role="prefill"), 1, 2),
        GroupSpec(replace(REPLICA, role="decode", gpu="A100-80GB"), 1, 2),
    ),
)
CACHED = replace(
    PEERS, prefix_caching=True, weight_source="storage", link_bytes_per_s=2e8, migration_stage_s=0.1
)
CROWDED = replace(PEERS, link_bytes_per_s=2e8, migration_stage_s=0.1, weight_source="storage")

moments = st.integers(0, 60).map(lambda tick: tick / 8)  # a coarse grid: many things happen at once
places = st.integers(0, PLACES - 1)
faults = st.lists(
    st.one_of(
        st.builds(Crash, time_s=moments, place=places),
        st.builds(
            SlowNode,
            time_s=moments,
            place=places,
            factor=st.sampled_from([1.5, 2.0]),
            duration_s=moments.map(lambda s: s + 0.1),
        ),
    ),
    max_size=4,
).map(tuple)
commands = st.lists(
    st.tuples(
        moments,
        st.one_of(
            st.builds(Start, place=places),
            st.builds(Stop, place=places, drain=st.booleans()),
            st.builds(ResizeKV, place=places, kv_blocks=st.integers(20, 900)),
            *[st.builds(Migrate, request=st.integers(0, 20), place=places)] * 4,
        ),
    ),
    max_size=16,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def load(requests: int, seed: int, prefixes: bool = False) -> Workload:
    """Requests that keep two small replicas busy for some seconds."""
    random = np.random.default_rng(seed)
    rows = np.arange(requests)
    hashes = np.stack([rows % 3, 10 + rows % 6, 100 + rows], axis=1).ravel()
    return Workload(
        arrival_s=np.cumsum(random.exponential(0.08, requests)),
        input_tokens=np.full(requests, 3 * 16) if prefixes else random.integers(10, 700, requests),
        output_tokens=random.integers(1, 150, requests),
        max_output_tokens=np.full(requests, 200),
        hash_ids=hashes if prefixes else None,
        hash_offsets=3 * np.arange(requests + 1) if prefixes else None,
        hash_block_tokens=16,
    ).validate()


def everything(simulator: FleetSimulator) -> tuple[object, ...]:
    """What a fleet shows, in comparable form."""
    records, state = simulator.results(), simulator.observe()
    columns = (records.first_token_s, records.finish_s, records.outcome, records.engine, records.preemptions)
    return (
        simulator.migrations_done,
        simulator.migrations_aborted,
        *(column.tobytes() for column in columns),
        state.engines.tobytes(),
        state.gpu_seconds.tobytes(),
        state.operations,
        state.totals.tobytes(),
    )


def check(simulator: FleetSimulator) -> None:
    """Nothing is lost, and blocks are used or free."""
    records, state = simulator.results(), simulator.observe()
    arrived, _, refused, failed, *_ = state.totals.sum(axis=0)
    unfinished = int((records.outcome == UNFINISHED).sum())
    finished = int((records.outcome == FINISHED).sum())
    assert arrived == finished + failed + unfinished == len(records) - refused
    assert failed == (records.outcome == FAILED).sum()
    engines = simulator.world.engines
    assert int(simulator.world.cluster["num_in_flight"][0]) == unfinished
    held = int(engines["num_running"].sum() + engines["num_waiting"].sum())
    on_the_way = int((simulator.world.requests["phase"] == TRANSIT).sum())
    assert held + state.num_pooled + on_the_way == unfinished
    assert (engines["used_blocks"] <= engines["capacity_blocks"]).all()
    if not simulator.spec.prefix_caching:
        assert engines["used_blocks"].tolist() == blocks_of_requests(simulator)
    migrations = [operation for operation in simulator.plane.operations if isinstance(operation, Migrating)]
    if not migrations:
        assert not engines["num_kept"].any()
        assert not engines["num_leaving"].any()
    if simulator.spec.prefix_caching:
        serving = np.flatnonzero(engines["status"] == EngineStatus.ACTIVE)
        free = np.array([free_blocks(simulator, int(place)) for place in serving])
        assert (free + engines["used_blocks"][serving] == engines["capacity_blocks"][serving]).all()


def blocks_of_requests(simulator: FleetSimulator) -> list[int]:
    """Blocks that requests have at each place, one by one, and that are kept for those to come."""
    world, blocks = simulator.world, [0] * PLACES
    for request in world.requests:
        if request["phase"] in (PREFILL, DECODE, TRANSIT):
            e = int(request["engine"])
            decoding = request["phase"] == DECODE
            computed = world.engines["tick"][e] + request["offset"] if decoding else request["computed"]
            blocks[e] += simulator.fleet.blocks_for(e, int(computed))
    for operation in simulator.plane.operations:
        if isinstance(operation, Migrating):
            blocks[operation.place] += operation.blocks
    return blocks


def free_blocks(simulator: FleetSimulator, place: int) -> int:
    """Blocks in a replica's list of free ones."""
    extents, total = simulator.world.extents, 0
    x = int(simulator.world.engines["free_first"][place])
    while x >= 0:
        total += int(extents["end"][x] - extents["start"][x])
        x = int(extents["next"][x])
    return total


def run(simulator: FleetSimulator, schedule: list[tuple[float, object]], after_s: float) -> None:
    """Obeys what is due after `after_s`; migrations are of requests counted among those that are there."""
    for time_s, command in schedule:
        if time_s > after_s:
            simulator.advance(time_s)
            there = np.sort(simulator.world.requests["index"][simulator.world.requests["phase"] != FREE])
            if isinstance(command, Migrate) and len(there):
                command = replace(command, request=int(there[command.request % len(there)]))
            simulator.apply(command)  # type: ignore[arg-type]
            check(simulator)


@settings(max_examples=EXAMPLES)
@given(faults, commands, moments, st.integers(0, 5), st.sampled_from([PEERS, CACHED, SPLIT, CROWDED]))
def test_requests_are_conserved_and_forks_agree(
    faulty: tuple[FleetFault, ...],
    schedule: list[tuple[float, object]],
    fork_s: float,
    seed: int,
    spec: FleetSpec,
) -> None:
    simulator = FleetSimulator(spec, SLOS)
    simulator.reset(load(60, seed, spec.prefix_caching), faulty)
    run(simulator, [row for row in schedule if row[0] <= fork_s], -1.0)
    simulator.advance(fork_s)
    fork, pickled = simulator.fork(), pickle.loads(pickle.dumps(simulator))
    frozen = everything(simulator)
    for other in (fork, pickled):
        run(other, schedule, fork_s)
        other.advance(20.0)
        check(other)
    assert everything(simulator) == frozen
    run(simulator, schedule, fork_s)
    simulator.advance(20.0)
    assert everything(simulator) == everything(fork) == everything(pickled)


@settings(max_examples=EXAMPLES // 2)
@given(faults, commands, st.integers(0, 5), st.sampled_from([PEERS, SPLIT, CROWDED]))
def test_with_replicas_in_the_end_every_request_ends(
    faulty: tuple[FleetFault, ...], schedule: list[tuple[float, object]], seed: int, spec: FleetSpec
) -> None:
    simulator = FleetSimulator(spec, SLOS)
    simulator.reset(load(60, seed), faulty)
    run(simulator, schedule, -1.0)
    simulator.advance(15.0)
    for place in range(PLACES):
        simulator.apply(Start(place))
    simulator.run_to_completion(limit_s=600.0)
    assert set(simulator.results().outcome.tolist()) <= {FINISHED, FAILED}
    check(simulator)


def one(output: int = 50) -> Workload:
    """A single request."""
    return Workload(np.array([0.0]), np.array([100]), np.array([output]))


@pytest.mark.parametrize("factor", [2.0, 3.0, 1.5])
def test_a_slow_node_takes_factor_times_as_long(factor: float) -> None:
    """Whole factors to the picosecond that prefill attention is rounded to; with others the tables are rounded."""
    busy_ps = []
    for slow in ((), (SlowNode(0.0, 0, factor),)):
        simulator = FleetSimulator(FleetSpec((GroupSpec(REPLICA, 1),), engine=""), SLOS)
        simulator.reset(one(), slow)
        simulator.run_to_completion()
        busy_ps.append(int(simulator.world.engines["busy_ps"][0]))
    rounding_ps = 1 if factor == int(factor) else 1e-7 * busy_ps[0]
    assert abs(busy_ps[1] - factor * busy_ps[0]) <= rounding_ps


def test_the_iteration_in_flight_keeps_its_time_and_speed_comes_back() -> None:
    """A decode stretch of known iterations: only those that begin within the slow-down are slow."""
    times = {}
    for name, slow in (("fast", ()), ("slow", (SlowNode(0.1, 0, 4.0, 0.2),))):
        simulator = FleetSimulator(FleetSpec((GroupSpec(REPLICA, 1),), engine=""), SLOS)
        simulator.reset(one(200), slow)
        ticks = []
        for step in range(1, 4000):
            simulator.advance(step * 0.001)
            ticks.append(int(simulator.world.engines["generated_tokens"][0]))
        times[name] = np.array(ticks)
    fast, slow = times["fast"], times["slow"]
    assert (fast[:99] == slow[:99]).all()
    rate = (fast[98] - fast[48]) / 0.05
    during = (slow[298] - slow[108]) / 0.19
    assert during == pytest.approx(rate / 4, rel=0.1)
    assert (slow[498] - slow[318]) / 0.18 == pytest.approx(rate, rel=0.05)
    assert fast[-1] == slow[-1] == 200


def test_a_crash_fails_what_runs_and_the_replica_comes_back() -> None:
    spec = FleetSpec((GroupSpec(replace(REPLICA, max_num_seqs=4), 1),), start_fixed_s=2.0, engine="")
    simulator = FleetSimulator(spec, SLOS)
    simulator.reset(Workload(np.zeros(6), np.full(6, 50), np.full(6, 100)), (Crash(0.2, 0),))
    simulator.advance(0.2)
    state = simulator.observe()
    assert state.engines["status"].tolist() == [EngineStatus.DOWN]
    assert state.num_pooled == 2
    (restart,) = state.operations
    simulator.run_to_completion()
    records = simulator.results()
    assert sorted(records.outcome.tolist()) == [FINISHED] * 2 + [FAILED] * 4
    assert restart.kind == "starting"
    assert records.first_scheduled_s[records.outcome == FINISHED] == pytest.approx(restart.due_s)
    np.testing.assert_allclose(simulator.observe().gpu_seconds, simulator.now_s)


def test_a_crash_of_a_place_without_a_replica_in_service() -> None:
    """An empty place ignores it, one that drains is gone, one that starts begins anew."""
    spec = FleetSpec((GroupSpec(REPLICA, 1, 3),), start_fixed_s=2.0, engine="")
    simulator = FleetSimulator(spec, SLOS)
    simulator.reset(one(400), (Crash(0.5, 0), Crash(0.5, 1), Crash(0.5, 2)))
    simulator.advance(0.1)
    simulator.apply(Start(1))
    simulator.apply(Stop(0))
    (starting, _) = sorted(simulator.observe().operations, key=lambda operation: operation.kind)
    simulator.advance(0.5)
    (restarting,) = simulator.observe().operations
    assert simulator.observe().engines["status"].tolist() == [
        EngineStatus.INACTIVE,
        EngineStatus.DOWN,
        EngineStatus.INACTIVE,
    ]
    assert simulator.results().outcome.tolist() == [FAILED]
    assert restarting.due_s == pytest.approx(starting.due_s + 0.4)
    np.testing.assert_allclose(simulator.observe().gpu_seconds, [0.5, 0.4, 0.0])


def test_what_is_switched_off_costs_nothing() -> None:
    """Without faults and commands there are no operations, no timers and no further rows in the tables."""
    simulator = FleetSimulator(PEERS, SLOS)
    simulator.reset(load(10, 0))
    assert simulator.plane.operations == []
    assert simulator.plane.next_due_ps() == NEVER
    assert len(simulator.tables.decode_ps) == len({group.replica for group in PEERS.groups})


def test_faults_name_places_that_exist() -> None:
    simulator = FleetSimulator(FleetSpec((GroupSpec(REPLICA, 1, 3),), engine=""), SLOS)
    with pytest.raises(ValueError, match=r"Crash at 1 s: place must be 0 to 2, got 3"):
        simulator.reset(one(), (Crash(1.0, 3),))
    with pytest.raises(ValueError, match=r"SlowNode at 1 s: place must be 0 to 2, got -1"):
        simulator.reset(one(), (SlowNode(1.0, -1, 2.0),))
    with pytest.raises(ValueError, match="must not be negative"):
        Crash(-1.0, 0)
