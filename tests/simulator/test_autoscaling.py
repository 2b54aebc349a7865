"""A fleet that is scaled: its gateway and queue manager, its machines, and the times that instances take to come."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from serving_gym.calibration.models import get_model
from serving_gym.envs.interface.fleet import Crash, FleetSpec, GroupSpec, NetworkLatency, ReplicaSpec
from serving_gym.envs.interface.scaling import (
    Endpoint,
    MachineSpec,
    Operation,
    Pool,
    QueueSpec,
    Release,
    ReleaseLevel,
    ScaleChange,
)
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.autoscaling.simulator import AutoscalingSimulator
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.router_view import tracked_slots
from serving_gym.envs.simulator.kernel.state import FREE
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.streams import WholeStream

MODEL, OTHER = "llama-3.1-8b", "llama-2-13b"
REPLICA = ReplicaSpec(MODEL, "H100", kv_blocks=1000)
BLOCK = REPLICA.block_size
SLOS = (SLO(1.0, 0.1), SLO(86_400.0, 1.0))
CLASSES = ("chat", "niw")
MACHINES = MachineSpec()
QUEUE = QueueSpec(signal_period_s=1.0, levels=(ReleaseLevel(0.6, 0.5),), level=0)


def workload(rows, regions=("",), models=("",)) -> Workload:
    """Rows of (arrival, input, output, class, region, model), the last two may be left out."""
    rows = sorted((*row, *(0, 0)[len(row) - 4 :]) for row in rows)
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Workload(
        arrival_s=columns[0].astype(float),
        input_tokens=columns[1],
        output_tokens=columns[2],
        priority=columns[3],
        class_id=columns[3],
        classes=CLASSES,
        region_id=columns[4],
        regions=regions,
        model_id=columns[5],
        models=models,
    )


def fleet(*groups: GroupSpec, **values) -> FleetSpec:
    return FleetSpec(groups, **{"order": "priority", "start_fixed_s": 30.0, **values}, engine="")


def opened(
    requests: Workload, spec: FleetSpec, machines=MACHINES, queue=QUEUE, faults=(), seed=0, length_s=1e6
):
    simulator = AutoscalingSimulator(spec, SLOS, machines, queue, (True, False))
    stream = WholeStream(requests, requests.head(1), 0.0, length_s)
    simulator.open(stream, seed, (5.0, 12), (60.0, 5, 4000), PredictionSpec("oracle"), True, faults)
    return simulator


def served(simulator, limit_s=4000.0):
    while not simulator.empty and simulator.now_s < limit_s:
        simulator.advance(simulator.now_s + 7.0)
    return simulator.results()


def at(model=MODEL, region="local") -> Endpoint:
    return Endpoint(model, region)


# -- the gateway -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_rps", [2.0, 40.0])
def test_in_one_place_without_a_queue_it_is_the_fleet_with_the_built_in_router(rate_rps):
    drawn = WorkloadSource(WorkloadSpec("azure_conv_fitted", num_requests=2000, rate_rps=rate_rps)).sample(0)
    requests = replace(drawn, classes=CLASSES, class_id=np.arange(2000, dtype=np.int32) % 2)
    spec = fleet(GroupSpec(REPLICA, 3), router="jsq")
    plain = FleetSimulator(spec, SLOS)
    plain.reset(requests)
    plain.run_to_completion()
    ours = served(opened(requests, spec, queue=replace(QUEUE, hold=False)))
    theirs = plain.results()
    np.testing.assert_array_equal(ours.engine, theirs.engine)
    np.testing.assert_allclose(ours.finish_s, theirs.finish_s, atol=1e-3)  # kept in single precision
    np.testing.assert_array_equal(ours.preemptions, theirs.preemptions)


REGIONS = ("east", "west", "north")


def three_regions(counts=(1, 1, 1), **values) -> FleetSpec:
    groups = [GroupSpec(REPLICA, count, 2, region) for count, region in zip(counts, REGIONS, strict=True)]
    return fleet(*groups, default_round_trip_s=0.5, **values)


def test_a_region_without_instances_is_served_by_another_after_the_latency():
    requests = workload([(1.0, 100, 5, 0, 1), (2.0, 100, 5, 0, 0)], REGIONS)
    records = served(opened(requests, three_regions((1, 0, 0))))
    assert records.engine.tolist() == [0, 0]
    assert records.first_scheduled_s == pytest.approx([1.5, 2.0], abs=1e-6)


def test_requests_from_near_and_far_arrive_each_after_its_own_latency():
    """Two hundred, all served in the north; those from the west overtake what came from the east before."""
    rng = np.random.default_rng(0)
    rows = [
        (time_s, 10, 2, 0, origin)
        for time_s, origin in zip(rng.uniform(1, 9, 200), rng.integers(0, 3, 200), strict=True)
    ]
    trips_s = np.array([0.5, 0.1, 0.0])
    ways = [
        NetworkLatency((region, "north"), trip_s)
        for region, trip_s in zip(REGIONS[:2], trips_s, strict=False)
    ]
    requests = workload(rows, REGIONS)
    records = served(opened(requests, three_regions((0, 0, 1), network=tuple(ways))))
    late_s = records.first_scheduled_s - records.arrival_s - trips_s[requests.region_id]
    assert late_s.min() > -1e-6
    assert late_s.max() < 0.02  # an iteration
    assert (np.diff(records.first_scheduled_s) < 0).sum() > 10


def test_requests_stay_at_home_under_the_threshold_and_go_to_the_least_utilised_above():
    """East's one instance holds 12,000 of 16,000 tokens (75 %), west's 13,000: what comes from east goes north."""
    long = [(0.0, 12_000, 600, 0, 0), (0.0, 13_000, 600, 0, 1)]
    requests = workload([*long, (3.0, 10, 2, 0, 0), (3.1, 10, 2, 0, 2)], REGIONS)
    records = served(opened(requests, three_regions()))
    assert records.engine.tolist() == [0, 2, 4, 4]
    assert records.first_scheduled_s[2:] - records.arrival_s[2:] == pytest.approx([0.5, 0.0], abs=0.05)
    long.append((0.0, 14_000, 600, 0, 2))  # all above: the least utilised is east itself
    records = served(opened(workload([*long, (3.0, 10, 2, 0, 1)], REGIONS), three_regions()))
    assert records.engine.tolist() == [0, 2, 4, 0]


def test_what_a_request_will_still_take_does_not_count_towards_the_threshold():
    """East holds 10,800 tokens and a little, under 70 % of 16,000, and 11,500 (72 %) when its answer ends."""
    requests = workload([(0.0, 10_800, 700, 0, 0), (2.0, 10, 2, 0, 0)], REGIONS)
    simulator = opened(requests, three_regions())
    simulator.advance(2.5)
    assert 0.68 < simulator.world.engines["used_blocks"][0] / 1000 < 0.7
    assert served(simulator).engine.tolist() == [0, 0]


def test_one_on_its_way_to_an_instance_that_goes_is_sent_anew():
    requests = workload([(1.0, 100, 5, 0, 1)], REGIONS)
    simulator = opened(requests, three_regions((2, 0, 1)))
    simulator.advance(1.2)
    assert simulator.change(ScaleChange(at(region="east"), Operation.STOP, 2)).accepted
    records = served(simulator)
    assert records.engine.tolist() == [4]
    assert records.first_scheduled_s[0] == pytest.approx(2.0, abs=1e-6)  # 0.5 s to east, 0.5 s to north


# -- the queue manager -------------------------------------------------------------------------------------------------


def test_an_idle_endpoint_pulls_two_a_signal_the_oldest_first():
    requests = workload([(0.1 * number, 10, 2, 1) for number in range(1, 7)])
    records = served(opened(requests, fleet(GroupSpec(REPLICA, 1))))
    assert records.first_scheduled_s == pytest.approx([1.0, 1.0, 2.0, 2.0, 3.0, 3.0], abs=0.02)


def test_who_looks_at_all_requests_passes_over_those_in_line():
    """Every other one stands in line; two hundred of them are more than there were slots for."""
    requests = workload([(0.01 * number, 10, 50, number % 2) for number in range(400)])
    simulator = opened(requests, fleet(GroupSpec(REPLICA, 1)))

    def tracked() -> list[int]:
        slots = np.empty(len(simulator.world.requests), np.int32)
        return slots[: tracked_slots(simulator.world, slots)].tolist()

    simulator.advance(4.0)
    inside = np.flatnonzero(simulator.world.requests["phase"] != FREE).tolist()
    line, slot = [], int(simulator.gate.lines["first"][0])
    while slot >= 0:
        line.append(slot)
        slot = int(simulator.world.requests["next"][slot])
    assert len(line) > 100
    assert tracked() == sorted(set(inside) - set(line)) != []
    served(simulator)
    assert tracked() == []


@pytest.mark.parametrize(("tokens", "each"), [(7_000, 2), (8_600, 1), (10_400, 0)])
def test_below_half_two_below_sixty_percent_one_above_none(tokens, each):
    """The pool holds 16,000 tokens: 44 %, 54 % and 65 % of it, and a little more by then."""
    waiting = [(1.5, 10, 2, 1)] * 4
    simulator = opened(workload([(0.0, tokens, 1000, 0), *waiting]), fleet(GroupSpec(REPLICA, 1)))
    simulator.advance(2.5)
    assert simulator.gate.lines["batch_use"][0] == pytest.approx(tokens / 16_000, abs=0.03)
    assert simulator.gate.lines["count"][0] == 4 - each


def test_released_at_completions_as_many_leave_as_were_completed_since_the_last_signal():
    """Three requests end between the signals at 1 s and 2 s, in other calls than the signal: six of ten leave."""
    ending = [(1.1, 10, 20, 0)] * 3
    requests = workload([*ending, *[(0.5, 10, 2, 1)] * 10, (0.0, 7_000, 3000, 0)])
    left = {}
    for release in ("signal", "completion"):
        simulator = opened(requests, fleet(GroupSpec(REPLICA, 1)), queue=replace(QUEUE, release=release))
        for now_s in (0.95, 1.05, 1.6, 1.95):
            simulator.advance(now_s)
        before = int(simulator.gate.lines["count"][0])
        completed = len(simulator.results().finish_s) - int(np.isnan(simulator.results().finish_s).sum())
        simulator.advance(2.05)
        left[release] = before - int(simulator.gate.lines["count"][0])
        assert completed >= 3
    assert left["signal"] == 2
    assert left["completion"] == min(before, 2 * completed)


def test_other_levels_release_otherwise():
    levels = (ReleaseLevel(0.0, 0.0), ReleaseLevel(1.0, 1.0, 3))
    requests = workload([(0.5, 10, 2, 1)] * 9)
    simulator = opened(requests, fleet(GroupSpec(REPLICA, 1)), queue=replace(QUEUE, levels=levels))
    simulator.advance(5.5)
    assert simulator.gate.lines["count"][0] == 9
    assert simulator.change(Release(at(), 1)).accepted
    simulator.advance(6.5)
    assert simulator.gate.lines["count"][0] == 3  # a full signal is two times three
    assert simulator.gate.lines["tokens"][0] == 3 * 12


def test_the_least_utilised_endpoint_of_the_model_pulls_first_wherever_requests_come_from():
    requests = workload([(0.0, 4_000, 300, 0, 0), (1.5, 10, 2, 1, 0), (1.6, 10, 2, 1, 0)], REGIONS)
    records = served(opened(requests, three_regions((1, 1, 0))))
    assert records.engine.tolist() == [0, 2, 2]
    assert records.first_scheduled_s[1:] == pytest.approx([2.5, 2.5], abs=0.02)


def test_what_is_about_to_miss_its_deadline_leaves_and_what_is_old_is_urgent():
    never = (ReleaseLevel(0.0, 0.0),)
    queue = replace(QUEUE, levels=never, deadline_s=100.0, deadline_margin_s=40.0, aged_s=20.0)
    requests = workload([(0.5, 10, 2, 1), (10.5, 10, 2, 1)])
    records = served(opened(requests, fleet(GroupSpec(REPLICA, 1)), queue=queue))
    assert records.first_scheduled_s == pytest.approx([61.0, 71.0], abs=0.02)


def test_one_that_is_old_is_as_urgent_as_any():
    queue = replace(QUEUE, levels=(ReleaseLevel(0.0, 0.0), ReleaseLevel(1.0, 0.0)), aged_s=20.0)
    requests = workload([(0.0, 10, 2, 0), (0.5, 10, 1500, 1), (20.5, 10, 1500, 1)])
    simulator = opened(requests, fleet(GroupSpec(REPLICA, 1)), queue=queue)
    simulator.advance(30.5)
    simulator.set_release(0, 1)
    simulator.advance(32.5)
    inside = simulator.world.requests[simulator.world.requests["phase"] > 0]
    assert dict(zip(inside["index"].tolist(), inside["level"].tolist(), strict=True)) == {1: 0, 2: 1}


def test_pools_keep_apart_what_they_are_for():
    spec = fleet(GroupSpec(REPLICA, 0, 2))
    requests = workload([(100.0 + number, 10, 2, number % 2) for number in range(8)])
    simulator = opened(requests, spec, MachineSpec(start_s=10.0), replace(QUEUE, hold=False))
    for pool in (Pool.INTERACTIVE, Pool.BATCH):
        simulator.change(ScaleChange(at(), Operation.START, 1, pool=pool))
    records = served(simulator)
    assert records.engine.tolist() == [0, 1] * 4


def test_where_nothing_runs_requests_wait_and_are_seen():
    requests = workload([(1.0, 10, 2, 0), (2.0, 10, 2, 1)])
    simulator = opened(requests, fleet(GroupSpec(REPLICA, 0, 1)), MachineSpec(start_s=10.0))
    simulator.advance(3.0)
    assert simulator.held_by_gateway().tolist() == [1]
    simulator.change(ScaleChange(at(), Operation.START, 1))
    records = served(simulator)
    assert records.first_scheduled_s == pytest.approx([13.0, 14.0], abs=1e-6)  # the other waits for a signal


# -- machines ----------------------------------------------------------------------------------------------------------


def two_models(machines: MachineSpec, **values):
    spec = fleet(GroupSpec(REPLICA, 1, 4), GroupSpec(ReplicaSpec(OTHER, "H100"), 1, 4))
    requests = workload([(0.0, 10, 2, 0), (5000.0, 10, 2, 0)], models=(MODEL, OTHER))
    return opened(requests, spec, machines, **values)


def ready_s(simulator, change: ScaleChange) -> float:
    """How long an instance takes to come."""
    before = simulator.now_s
    running = (simulator.world.engines["status"] == EngineStatus.ACTIVE).sum()
    receipt = simulator.change(change)
    assert receipt.accepted, receipt.reason
    while (simulator.world.engines["status"] == EngineStatus.ACTIVE).sum() == running:
        simulator.advance_ps(simulator.clockwork.next_due_ps())
    return simulator.now_s - before


def test_instances_come_as_fast_as_their_source_allows():
    machines = MachineSpec(per_region={"1xH100": 8}, spot=2, without_weights=(f"{OTHER}@local",))
    simulator = two_models(machines)
    weights = get_model(MODEL).weight_bytes / simulator.spec.storage_bytes_per_s
    assert ready_s(simulator, ScaleChange(at(), Operation.START, 1)) == pytest.approx(weights + 30.0)
    assert ready_s(simulator, ScaleChange(at(), Operation.REDEPLOY, 1, donor=OTHER)) == pytest.approx(600.0)
    assert ready_s(simulator, ScaleChange(at(OTHER), Operation.REDEPLOY, 1, donor=MODEL)) == pytest.approx(
        7200.0
    )
    assert ready_s(simulator, ScaleChange(at(OTHER), Operation.START, 1)) == pytest.approx(7200.0)
    drawn = ready_s(simulator, ScaleChange(at(), Operation.RECLAIM, 1))
    assert 12.0 <= drawn <= 300.0
    again = two_models(machines)
    assert ready_s(again, ScaleChange(at(), Operation.RECLAIM, 1)) == pytest.approx(drawn)  # the first
    assert ready_s(two_models(machines, seed=1), ScaleChange(at(), Operation.RECLAIM, 1)) != drawn


def test_reclaims_have_the_papers_median_and_longest_time():
    plane = two_models(MachineSpec()).plane
    drawn = np.array([plane.reclaim_s(0) for _ in range(2000)])
    assert np.median(drawn) == pytest.approx(60.0, rel=0.1)
    assert 290.0 < drawn.max() <= 300.0


def test_machines_go_from_hand_to_hand():
    simulator = two_models(MachineSpec(per_region={"1xH100": 5}, spot=1))
    stock = simulator.plane.inventory

    def holds():
        return stock.vacant.sum(), stock.spot.sum(axis=1).tolist()

    assert holds() == (1, [1, 1])
    assert ready_s(simulator, ScaleChange(at(), Operation.REDEPLOY, 1, donor=OTHER)) == 600.0
    assert holds() == (1, [1, 0])
    simulator.change(ScaleChange(at(), Operation.DONATE, 2))
    simulator.advance(simulator.now_s + 1.0)
    assert holds() == (1, [3, 0])
    simulator.change(ScaleChange(at(OTHER), Operation.STOP, 1))
    simulator.advance(simulator.now_s + 1.0)
    assert holds() == (2, [3, 0])
    receipt = simulator.change(ScaleChange(at(OTHER), Operation.START, 3))
    assert receipt.reason == "2 of 3: there are no more vacant 1xH100 in local"
    assert holds() == (0, [3, 0])


def test_what_goes_finishes_what_it_has_first_and_what_starts_goes_at_once():
    simulator = opened(workload([(0.0, 100, 400, 0)]), fleet(GroupSpec(REPLICA, 1, 2)))
    simulator.advance(1.0)
    assert simulator.change(ScaleChange(at(), Operation.START, 1)).accepted
    assert simulator.change(ScaleChange(at(), Operation.STOP, 1)).accepted  # the one that starts
    assert simulator.world.engines["status"].tolist() == [EngineStatus.ACTIVE, EngineStatus.INACTIVE]
    simulator.change(ScaleChange(at(), Operation.DONATE, 1, places=(0,)))
    assert simulator.plane.inventory.spot.sum() == 0
    records = served(simulator)
    assert records.finished.all()
    assert simulator.plane.inventory.spot.sum() == 1
    drained_s = simulator.plane.inventory.held_ns[0, 0, 2] / 1e9
    assert drained_s == pytest.approx(records.finish_s[0] - 1.0, abs=1e-3)


def test_the_one_with_the_fewest_requests_goes_first():
    requests = workload([(0.0, 100, 400, 0), (0.1, 50, 400, 0), (0.2, 50, 400, 0)])
    simulator = opened(requests, fleet(GroupSpec(REPLICA, 2)))
    simulator.advance(1.0)
    assert simulator.world.engines["num_running"].tolist() == [1, 2]
    simulator.change(ScaleChange(at(), Operation.STOP, 1))
    assert simulator.world.engines["status"].tolist() == [EngineStatus.DRAINING, EngineStatus.ACTIVE]


def test_a_crash_brings_an_instance_back_and_ends_one_that_drains():
    faults = (Crash(2.0, 0), Crash(2.0, 1))
    requests = workload([(0.0, 100, 2000, 0), (0.1, 100, 2000, 0), (500.0, 10, 2, 0)])
    simulator = opened(requests, fleet(GroupSpec(REPLICA, 2)), faults=faults)
    simulator.advance(1.0)
    simulator.change(ScaleChange(at(), Operation.DONATE, 1, places=(1,)))
    simulator.advance(3.0)
    assert simulator.world.engines["status"].tolist() == [EngineStatus.DOWN, EngineStatus.INACTIVE]
    assert simulator.plane.inventory.spot.sum() == 1
    records = served(simulator)
    assert records.finished.tolist() == [False, False, True]
    simulator = opened(requests, fleet(GroupSpec(REPLICA, 2)), MachineSpec(start_s=50.0), faults=faults[:1])
    simulator.advance(51.9)
    assert simulator.world.engines["status"][0] == EngineStatus.DOWN
    simulator.advance(52.1)
    assert simulator.world.engines["status"][0] == EngineStatus.ACTIVE


def test_a_request_is_in_the_bins_it_belongs_to():
    """One interactive request of 100 + 50 tokens in one endpoint with one instance."""
    simulator = opened(workload([(62.0, 100, 50, 0), (130.0, 10, 2, 0)]), fleet(GroupSpec(REPLICA, 1)))
    for until in (61.5, 62.5, 63.0, 120.0, 200.0):
        simulator.advance(until)
    rows = simulator.books.history.traffic(0, simulator.now_ps).rows[5:]
    record = simulator.results()
    assert rows["requests"].tolist() == [0, 1, 1]
    assert rows["input_tokens"].tolist() == [0, 100, 10]
    assert rows["output_tokens"].tolist() == [0, 50, 2]
    assert rows["first_tokens"].tolist() == [0, 1, 1]
    assert rows["ttft_sum_s"][1] == pytest.approx(record.ttft_s[0], abs=1e-5)
    assert rows["tpot_sum_s"][1] == pytest.approx(record.tpot_s[0], abs=1e-5)
    assert rows["mean_concurrency"][1] == pytest.approx(record.e2e_s[0] / 60.0, rel=1e-4)
    assert rows["mean_instances"].tolist() == [1, 1, 1]
    assert rows["violations"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("slice_s", [7.0, 30.0, 400.0])
def test_bins_hold_what_happened_however_time_is_cut(slice_s):
    """Against records, by minutes and by five seconds, with two classes, a crowd that waits and one that preempts."""
    rng = np.random.default_rng(0)
    crowd = [(at_s, 200, 300, int(rng.random() < 0.3)) for at_s in np.sort(rng.uniform(0, 10, 400))]
    replica = replace(REPLICA, kv_blocks=200)
    simulator = opened(workload(crowd), fleet(GroupSpec(replica, 1)), queue=replace(QUEUE, hold=False))
    waited = 0
    while not simulator.empty:
        simulator.advance(simulator.now_s + slice_s)
        waited = max(waited, int(simulator.world.engines["num_waiting"][0]))
    records = simulator.results()
    assert waited > 20 or slice_s > 60
    assert records.preemptions.sum() > 0
    own = records.class_id == 0
    inside_s = np.where(own, records.arrival_s, records.first_scheduled_s)
    for bins, skipped in ((simulator.books.history, 5), (simulator.books.recent, 0)):
        rows = bins.traffic(0, simulator.now_ps).rows[skipped:]
        length_s = bins.bin_ps / 1e12
        begins_s = bins.begin_ps / 1e12 + length_s * (skipped + np.arange(len(rows)))
        for begin_s, row in zip(begins_s, rows, strict=True):
            end_s = begin_s + length_s
            shared_s = np.minimum(records.finish_s, end_s) - np.maximum(inside_s, begin_s)
            first = own & (records.first_token_s > begin_s) & (records.first_token_s <= end_s)
            late = first & (records.ttft_s > SLOS[0].ttft_s)
            assert row["mean_concurrency"] == pytest.approx(
                np.maximum(shared_s, 0).sum() / length_s, abs=1e-3
            )
            assert row["first_tokens"] == first.sum()
            assert row["ttft_sum_s"] == pytest.approx(records.ttft_s[first].sum(), abs=1e-3)
            assert row["violations"] >= late.sum()


def test_pieces_follow_each_other_without_a_seam():
    drawn = WorkloadSource(WorkloadSpec("azure_conv_fitted", num_requests=3000, rate_rps=10.0)).sample(0)
    requests = replace(drawn, classes=CLASSES)
    spec = fleet(GroupSpec(REPLICA, 2))
    stream = WholeStream(requests, requests.head(1), 0.0, 1e6)
    records = []
    for piece_s in (3600.0, 20.0):
        simulator = AutoscalingSimulator(spec, SLOS, MachineSpec(), QUEUE, (True, False))
        cut = replace(stream, piece_s=piece_s)
        simulator.open(cut, 0, (5.0, 12), (60.0, 5, 100), PredictionSpec("oracle"), True)
        records.append(served(simulator))
        assert len(records[-1]) == 3000
    np.testing.assert_array_equal(records[0].finish_s, records[1].finish_s)
    assert all(one <= two for one, two in pairwise(records[1].arrival_s))
