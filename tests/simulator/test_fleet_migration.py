"""Live migration: when which KV is copied, what is kept where, and that whatever goes wrong, a request just goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.envs.interface.fleet import (
    Crash,
    FleetCommand,
    FleetSpec,
    GroupSpec,
    Migrate,
    ReplicaSpec,
    ResizeKV,
    Start,
    Stop,
)
from serving_gym.envs.interface.metrics import FAILED, FINISHED
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.operations import Phase
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.state import FREE, TRANSIT
from serving_gym.envs.workload.schema import Workload
from tests.simulator.even import MS, advance, make_even

SLOS = (SLO(1.0, 0.1),)
KV_BYTES = 2 * 32 * 8 * 128 * 2  # of a token: keys and values, 32 layers, 8 heads of 128, 2 bytes
REPLICA = ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=4, kv_blocks=100)


def fleet(*rows: tuple[float, int, int], faults: tuple[Crash, ...] = (), **options: object) -> FleetSimulator:
    """Two replicas whose every iteration takes 10 ms, one request after another on place 0, 1, 0, ...

    A token's KV takes 1 ms over the link, and a stage 5 ms to set up. Rows: arrival in ms, prompt, output.
    """
    return fleet_of(REPLICA, *rows, faults=faults, **options)


def fleet_of(
    replica: ReplicaSpec, *rows: tuple[float, int, int], faults: tuple[Crash, ...] = (), **options: object
) -> FleetSimulator:
    """The same of other replicas."""
    settings: dict[str, object] = {
        "router": "round_robin",
        "link_bytes_per_s": 1000.0 * KV_BYTES,
        "migration_stage_s": 0.005,
        "start_fixed_s": 1.0,
        **options,
    }
    simulator = FleetSimulator(FleetSpec((GroupSpec(replica, 2),), **settings, engine=""), SLOS)  # type: ignore[arg-type]
    arrival_ms, prompt, output = zip(*rows, strict=True)
    simulator.reset(Workload(np.array(arrival_ms) / 1000, np.array(prompt), np.array(output)), faults)
    make_even(simulator)
    return simulator


def used(simulator: FleetSimulator) -> list[int]:
    """KV blocks in use."""
    blocks: list[int] = simulator.world.engines["used_blocks"].tolist()
    return blocks


def finished_ms(simulator: FleetSimulator) -> list[float]:
    """When requests got their last tokens."""
    simulator.run_to_completion()
    advance(simulator, simulator.now_ps / MS + 500)
    assert used(simulator) == [0, 0]
    assert simulator.world.engines["num_kept"].tolist() == [0, 0]
    assert simulator.world.engines["num_leaving"].tolist() == [0, 0]
    assert "migrating" not in [seen.kind for seen in simulator.observe().operations]
    return [float(time) for time in np.round(1000 * simulator.results().finish_s, 6)]


def test_an_example_by_hand() -> None:
    """A prompt of 100 tokens in blocks of 16, prefilled until 10 ms, then a token each 10 ms.

    At 105 ms 9 further tokens have KV: 109, in 7 blocks. Set up until 110, copied until 219. By then 11 more have come:
    120, in 8 blocks, set up until 224, copied until 235; then 2 more, set up until 240, copied until 242. One is left:
    with the iteration that ends at 250 the request leaves, having 124 with KV and 25 tokens out. The last 2 are set up
    until 255 and copied until 257, where the other replica begins the first of 35 iterations. Moving cost 7 ms.
    """
    simulator = fleet((0, 100, 60))
    advance(simulator, 105)
    assert simulator.apply(Migrate(0, 1)).accepted
    (seen,) = simulator.observe().operations
    assert (seen.kind, seen.place, seen.request) == ("migrating", 1, 0)
    assert (seen.started_s, seen.due_s) == (0.105, 0.110)
    for until_ms, at_source, at_target, running in (
        (105, 7, 7, [1, 0]),  # 110 tokens with the one in the making
        (218.9, 8, 7, [1, 0]),  # 121
        (219, 8, 8, [1, 0]),
        (235, 8, 8, [1, 0]),
        (249.9, 8, 8, [1, 0]),
        (250, 8, 8, [0, 0]),
        (256.9, 8, 8, [0, 0]),
        (257, 0, 8, [0, 1]),
        (297, 0, 9, [0, 1]),  # the 129th is in the making
    ):
        advance(simulator, until_ms)
        assert used(simulator) == [at_source, at_target], until_ms
        assert simulator.observe().engines["num_running"].tolist() == running, until_ms
    assert finished_ms(simulator) == [607]
    records = simulator.results()
    assert (records.engine[0], records.preemptions[0], records.generated_tokens[0]) == (1, 0, 60)
    assert records.first_token_s[0] == 0.010
    assert (simulator.migrations_done, simulator.migrations_aborted) == (1, 0)


def test_it_joins_a_batch_in_the_middle_of_an_iteration() -> None:
    """The other replica is busy with iterations that end at 14, 24, ... ms: from 264 on the request has tokens too."""
    simulator = fleet((0, 100, 60), (4, 100, 80))
    advance(simulator, 105)
    assert simulator.apply(Migrate(0, 1)).accepted
    advance(simulator, 257)
    assert simulator.results().generated_tokens.tolist() == [25, 25]
    advance(simulator, 273.9)
    assert simulator.results().generated_tokens.tolist() == [25, 26]
    assert finished_ms(simulator) == [264 + 350, 14 + 790]


def test_two_at_once_share_the_link() -> None:
    """109 and 9 tokens: the short one is there when 18 have been sent, the long one after all 118."""
    simulator = fleet((0, 100, 60), (0, 1, 2), (0, 1, 60))
    advance(simulator, 95)
    assert simulator.apply(Migrate(2, 1)).accepted
    assert simulator.apply(Migrate(0, 1)).accepted
    advance(simulator, 100)
    due = {seen.request: seen.due_s for seen in simulator.observe().operations}
    assert due[2] == pytest.approx(0.100 + 2 * 9 / 1000)
    assert due[0] == pytest.approx(0.100 + 2 * 108 / 1000)
    advance(simulator, 118)
    due = {seen.request: seen.due_s for seen in simulator.observe().operations}
    assert due[0] == pytest.approx(0.100 + (108 + 9) / 1000)
    simulator.run_to_completion()
    assert simulator.migrations_done == 2


def test_a_waiting_request_moves_at_once() -> None:
    """Four run at each place; the fifth at place 0 waits there, moves, and waits for place 1 instead."""
    simulator = fleet(*[(0, 10, 20 if i % 2 else 200) for i in range(9)])
    advance(simulator, 15)
    assert simulator.observe().engines["num_waiting"].tolist() == [1, 0]
    assert simulator.apply(Migrate(8, 1)).accepted
    assert simulator.observe().engines["num_waiting"].tolist() == [0, 1]
    assert simulator.observe().engines["pending_prefill_tokens"].tolist() == [0, 10]
    finish = finished_ms(simulator)
    assert finish == [2000 if i % 2 == 0 else 200 for i in range(8)] + [200 + 2000]
    assert (simulator.migrations_done, simulator.migrations_aborted) == (1, 0)


# -- what ends a migration ---------------------------------------------------------------------------------------------


def aborted(simulator: FleetSimulator, do: Callable[[], object], at_ms: float) -> list[float]:
    """Begins to move request 0 at 105 ms, does something at another time, and returns when requests were finished."""
    advance(simulator, 105)
    assert simulator.apply(Migrate(0, 1)).accepted
    advance(simulator, at_ms)
    do()
    finish = finished_ms(simulator)
    assert (simulator.migrations_done, simulator.migrations_aborted) == (0, 1)
    return finish


@pytest.mark.parametrize("output", [11, 15, 25])
def test_a_request_that_ends_meanwhile(output: int) -> None:
    """In the first stage, or with the very iteration it was to leave with."""
    simulator = fleet((0, 100, output))
    assert aborted(simulator, lambda: None, 105) == [10 * output]
    assert simulator.results().engine.tolist() == [0]


@pytest.mark.parametrize(("at_ms", "delay_ms"), [(107, 0), (150, 0), (245, 0), (252, 10), (256, 10)])
@pytest.mark.parametrize("what", ["crash", "stop", "stop at once"])
def test_a_destination_that_is_lost(what: str, at_ms: float, delay_ms: float) -> None:
    """The request goes on at the source; out of the batch since 250 ms it misses nothing, or the next iteration."""
    simulator = fleet((0, 100, 60), faults=(Crash(at_ms / 1000, 1),) if what == "crash" else ())
    stop = Stop(1, drain=what == "stop")
    finish = aborted(simulator, lambda: what == "crash" or simulator.apply(stop), at_ms)
    assert finish == [600 + (at_ms - 250 if delay_ms else 0)]
    assert simulator.results().engine.tolist() == [0]


@pytest.mark.parametrize("at_ms", [107, 150, 245, 252, 256])
def test_a_source_that_crashes(at_ms: float) -> None:
    """The request fails as any that runs."""
    simulator = fleet((0, 100, 60), faults=(Crash(at_ms / 1000, 0),))
    aborted(simulator, lambda: None, at_ms)
    assert simulator.results().outcome.tolist() == [FAILED]


@pytest.mark.parametrize("at_ms", [107, 150, 245, 252, 256])
def test_a_source_that_is_stopped_at_once(at_ms: float) -> None:
    """The request is computed again, as any that runs: 10 ms of prefill, then what is left."""
    simulator = fleet((0, 100, 60))
    came_out = 1 + int(min(at_ms, 250) // 10 - 1)
    finish = aborted(simulator, lambda: simulator.apply(Stop(0, drain=False)), at_ms)
    assert finish == [at_ms + 10 * (60 - came_out)]
    assert simulator.results().preemptions.tolist() == [1]


@pytest.mark.parametrize("at_ms", [107, 150, 245, 252, 256])
def test_a_source_that_drains_is_left_the_sooner(at_ms: float) -> None:
    """Draining does not break it off, and the replica goes when the KV has left it."""
    simulator = fleet((0, 100, 60))
    advance(simulator, 105)
    assert simulator.apply(Migrate(0, 1)).accepted
    advance(simulator, at_ms)
    assert simulator.apply(Stop(0)).accepted
    assert finished_ms(simulator) == [607]
    assert simulator.observe().gpu_seconds[0] == pytest.approx(0.257)


@pytest.mark.parametrize("place", [0, 1])
def test_a_resize_at_either_end(place: int) -> None:
    simulator = fleet((0, 100, 60))
    aborted(simulator, lambda: simulator.apply(ResizeKV(place, 200)), 252)
    assert simulator.results().outcome.tolist() == [FINISHED]


def test_a_preempted_request() -> None:
    """Two requests outgrow the source's blocks while one is being moved; the younger gives way."""
    simulator = fleet_of(replace(REPLICA, kv_blocks=30), (0, 100, 150), (0, 1, 2), (0, 300, 150))
    advance(simulator, 105)
    assert simulator.apply(Migrate(2, 1)).accepted
    finished_ms(simulator)
    assert simulator.results().preemptions.tolist() == [0, 0, 1]
    assert simulator.migrations_aborted == 1


def test_a_destination_without_room_for_the_next_stage() -> None:
    """The other request has 13 blocks until 250 ms and 7 are kept for the first stage; at 219 ms an 8th is wanted."""
    simulator = fleet_of(replace(REPLICA, kv_blocks=20), (0, 100, 60), (0, 184, 100))
    finish = aborted(simulator, lambda: None, 105)
    assert finish == [600, 1000]


def test_a_destination_whose_batch_is_full() -> None:
    simulator = fleet((0, 100, 60), *[(0, 1, 2 if i % 2 else 100) for i in range(7)])
    advance(simulator, 105)
    assert simulator.observe().engines["num_running"].tolist() == [1, 4]
    assert aborted(simulator, lambda: None, 105)[0] == 600


def test_a_link_that_cannot_follow() -> None:
    """A token takes 50 ms, in which five come: 109 are followed by 545, more than a last stage of 16 blocks has."""
    simulator = fleet((0, 100, 800), link_bytes_per_s=20.0 * KV_BYTES)
    assert aborted(simulator, lambda: None, 105) == [8000]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_ms", "request_and_place", "reason"),
    [
        (105, (0, 0), "place 0 has request 0 already"),
        (105, (0, 2), "there is no place 2"),
        (105, (5, 1), "request 5 is not in the system"),
        (605, (0, 1), "request 0 is not in the system"),
        (5, (0, 1), "request 0 is partly prefilled"),
        (-1, (0, 1), "request 0 is not in the system"),
    ],
)
def test_what_is_refused(at_ms: float, request_and_place: tuple[int, int], reason: str) -> None:
    simulator = fleet((0, 100, 60))
    if at_ms >= 0:
        advance(simulator, at_ms)
    assert reason in simulator.apply(Migrate(*request_and_place)).reason
    assert simulator.refused_commands == 1
    assert simulator.observe().operations == ()


def test_what_is_refused_because_of_something_else() -> None:
    simulator = fleet_of(replace(REPLICA, kv_blocks=10), (0, 100, 60), (0, 60, 60))
    advance(simulator, 105)
    assert "no free KV blocks" in simulator.apply(Migrate(0, 1)).reason
    assert simulator.apply(ResizeKV(1, 40)).accepted
    assert "place 1 is being resized" in simulator.apply(Migrate(0, 1)).reason
    assert "at place 1, which is being resized" in simulator.apply(Migrate(1, 0)).reason
    advance(simulator, 300)
    assert simulator.apply(Migrate(0, 1)).accepted
    assert "on its way already" in simulator.apply(Migrate(0, 1)).reason
    assert simulator.apply(Stop(1)).accepted
    assert "no replica in service" in simulator.apply(Migrate(0, 1)).reason


def test_a_request_in_the_pool_and_one_of_another_role() -> None:
    roles = [GroupSpec(replace(REPLICA, role=role), 2) for role in ("prefill", "decode")]
    simulator = FleetSimulator(FleetSpec(tuple(roles), engine=""), SLOS)
    simulator.reset(Workload(np.zeros(1), np.array([100]), np.array([100])))
    simulator.advance(0.1)
    assert simulator.world.engines["num_running"].tolist() == [0, 0, 1, 0]
    assert "another endpoint or role" in simulator.apply(Migrate(0, 1)).reason
    assert simulator.apply(Migrate(0, 3)).accepted
    simulator.run_to_completion()
    assert simulator.results().engine.tolist() == [3]
    simulator = FleetSimulator(FleetSpec((GroupSpec(REPLICA, 0, 2),), engine=""), SLOS)
    simulator.reset(Workload(np.zeros(1), np.array([100]), np.array([100])))
    simulator.advance(0.1)
    assert "request 0 has no engine" in simulator.apply(Migrate(0, 1)).reason


# -- forks -------------------------------------------------------------------------------------------------------------


def test_a_fork_in_every_phase_continues_to_the_same_numbers() -> None:
    simulator = fleet((0, 100, 60), (4, 100, 80), (6, 30, 70))
    advance(simulator, 105)
    assert simulator.apply(Migrate(0, 1)).accepted
    assert simulator.apply(Migrate(1, 0)).accepted
    forks, seen = [], set()
    for until_ms in np.arange(105, 280, 0.5):
        advance(simulator, until_ms)
        seen |= {operation.phase for operation in simulator.plane.operations}
        forks.append(simulator.fork())
    assert (simulator.world.requests["phase"] != TRANSIT).all()
    expected = finished_ms(simulator)
    for fork in forks:
        assert finished_ms(fork) == expected
        assert (fork.migrations_done, fork.migrations_aborted) == (2, 0)
        np.testing.assert_array_equal(fork.results().engine, simulator.results().engine)
    assert seen == {Phase.ASK, Phase.COPY, Phase.LEAVE}


def test_a_started_replica_and_a_migration_share_a_link() -> None:
    """Weights that come from the source's link halve what the migration has of it."""
    spec = FleetSpec(
        (GroupSpec(REPLICA, 2, 3),),
        weight_source="peer",
        link_bytes_per_s=1e9,
        router="round_robin",
        engine="",
    )
    due = {}
    for starts in (False, True):
        simulator = FleetSimulator(spec, SLOS)
        simulator.reset(Workload(np.zeros(1), np.array([1000]), np.array([100])))
        simulator.advance(0.1)
        if starts:
            assert simulator.apply(Start(2)).accepted
        assert simulator.apply(Migrate(0, 1)).accepted
        simulator.advance(0.13)
        migrating = next(seen for seen in simulator.observe().operations if seen.kind == "migrating")
        assert migrating.due_s is not None
        due[starts] = migrating.due_s - 0.12
    assert due[True] == pytest.approx(2 * due[False], rel=1e-6)


# -- whatever happens --------------------------------------------------------------------------------------------------

whims = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 5, 10, 35, 60, 100, 200]),  # ms later
        st.sampled_from(["move"] * 12 + ["stop", "stop at once", "start", "resize"]),
        st.integers(0, 30),
        st.booleans(),  # whether a fork is taken
    ),
    min_size=4,
    max_size=30,
)
crashes = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 1)), max_size=2)


def command_of(simulator: FleetSimulator, what: str, number: int) -> FleetCommand:
    """A move of a request that is there, or something at one of two places."""
    there = np.sort(simulator.world.requests["index"][simulator.world.requests["phase"] != FREE])
    if what == "move":
        return Migrate(int(there[number // 2 % len(there)]) if len(there) else 0, number % 2)
    if what == "resize":
        return ResizeKV(number % 2, 20 + number)
    return Start(number % 2) if what == "start" else Stop(number % 2, drain=what == "stop")


def everything(simulator: FleetSimulator) -> tuple[object, ...]:
    """What became of all requests."""
    records = simulator.results()
    columns = (records.first_token_s, records.finish_s, records.outcome, records.engine, records.preemptions)
    return (
        *(column.tobytes() for column in columns),
        simulator.migrations_done,
        simulator.migrations_aborted,
    )


@given(whims, crashes, st.integers(0, 1000), st.booleans())
def test_every_request_ends_once_and_forks_agree(
    plan: list[tuple[int, str, int, bool]], lost: list[tuple[int, int]], seed: int, caching: bool
) -> None:
    """Two places with few blocks; requests that preempt each other, replicas that go and come, moves all the time."""
    random = np.random.default_rng(seed)
    rows = [(10 * int(i), int(random.integers(1, 200)), int(random.integers(1, 90))) for i in range(20)]
    faults = tuple(Crash(at_ms / 1000, place) for at_ms, place in lost)
    tight = replace(REPLICA, kv_blocks=40)
    simulator = fleet_of(
        tight, *rows, faults=faults, link_bytes_per_s=2000.0 * KV_BYTES, prefix_caching=caching
    )
    forks: list[tuple[FleetSimulator, int]] = []
    for done, (gap_ms, what, number, forked) in enumerate(plan):
        obey(simulator, gap_ms, what, number)
        if forked:
            forks.append((simulator.fork(), done + 1))
    conclude(simulator)
    records = simulator.results()
    assert set(records.outcome.tolist()) <= {FINISHED, FAILED}
    assert len(records) == len(rows)
    finished = records.outcome == FINISHED
    assert (records.generated_tokens[finished] == np.array(rows)[finished, 2]).all()
    for fork, done in forks[-3:]:
        for gap_ms, what, number, _ in plan[done:]:
            obey(fork, gap_ms, what, number)
        conclude(fork)
        assert everything(fork) == everything(simulator)


def obey(simulator: FleetSimulator, gap_ms: int, what: str, number: int) -> None:
    """Lets time pass and gives a command."""
    advance(simulator, simulator.now_ps / MS + gap_ms)
    simulator.apply(command_of(simulator, what, number))
    engines = simulator.world.engines
    assert (engines["used_blocks"] <= engines["capacity_blocks"]).all()
    assert (engines["num_running"] + engines["num_kept"] <= REPLICA.max_num_seqs).all()


def conclude(simulator: FleetSimulator) -> None:
    """Brings both places into service and lets all requests end; then no block is in use."""
    for _ in range(2):
        advance(simulator, simulator.now_ps / MS + 60_000)
        for place in range(2):
            simulator.apply(Start(place))
    simulator.run_to_completion()
    advance(simulator, simulator.now_ps / MS + 10_000)
    engines = simulator.world.engines
    for name in ("used_blocks", "num_running", "num_waiting", "num_kept", "num_leaving"):
        assert not engines[name].any(), name
    assert simulator.plane.links.flows == []
