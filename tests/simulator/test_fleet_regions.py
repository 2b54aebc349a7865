"""Requests that are served in another region: when they arrive there, and that none is lost on the way."""

from __future__ import annotations

import pickle
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
    NetworkLatency,
    ReplicaSpec,
    ResizeKV,
    Route,
    Start,
    Stop,
)
from serving_gym.envs.interface.metrics import FAILED, FINISHED
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.state import FREE, TRANSIT
from serving_gym.envs.simulator.streaming import run_stream
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.configuration.clusters import FleetConfig, check_unattended, cluster_of
from tests.simulator.even import MS, advance, make_even

SLOS = (SLO(1.0, 0.1),)
MODEL = "llama-3.1-8b"
REPLICA = ReplicaSpec(MODEL, "H100", max_num_seqs=4, kv_blocks=100)
EAST_WEST = (NetworkLatency(("west", "east"), 0.25),)
SPEC = FleetSpec(
    (GroupSpec(REPLICA, 2, region="east"), GroupSpec(REPLICA, 2, region="west")),
    router="hold",
    network=EAST_WEST,
    start_fixed_s=1.0,
    engine="",
)


def load(*rows: tuple[float, int, int, str]) -> Workload:
    """Requests. Rows: arrival in ms, prompt, output, region."""
    arrival_ms, prompt, output, origin = zip(*rows, strict=True)
    regions = tuple(dict.fromkeys(origin))
    return Workload(
        np.array(arrival_ms) / 1000,
        np.array(prompt),
        np.array(output),
        models=(MODEL,),
        region_id=np.array([regions.index(region) for region in origin]),
        regions=regions,
    )


def fleet(
    *rows: tuple[float, int, int, str], spec: FleetSpec = SPEC, faults: tuple[Crash, ...] = ()
) -> FleetSimulator:
    """A fleet whose iterations take 10 ms, that serves requests."""
    simulator = FleetSimulator(spec, SLOS)
    simulator.reset(load(*rows), faults)
    make_even(simulator)
    return simulator


def test_it_arrives_a_round_trip_later() -> None:
    """Sent at 20 ms it is there at 270, so that its tokens come out at 280, 290, ..., 320 ms."""
    simulator = fleet((0, 100, 5, "east"))
    advance(simulator, 20)
    assert simulator.observe().num_pooled == 1
    assert simulator.apply(Route(0, 2)).accepted
    for until_ms in (20, 100, 269.9):
        advance(simulator, until_ms)
        state = simulator.observe()
        assert (state.num_pooled, state.pooled_tokens) == (0, 0)
        assert state.engines["num_waiting"].tolist() == state.engines["num_running"].tolist() == [0, 0, 0, 0]
        assert state.operations == ()
        assert "is not waiting" in simulator.apply(Route(0, 0)).reason
        assert "has no engine" in simulator.apply(Migrate(0, 3)).reason
        assert not simulator.idle
    simulator.run_to_completion()
    records = simulator.results()
    assert records.engine.tolist() == [2]
    assert (records.first_scheduled_s[0], records.first_token_s[0]) == (0.27, 0.28)
    assert records.finish_s.tolist() == [0.32]


def test_it_joins_the_queue_when_it_arrives() -> None:
    """The last place in the batch goes, at 110 ms, to one from the region itself; the first are free at 1000 ms."""
    west = [(0, 10, 100, "west")] * 3
    simulator = fleet((0, 10, 10, "east"), *west, (100, 10, 100, "west"))
    advance(simulator, 0)
    for request, place in ((0, 2), (1, 2), (2, 2), (3, 2)):
        assert simulator.apply(Route(request, place)).accepted
    advance(simulator, 100)
    assert simulator.apply(Route(4, 2)).accepted
    advance(simulator, 300)
    assert simulator.observe().engines["num_waiting"].tolist() == [0, 0, 1, 0]
    simulator.run_to_completion()
    assert simulator.results().finish_s.tolist() == [1.1, 1.0, 1.0, 1.0, 1.11]


def test_within_the_region_it_is_there_at_once() -> None:
    simulator = fleet((0, 100, 5, "east"))
    advance(simulator, 20)
    assert simulator.apply(Route(0, 1)).accepted
    simulator.run_to_completion()
    assert simulator.results().finish_s.tolist() == [0.07]


def test_pairs_without_a_latency() -> None:
    """Refused and counted, unless there is one for all such pairs; of zero it is no different from home."""
    groups = (*SPEC.groups, GroupSpec(REPLICA, 1, region="north"))
    for default_s, finish_s in ((None, np.nan), (0.5, 0.55), (0.0, 0.05)):
        simulator = fleet(
            (0, 100, 5, "east"), spec=replace(SPEC, groups=groups, default_round_trip_s=default_s)
        )
        advance(simulator, 0)
        receipt = simulator.apply(Route(0, 4))
        assert receipt.accepted == (default_s is not None)
        if default_s is None:
            assert "no latency between east" in receipt.reason
            assert "north" in receipt.reason
        advance(simulator, 1000)
        np.testing.assert_allclose(simulator.results().finish_s, [finish_s])


@pytest.mark.parametrize("what", ["crash", "stop", "stop at once"])
def test_a_destination_that_is_lost_meanwhile(what: str) -> None:
    """The request waits for a decision again, from that moment on, and can be sent elsewhere."""
    simulator = fleet((0, 100, 5, "east"), faults=(Crash(0.1, 2),) if what == "crash" else ())
    advance(simulator, 0)
    assert simulator.apply(Route(0, 2)).accepted
    advance(simulator, 100)
    if what != "crash":
        assert simulator.apply(Stop(2, drain=what == "stop")).accepted
    assert (simulator.observe().num_pooled, simulator.observe().pooled_tokens) == (1, 100)
    assert simulator.apply(Route(0, 3)).accepted
    simulator.run_to_completion()
    assert simulator.results().finish_s.tolist() == [0.4]
    assert simulator.results().outcome.tolist() == [FINISHED]


def test_a_destination_that_has_become_too_small() -> None:
    """Seen on arrival; under a built-in router the request then stays at home."""
    simulator = fleet((0, 1000, 5, "east"), spec=replace(SPEC, router="jsq"))
    for place in (0, 1):
        simulator.apply(Stop(place))
    advance(simulator, 10)
    assert simulator.observe().num_pooled == 1
    assert simulator.apply(Route(0, 2)).accepted
    assert simulator.apply(Start(0)).accepted
    assert simulator.apply(ResizeKV(2, 50)).accepted
    advance(simulator, 300)
    assert simulator.observe().num_pooled == 1
    simulator.run_to_completion()
    assert simulator.results().engine.tolist() == [0]


def test_built_in_routers_keep_within_the_region() -> None:
    rows = [(float(i), 100, 20, ("east", "west")[i % 3 == 0]) for i in range(60)]
    simulator = fleet(*rows, spec=replace(SPEC, router="jsq"))
    simulator.run_to_completion()
    engine = simulator.results().engine
    assert all((place >= 2) == (row[3] == "west") for place, row in zip(engine, rows, strict=True))


# -- regions without replicas ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ["hold", "jsq"])
def test_a_region_that_only_others_serve(router: str) -> None:
    """Its requests wait until they are sent to another region, and go back to waiting when that fails."""
    spec = replace(SPEC, router=router, network=(*EAST_WEST, NetworkLatency(("south", "west"), 0.1)))
    simulator = fleet((0, 100, 5, "south"), (0, 9000, 5, "south"), spec=spec)
    assert simulator.endpoints == ((MODEL, "east"), (MODEL, "west"), (MODEL, "south"))
    advance(simulator, 50)
    assert simulator.observe().num_pooled == 1, "the other is longer than any place can hold"
    assert simulator.observe().totals[0, TOTALS.index("refused")] == 1
    assert "no latency between south" in simulator.apply(Route(0, 0)).reason
    assert simulator.apply(Route(0, 2)).accepted
    simulator.run_to_completion()
    assert simulator.results().finish_s[0] == 0.2


def test_how_long_its_requests_may_be() -> None:
    """As long as the largest place within reach allows, now and after a resize; one that waits keeps its place."""
    large = GroupSpec(replace(REPLICA, kv_blocks=200), 1, region="west")
    spec = replace(SPEC, groups=(SPEC.groups[0], large), network=(NetworkLatency(("south", "west"), 0.1),))
    simulator = fleet((0, 2000, 5, "south"), (50, 10, 5, "south"), spec=spec)
    assert simulator.world.endpoints["max_request_tokens"].tolist() == [1600, 3200, 3200]
    advance(simulator, 10)
    assert "a request waits" in simulator.apply(ResizeKV(2, 100)).reason
    assert simulator.apply(Route(0, 2)).accepted
    assert "a request waits" in simulator.apply(ResizeKV(2, 100)).reason
    assert simulator.apply(ResizeKV(2, 150)).accepted
    assert simulator.world.endpoints["max_request_tokens"].tolist() == [1600, 2400, 2400]
    advance(simulator, 500)
    assert simulator.results().outcome[0] == FINISHED


def test_a_region_that_no_way_leads_from() -> None:
    """As before there were ways: most likely a name is wrong."""
    with pytest.raises(
        ValueError, match=r"region 'south', which must name one endpoint.*fleet\.network must lead"
    ):
        fleet((0, 100, 5, "south"))


def test_a_model_that_is_in_one_region_only() -> None:
    """The other model of the region is served at home."""
    groups = (*SPEC.groups, GroupSpec(ReplicaSpec("llama-3.1-70b", "H100", tp_size=4), 1, region="west"))
    workload = replace(
        load((0, 100, 5, "east"), (0, 100, 5, "east")),
        model_id=np.array([0, 1]),
        models=(MODEL, "llama-3.1-70b"),
    )
    simulator = FleetSimulator(replace(SPEC, groups=groups, router="jsq"), SLOS)
    simulator.reset(workload)
    simulator.advance(1.0)
    assert simulator.results().engine.tolist() == [0, -1]
    assert "does not serve" in simulator.apply(Route(1, 2)).reason
    assert simulator.apply(Route(1, 4)).accepted
    simulator.run_to_completion()
    assert simulator.results().engine.tolist() == [0, 4]
    assert simulator.results().first_scheduled_s[1] == 1.25


def test_disaggregated_prefill_far_away() -> None:
    """What is prefilled in a region is decoded there."""
    groups = tuple(
        GroupSpec(replace(REPLICA, role=role), 1, region=region)
        for region in ("east", "west")
        for role in ("prefill", "decode")
    )
    simulator = FleetSimulator(replace(SPEC, groups=groups), SLOS)
    simulator.reset(load((0, 100, 5, "east"), (0, 100, 5, "west")))
    simulator.advance(0.0)
    assert "does not serve" in simulator.apply(Route(0, 3)).reason
    assert simulator.apply(Route(0, 2)).accepted
    assert simulator.apply(Route(1, 0)).accepted
    simulator.run_to_completion()
    assert simulator.results().engine.tolist() == [3, 1]


def test_a_request_served_far_away_migrates_within_that_region() -> None:
    simulator = fleet((0, 100, 60, "east"))
    advance(simulator, 0)
    assert simulator.apply(Route(0, 2)).accepted
    advance(simulator, 300)
    assert "another endpoint" in simulator.apply(Migrate(0, 0)).reason
    assert simulator.apply(Migrate(0, 3)).accepted
    simulator.run_to_completion()
    assert simulator.results().engine.tolist() == [3]


def test_a_trace_in_pieces_from_several_regions() -> None:
    """Regions are named when the stream begins."""
    pieces = [
        load(*[(1000 * part + i, 10, 5, region) for i in range(3) for region in ("east", "west")])
        for part in range(3)
    ]
    tally = run_stream(FleetSimulator(replace(SPEC, router="jsq"), SLOS), pieces)
    assert [tally.summary(endpoint)["requests"] for endpoint in (0, 1)] == [9, 9]
    network = (*EAST_WEST, NetworkLatency(("south", "west"), 0.1))
    simulator = FleetSimulator(replace(SPEC, network=network), SLOS)
    simulator.reset(load((0, 10, 5, "east")))
    with pytest.raises(ValueError, match="region 'south'"):
        simulator.endpoints_of(load((0, 10, 5, "south")))


# -- input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NetworkLatency(("east",), 0.1), r"network\.regions must be two regions"),
        (lambda: NetworkLatency(("east", "east"), 0.1), r"network\.regions must be two regions"),
        (
            lambda: NetworkLatency(("east", "west"), -0.1),
            r"network\.round_trip_s must be finite and not negative",
        ),
        (
            lambda: NetworkLatency(("a", "b"), float("nan")),
            r"network\.round_trip_s must be finite and not negative",
        ),
        (
            lambda: replace(SPEC, network=(*EAST_WEST, NetworkLatency(("east", "west"), 1.0))),
            r"fleet\.network names east and west more than once",
        ),
        (lambda: replace(SPEC, default_round_trip_s=-1.0), r"fleet\.default_round_trip_s must be finite"),
    ],
)
def test_what_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_network_from_a_file_and_nobody_who_routes() -> None:
    """As YAML gives it; commands in which no policy decides refuse requests that only other regions serve."""
    cluster = cluster_of(
        {
            "groups": [{"replica": {"model": MODEL, "gpu": "H100"}, "count": 1, "region": "west"}],
            "network": [{"regions": ["south", "west"], "round_trip_s": 0.1}],
        }
    )
    assert isinstance(cluster, FleetConfig)
    assert cluster.round_trip_s("west", "south") == 0.1
    check_unattended(cluster, load((0, 10, 5, "west")))
    with pytest.raises(ValueError, match=r"from south, where cluster\.groups has no replicas.*only a policy"):
        check_unattended(cluster, load((0, 10, 5, "west"), (0, 10, 5, "south")))


# -- whatever happens --------------------------------------------------------------------------------------------------

whims = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 10, 60, 100, 260]),  # ms later
        st.sampled_from(["route"] * 8 + ["migrate", "stop", "stop at once", "start", "resize"]),
        st.integers(0, 60),
        st.booleans(),  # whether a fork is taken
    ),
    min_size=4,
    max_size=30,
)
crashes = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 3)), max_size=3)


def command_of(simulator: FleetSimulator, what: str, number: int) -> FleetCommand:
    """Something about a request that is there, or at a place."""
    requests, place = simulator.world.requests, number % 4
    there = np.sort(requests["index"][(requests["phase"] != FREE) & (requests["engine"] < 0)])
    moving = np.sort(requests["index"][(requests["phase"] != FREE) & (requests["engine"] >= 0)])
    if what == "route":
        return Route(int(there[number // 4 % len(there)]) if len(there) else 0, place)
    if what == "migrate":
        return Migrate(int(moving[number // 4 % len(moving)]) if len(moving) else 0, place)
    if what == "resize":
        return ResizeKV(place, 20 + number)
    return Start(place) if what == "start" else Stop(place, drain=what == "stop")


def obey(simulator: FleetSimulator, gap_ms: int, what: str, number: int) -> None:
    """Lets time pass and gives a command; requests are in one place each."""
    advance(simulator, simulator.now_ps / MS + gap_ms)
    simulator.apply(command_of(simulator, what, number))
    world = simulator.world
    on_the_way = int((world.requests["phase"] == TRANSIT).sum())
    held = int(world.engines["num_running"].sum() + world.engines["num_waiting"].sum())
    cluster = world.cluster[0]
    assert held + on_the_way + cluster["num_pooled"] == cluster["num_in_flight"]
    assert (world.engines["used_blocks"] <= world.engines["capacity_blocks"]).all()


def conclude(simulator: FleetSimulator) -> tuple[object, ...]:
    """Brings all places into service, sends what waits somewhere, and lets all requests end; returns what became."""
    for _ in range(2):
        advance(simulator, simulator.now_ps / MS + 60_000)
        for place in range(4):
            simulator.apply(Start(place))
    requests = simulator.world.requests
    for request in np.sort(requests["index"][(requests["phase"] != FREE) & (requests["engine"] < 0)]):
        assert any(simulator.apply(Route(int(request), place)).accepted for place in range(4))
    simulator.run_to_completion()
    advance(simulator, simulator.now_ps / MS + 10_000)
    engines, records = simulator.world.engines, simulator.results()
    for name in ("used_blocks", "num_running", "num_waiting", "num_kept", "num_leaving"):
        assert not engines[name].any(), name
    assert simulator.observe().num_pooled == simulator.observe().pooled_tokens == 0
    columns = (records.first_token_s, records.finish_s, records.outcome, records.engine, records.preemptions)
    return tuple(column.tobytes() for column in columns)


@given(whims, crashes, st.integers(0, 1000), st.sampled_from(["hold", "jsq"]))
def test_every_request_ends_once_and_forks_agree(
    plan: list[tuple[int, str, int, bool]], lost: list[tuple[int, int]], seed: int, router: str
) -> None:
    """Two regions with replicas and one without; replicas go and come."""
    random = np.random.default_rng(seed)
    origins = ("east", "west", "south")
    rows = [
        (20.0 * i, int(random.integers(1, 200)), int(random.integers(1, 60)), origins[random.integers(3)])
        for i in range(20)
    ]
    faults = tuple(Crash(at_ms / 1000, place) for at_ms, place in lost)
    spec = replace(SPEC, router=router, default_round_trip_s=0.07)
    simulator = fleet(*rows, spec=spec, faults=faults)
    forks: list[tuple[FleetSimulator, int]] = []
    for done, (gap_ms, what, number, forked) in enumerate(plan):
        obey(simulator, gap_ms, what, number)
        if forked:
            copy = pickle.loads(pickle.dumps(simulator)) if done % 2 else simulator.fork()
            forks.append((copy, done + 1))
    became = conclude(simulator)
    records = simulator.results()
    assert len(records) == len(rows)
    assert set(records.outcome.tolist()) <= {FINISHED, FAILED}
    assert (records.first_token_s > records.arrival_s)[records.outcome == FINISHED].all()
    for fork, done in forks[-2:]:
        for gap_ms, what, number, _ in plan[done:]:
            obey(fork, gap_ms, what, number)
        assert conclude(fork) == became
