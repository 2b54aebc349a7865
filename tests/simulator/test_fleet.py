"""Fleets: requests go to the endpoint of their model and region; replicas start, stop and cost what they are kept."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec, Route, Start, Stop
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(1.0, 0.1),)
SMALL = ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=16)
LARGE = ReplicaSpec("llama-3.1-70b", "H100", tp_size=4, max_num_seqs=16)


def load(requests: int, seed: int = 0, gap_s: float = 0.05) -> Workload:
    """Requests for two models from two regions."""
    random = np.random.default_rng(seed)
    return Workload(
        arrival_s=np.cumsum(random.exponential(gap_s, requests)),
        input_tokens=random.integers(10, 800, requests),
        output_tokens=random.integers(1, 100, requests),
        model_id=random.integers(0, 2, requests),
        models=("llama-3.1-8b", "llama-3.1-70b"),
        region_id=random.integers(0, 2, requests),
        regions=("east", "west"),
    )


def two_by_two(**options: object) -> FleetSpec:
    """Two models in two regions, three places each, two of them taken."""
    groups = tuple(
        GroupSpec(replica, 2, 3, region) for region in ("east", "west") for replica in (SMALL, LARGE)
    )
    return FleetSpec(groups, start_fixed_s=2.0, **options, engine="")  # type: ignore[arg-type]


@pytest.mark.parametrize("router", ["jsq", "round_robin", "least_requests"])
def test_requests_go_to_their_own_endpoint(router: str) -> None:
    """Every request ends on a place of its model in its region."""
    simulator = FleetSimulator(two_by_two(router=router), SLOS)
    workload = load(400)
    simulator.reset(workload)
    simulator.run_to_completion()
    records = simulator.results()
    assert np.isfinite(records.finish_s).all()
    for row in range(len(workload)):
        group = simulator.fleet.places[records.engine[row]]
        assert group.replica.model == workload.models[workload.model_id[row]]
        assert group.region == workload.regions[workload.region_id[row]]
    assert len(np.unique(records.engine)) == 8


def test_a_started_replica_serves_after_its_weights_have_come() -> None:
    """The start takes its fixed part and the load of the weights from storage."""
    simulator = FleetSimulator(FleetSpec((GroupSpec(SMALL, 0, 1),), start_fixed_s=2.0, engine=""), SLOS)
    simulator.reset(Workload(np.array([0.5]), np.array([100]), np.array([10])))
    assert simulator.apply(Start(0)).accepted
    simulator.advance(1.0)
    assert simulator.observe().num_pooled == 1
    (operation,) = simulator.observe().operations
    simulator.run_to_completion()
    assert operation.due_s is not None
    assert simulator.results().first_scheduled_s[0] == operation.due_s > 5.0
    assert simulator.observe().operations == ()


@pytest.mark.parametrize("drain", [True, False])
def test_a_stopped_replica_loses_nothing(drain: bool) -> None:
    """What it runs ends there or is computed again elsewhere; what waits goes elsewhere."""
    simulator = FleetSimulator(FleetSpec((GroupSpec(SMALL, 2),), engine=""), SLOS)
    simulator.reset(Workload(np.zeros(60), np.full(60, 300), np.full(60, 50)))
    simulator.advance(0.3)
    assert simulator.apply(Stop(0, drain)).accepted
    assert not simulator.apply(Stop(0, drain)).accepted
    simulator.run_to_completion()
    records = simulator.results()
    assert np.isfinite(records.finish_s).all()
    assert (records.engine == 0).any() == drain
    assert simulator.observe().engines["status"].tolist() == [EngineStatus.INACTIVE, EngineStatus.ACTIVE]


def test_gpu_seconds_run_from_the_start_command_until_the_replica_is_gone() -> None:
    """An empty place costs nothing; a starting or draining replica costs what a serving one does."""
    simulator = FleetSimulator(FleetSpec((GroupSpec(LARGE, 1, 2),), start_fixed_s=2.0, engine=""), SLOS)
    simulator.reset(Workload(np.array([0.0]), np.array([100]), np.array([400])))
    simulator.advance(1.0)
    simulator.apply(Stop(0))
    simulator.advance(3.0)
    simulator.apply(Start(1))
    simulator.run_to_completion()
    simulator.advance(20.0)
    finish = simulator.results().finish_s[0]
    np.testing.assert_allclose(simulator.observe().gpu_seconds, [4 * finish, 4 * 17.0])


def test_a_policy_routes() -> None:
    """With the holding router a request waits until it is sent to a place of its endpoint."""
    simulator = FleetSimulator(two_by_two(router="hold"), SLOS, trigger_classes=(0,))
    workload = load(3)
    simulator.reset(workload)
    assert simulator.advance(10.0)
    (request,) = simulator.observe().waiting
    endpoint = simulator.endpoints_of(workload)[request.index]
    wrong = simulator.fleet.first_place[(endpoint + 1) % 4]
    assert "does not serve" in simulator.apply(Route(request.index, wrong)).reason
    assert simulator.apply(Route(request.index, simulator.fleet.first_place[endpoint])).accepted
    assert "not waiting" in simulator.apply(Route(request.index, wrong)).reason


def test_a_fork_continues_to_the_same_numbers() -> None:
    """In the middle of a start and a stop."""
    simulator = FleetSimulator(two_by_two(), SLOS)
    simulator.reset(load(400))
    simulator.advance(4.0)
    simulator.apply(Start(2))
    simulator.apply(Stop(0))
    simulator.advance(4.1)
    fork = simulator.fork()
    fork.run_to_completion()
    simulator.run_to_completion()
    np.testing.assert_array_equal(simulator.results().finish_s, fork.results().finish_s)
    np.testing.assert_array_equal(simulator.observe().gpu_seconds, fork.observe().gpu_seconds)


def test_a_model_that_nobody_serves_is_refused() -> None:
    """The message names the endpoints that there are."""
    simulator = FleetSimulator(FleetSpec((GroupSpec(SMALL, 1),), engine=""), SLOS)
    with pytest.raises(ValueError, match=r"llama-3.1-70b.*llama-3.1-8b in local"):
        simulator.reset(load(50))


def test_pipeline_stages_hold_a_model_that_does_not_fit_one() -> None:
    """Two stages of two GPUs hold what two GPUs do not, and one request alone is no faster than on one stage."""
    deep = ReplicaSpec("llama-3.1-70b", "H100", tp_size=4, pp_size=2)
    flat = ReplicaSpec("llama-3.1-70b", "H100", tp_size=4)
    times = []
    for replica in (deep, flat):
        simulator = FleetSimulator(FleetSpec((GroupSpec(replica, 1),), engine=""), SLOS)
        simulator.reset(Workload(np.array([0.0]), np.array([100]), np.array([50])))
        simulator.run_to_completion()
        times.append(simulator.results().finish_s[0])
        crowd = Workload(np.zeros(200), np.full(200, 500), np.full(200, 50))
        simulator.reset(crowd)
        simulator.run_to_completion()
        times.append(simulator.results().finish_s.max())
    assert times[0] == pytest.approx(times[2], rel=0.2)
    assert times[1] < 0.8 * times[3]


def test_a_prompt_alone_is_no_faster_through_stages() -> None:
    """Its chunk goes through all of them; prompts that come together overlap."""
    first, last = [], []
    for stages in (1, 2, 4):
        replica = ReplicaSpec("llama-3.1-8b", "H100", pp_size=stages)
        simulator = FleetSimulator(FleetSpec((GroupSpec(replica, 1),), engine=""), SLOS)
        simulator.reset(Workload(np.array([0.0]), np.array([8000]), np.array([2])))
        simulator.run_to_completion()
        first.append(simulator.results().first_token_s[0])
        simulator.reset(Workload(np.zeros(64), np.full(64, 1000), np.full(64, 1)))
        simulator.run_to_completion()
        last.append(simulator.results().finish_s.max())
    assert first[0] < first[1] < first[2] < 1.05 * first[0]
    assert last[2] < 0.6 * last[1] < 0.4 * last[0]
