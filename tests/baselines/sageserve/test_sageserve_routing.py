"""Every branch of sections 6.1 and 6.2 by hand-made states."""

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.baselines.registry import make_policy
from serving_gym.baselines.sageserve.config import SageServeRoutingConfig
from serving_gym.baselines.sageserve.effective_memory import EffectiveMemory
from serving_gym.baselines.sageserve.model_router import deployments_of, least_loaded_deployment
from serving_gym.baselines.sageserve.queue_manager import QueueManager
from serving_gym.baselines.sageserve.region_router import choose_region, order_of_preference
from serving_gym.baselines.sageserve.routing import SageServeRoutingPolicy
from serving_gym.baselines.sageserve.shortest_queue import join_shortest_queue, remaining_tokens
from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, IN_FLIGHT_DTYPE, TOTALS, EngineStatus
from serving_gym.envs.routing.state import Dispatch, RoutedRequest, RoutingState

HOUR = 3600.0
DAY = 24 * HOUR
POOL = 1000  # blocks of 16 tokens
REGIONS = ("east", "west", "central")
IW_F, IW_N, NIW = range(3)


def make_fleet(models, regions, gpus=None):
    n = len(models)
    return NominalEngines(
        models=tuple(models),
        regions=tuple(regions),
        gpus=tuple(gpus or ("H100",) * n),
        num_gpus=np.full(n, 8),
        block_size=np.full(n, 16),
        kv_capacity_tokens=np.full(n, 16 * POOL),
        max_num_seqs=np.full(n, 256),
        max_num_batched_tokens=np.full(n, 8192),
        prefill_s_per_token=np.full(n, 1e-4),
        decode_s=np.full((n, 257), 0.02),
        kv_s_per_token=np.zeros(n),
    )


def make_spec(fleet):
    replica = ReplicaSpec("llama-2-70b", "H100", 8)
    return PolicySpec(
        cluster=FleetSpec((GroupSpec(replica, len(fleet)),)),
        slos=(SLO(1.0, 0.1), SLO(60.0, 0.1), SLO(DAY, 1.0)),
        classes=("iw_f", "iw_n", "niw"),
        decision_interval_s=1.0,
        engines=fleet,
        queue_capacity=1000,
    )


def make_request(class_id=IW_F, region="east", arrival_s=0.0, held=False, deadline_s=None):
    return RoutedRequest(
        index=0,
        arrival_s=arrival_s,
        input_tokens=100,
        predicted_tokens=50,
        max_output_tokens=100,
        priority=class_id,
        class_id=class_id,
        deadline_s=arrival_s + (1.0, 60.0, DAY)[class_id] if deadline_s is None else deadline_s,
        region=region,
        network_s=np.zeros(0),
        hash_ids=np.empty(0, np.int32),
        hash_block_tokens=16,
        cached_tokens=np.zeros(1, np.int64),
        held_before=held,
    )


def make_state(request, used, *, can_take=None, in_flight=(), status=None, now_s=None):
    """`used`: KV blocks in use at each place, of POOL; `in_flight`: rows as dictionaries."""
    n = len(used)
    engines = np.zeros(n, ENGINE_STATE_DTYPE)
    engines["status"] = EngineStatus.ACTIVE if status is None else status
    engines["kv_used_blocks"] = used
    engines["kv_capacity_blocks"], engines["kv_capacity_tokens"] = POOL, 16 * POOL
    rows = np.zeros(len(in_flight), IN_FLIGHT_DTYPE)
    rows["first_token_s"] = -1.0
    for row, values in zip(rows, in_flight, strict=True):
        for name, value in values.items():
            row[name] = value
    now = request.arrival_s if now_s is None else now_s
    return RoutingState(
        now_s=now,
        gauges_s=now,
        engines=engines,
        in_flight=rows,
        request=replace(request, network_s=np.zeros(n)),
        can_take=engines["status"] == EngineStatus.ACTIVE if can_take is None else np.array(can_take),
        num_held=0,
        held_tokens=0,
        unsent_tokens=0,
        gpu_seconds=np.zeros(n),
        operations=(),
        totals=np.zeros((3, len(TOTALS))),
        arrived_predicted_tokens=0,
    )


def policy_for(fleet, **constants):
    policy = SageServeRoutingPolicy(SageServeRoutingConfig(**constants))
    policy.reset(make_spec(fleet), 0)
    return policy


@pytest.fixture
def three_regions():
    """Two instances of one model in each region: places 0, 1 east, 2, 3 west, 4, 5 central."""
    return make_fleet(["m"] * 6, ["east"] * 2 + ["west"] * 2 + ["central"] * 2)


# --- effective memory ---------------------------------------------------------------------------------------------


def test_effective_memory_is_a_ratio_of_sums(three_regions):
    state = make_state(make_request(), [900, 100, 0, 0, 0, 0])
    memory = EffectiveMemory.of(state, three_regions)
    assert memory.utilization(np.array([1, 1, 0, 0, 0, 0], bool)) == (900 + 100) / (1000 + 1000)


def test_only_instances_in_service_count(three_regions):
    status = [EngineStatus.ACTIVE, EngineStatus.DRAINING, EngineStatus.DOWN, EngineStatus.DOWN, 1, 1]
    state = make_state(make_request(), [900, 100, 0, 0, 0, 0], status=status)
    memory = EffectiveMemory.of(state, three_regions)
    assert memory.utilization(np.array([1, 1, 0, 0, 0, 0], bool)) == 0.9
    assert memory.utilization(np.array([0, 0, 1, 1, 0, 0], bool)) == np.inf


# --- region router ------------------------------------------------------------------------------------------------


def test_order_of_preference():
    assert order_of_preference("west", REGIONS, {}) == ["west", "east", "central"]
    assert order_of_preference("west", REGIONS, {"west": ["central"]}) == ["west", "central", "east"]
    assert order_of_preference("", REGIONS, {"west": ["central"]}) == list(REGIONS)


@pytest.mark.parametrize(
    ("utilization", "chosen"),
    [
        ((0.69, 0.10, 0.10), "east"),  # the preferred one is under the threshold
        ((0.70, 0.60, 0.10), "west"),  # not under it: the next that is, though another is emptier
        ((0.70, 0.90, 0.69), "central"),
        ((0.95, 0.80, 0.90), "west"),  # none is: the least utilised
        ((0.80, 0.80, 0.80), "east"),  # equal: the preferred one
    ],
)
def test_choose_region(utilization, chosen):
    assert choose_region(dict(zip(REGIONS, utilization, strict=True)), REGIONS, 0.7) == chosen


def test_a_region_that_does_not_host_the_model_is_passed_over():
    assert choose_region({"west": 0.9, "central": 0.95}, REGIONS, 0.7) == "west"


# --- model router -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instances", "sizes"), [(1, [1]), (2, [2]), (3, [3]), (4, [2, 2]), (7, [3, 2, 2]), (20, [3] * 6 + [2])]
)
def test_deployments_have_two_or_three_instances(instances, sizes):
    numbers = deployments_of(make_fleet(["m"] * instances, ["east"] * instances), 3)
    assert np.bincount(numbers).tolist() == sizes


def test_a_deployment_is_of_one_model_region_and_gpu():
    fleet = make_fleet(
        ["a", "a", "a", "b"], ["east", "east", "west", "east"], ["H100", "A100", "H100", "H100"]
    )
    assert deployments_of(fleet, 3).tolist() == [0, 1, 2, 3]


def test_the_least_loaded_deployment_counts_all_of_its_instances():
    """Utilisation (0.9 + 0.1) / 2 and (0.4 + 0.4) / 2: the second, though the emptiest instance is in the first."""
    fleet = make_fleet(["m"] * 4, ["east"] * 4)
    memory = EffectiveMemory.of(make_state(make_request(), [900, 100, 400, 400]), fleet)
    deployments = np.array([0, 0, 1, 1])
    chosen = least_loaded_deployment(memory, deployments, np.array([True] * 4))
    assert chosen.tolist() == [False, False, True, True]
    only_first = least_loaded_deployment(memory, deployments, np.array([True, True, False, False]))
    assert only_first.tolist() == [True, True, False, False]


# --- join the shortest queue --------------------------------------------------------------------------------------


def test_remaining_tokens():
    answering = {"place": 1, "input_tokens": 5000, "first_token_s": 1.0}
    in_flight = [
        {"place": 0, "input_tokens": 1000, "predicted_tokens": 200},  # all of both
        {**answering, "predicted_tokens": 300, "generated_tokens": 60},  # 240
        {**answering, "predicted_tokens": 5, "generated_tokens": 9},  # longer than predicted: 1
    ]
    state = make_state(make_request(), [0, 0, 0], in_flight=in_flight)
    assert remaining_tokens(state).tolist() == [1200, 241, 0]
    assert join_shortest_queue(state, np.array([True, True, False])) == 1


# --- queue manager ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("utilization", "requests"), [(0.49, 2), (0.5, 1), (0.59, 1), (0.6, 0), (np.inf, 0)])
def test_requests_that_a_signal_releases(utilization, requests):
    assert QueueManager(SageServeRoutingConfig()).requests_for(utilization) == requests


@pytest.mark.parametrize(
    ("age_s", "priority"), [(0.0, 1), (10 * HOUR, 1), (10 * HOUR + 1, 0), (23.5 * HOUR, 0)]
)
def test_priority_by_age(age_s, priority):
    request = make_request(NIW, arrival_s=50.0)
    assert QueueManager(SageServeRoutingConfig()).priority(request, 50.0 + age_s) == priority


def test_signals_are_periodic():
    manager = QueueManager(SageServeRoutingConfig(signal_period_s=2.0))
    assert manager.signal_due(0.0)
    manager.receive(0.0, {})
    assert [manager.signal_due(now_s) for now_s in (0.5, 1.9, 2.0, 7.0)] == [False, False, True, True]
    manager.receive(7.0, {})  # one period of those that were missed
    assert [manager.signal_due(now_s) for now_s in (7.9, 8.0)] == [False, True]


def test_what_a_signal_does_not_use_lapses():
    manager = QueueManager(SageServeRoutingConfig())
    held = make_request(NIW, held=True)
    manager.receive(1.0, {("m", "east"): 0.3})
    assert manager.release(held, "m", {"east"}) == "east"
    manager.receive(2.0, {("m", "east"): 0.55})
    assert [manager.release(held, "m", {"east"}) for _ in range(2)] == ["east", None]


def test_a_signal_is_for_what_stands_in_the_queue_of_its_model():
    manager = QueueManager(SageServeRoutingConfig())
    manager.receive(5.0, {("a", "east"): 0.55, ("b", "west"): 0.3})
    held = make_request(NIW, held=True)
    assert manager.release(make_request(NIW), "a", {"east"}) is None  # has just come
    assert manager.release(make_request(NIW, arrival_s=6.0, held=True), "a", {"east"}) is None  # came later
    assert manager.release(held, "a", {"west"}) is None  # cannot be taken where the signal came from
    assert manager.release(held, "a", {"east", "west"}) == "east"
    assert manager.release(held, "a", {"east", "west"}) is None  # the other signal is of another model


def test_the_least_utilised_endpoint_is_served_first():
    manager = QueueManager(SageServeRoutingConfig())
    manager.receive(5.0, {("m", "east"): 0.55, ("m", "west"): 0.4})
    held = make_request(NIW, held=True)
    assert [manager.release(held, "m", set(REGIONS)) for _ in range(4)] == ["west", "west", "east", None]


# --- the policy ---------------------------------------------------------------------------------------------------


def test_an_interactive_request_stays_in_its_region_while_that_has_room(three_regions):
    policy = policy_for(three_regions)
    in_flight = [{"place": 2, "input_tokens": 10, "predicted_tokens": 10}]
    for class_id in (IW_F, IW_N):
        state = make_state(make_request(class_id, "west"), [0, 0, 600, 600, 0, 0], in_flight=in_flight)
        assert policy.act(None, state) == Dispatch(3, 0)  # 3: nothing is in flight there


def test_an_interactive_request_leaves_a_full_region(three_regions):
    request = make_request(region="west")
    used = [600, 600, 700, 700, 100, 100]  # 60 %, 70 %, 10 %
    assert policy_for(three_regions).act(None, make_state(request, used)) == Dispatch(0, 0)
    near = policy_for(three_regions, proximity={"west": ["central"]})
    assert near.act(None, make_state(request, used)) == Dispatch(4, 0)
    higher = policy_for(three_regions, region_threshold_ratio=0.71)
    assert higher.act(None, make_state(request, used)) == Dispatch(2, 0)
    full = [900, 900, 950, 950, 800, 1000]  # all full, equally so in east and central: east comes first
    assert policy_for(three_regions).act(None, make_state(request, full)) == Dispatch(0, 0)


def test_utilisation_counts_places_that_cannot_take_the_request(three_regions):
    """Place 2 is too small for it, and yet part of its region: (1000 + 300) / 2000 is under the threshold."""
    can_take = np.array([True, True, False, True, True, True])
    state = make_state(make_request(region="west"), [0, 0, 1000, 300, 0, 0], can_take=can_take)
    assert policy_for(three_regions).act(None, state) == Dispatch(3, 0)


def test_models_do_not_mix():
    fleet = make_fleet(["a", "b", "a", "b"], ["east", "east", "west", "west"])
    state = make_state(make_request(), [1000, 0, 100, 0], can_take=np.array([True, False, True, False]))
    assert policy_for(fleet).act(None, state) == Dispatch(2, 0)


def test_interactive_tiers_may_keep_their_own_priority(three_regions):
    policy = policy_for(three_regions, interactive_priority=None)
    assert policy.act(None, make_state(make_request(IW_N), [0] * 6)) == Dispatch(0, None)


def test_a_request_that_nobody_can_take_is_held(three_regions):
    state = make_state(make_request(), [0] * 6, can_take=np.zeros(6, bool))
    assert policy_for(three_regions).act(None, state) is None


def test_work_that_is_not_interactive_waits_for_a_signal(three_regions):
    policy = policy_for(three_regions)
    busy, room = [600] * 6, [600, 600, 590, 590, 600, 600]
    assert policy.act(None, make_state(make_request(NIW), room)) is None  # it has just come
    held = make_request(NIW, held=True)
    assert policy.act(None, make_state(held, busy, now_s=1.0)) is None
    assert policy.act(None, make_state(held, room, now_s=1.5)) is None  # no signal is due
    assert policy.act(None, make_state(held, room, now_s=2.0)) == Dispatch(2, 1)  # west, not its own region
    assert policy.act(None, make_state(held, room, now_s=2.0)) is None  # one a signal
    half = [600, 600, 490, 490, 600, 600]
    taken = [policy.act(None, make_state(held, half, now_s=3.0)) for _ in range(3)]
    assert taken == [Dispatch(2, 1), Dispatch(2, 1), None]  # two a signal


def test_old_work_is_on_a_par_with_interactive_requests(three_regions):
    policy = policy_for(three_regions)
    held = make_request(NIW, held=True)
    assert policy.act(None, make_state(held, [700] * 6, now_s=10.5 * HOUR)) is None  # still needs a signal
    assert policy.act(None, make_state(held, [500] * 6, now_s=11 * HOUR)) == Dispatch(0, 0)


def test_work_near_its_deadline_waits_for_no_signal(three_regions):
    policy = policy_for(three_regions)
    full = [900, 900, 800, 800, 950, 950]
    held = make_request(NIW, held=True)
    assert policy.act(None, make_state(held, full, now_s=22.9 * HOUR)) is None
    assert policy.act(None, make_state(held, full, now_s=23 * HOUR)) == Dispatch(2, 0)  # the least utilised
    short = make_request(NIW, held=True, deadline_s=2 * HOUR)  # its class promises more than 24 h
    assert policy.act(None, make_state(short, full, now_s=HOUR)) == Dispatch(2, 0)


def test_an_episode_begins_with_no_signals(three_regions):
    policy = policy_for(three_regions)
    held = make_request(NIW, held=True)
    assert policy.act(None, make_state(held, [500] * 6, now_s=8.0)) == Dispatch(0, 1)
    policy.reset(make_spec(three_regions), 1)
    assert policy.act(None, make_state(held, [500] * 6, now_s=1.0)) == Dispatch(0, 1)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"region_threshold_ratio": 1.2}, "region_threshold_ratio must lie in"),
        ({"two_below_ratio": 0.7}, "two_below_ratio must be at most one_below_ratio"),
        ({"deployment_instances": 0}, "deployment_instances must be at least 1"),
        ({"signal_period_s": 0.0}, "signal_period_s must be positive"),
        ({"aged_s": -1.0}, "aged_s must not be negative"),
        ({"niw_priority": -1}, "niw_priority must not be negative"),
    ],
)
def test_constants_are_checked(constants, message):
    with pytest.raises(ValueError, match=message):
        make_policy("sageserve_routing", **constants)


def test_proximity_names_regions_of_the_fleet(three_regions):
    with pytest.raises(ValueError, match="'north'; the fleet has east, west, central"):
        policy_for(three_regions, proximity={"east": ["north"]})


def test_without_an_order_of_preference_the_nearest_region_comes_next():
    request = replace(make_request(), network_s=np.array([0.0, 0.3, 0.1]))
    fleet = make_fleet(("llama",) * 3, REGIONS)
    state = replace(make_state(request, [900, 0, 0]), request=request)
    assert policy_for(fleet).act(None, state).place == 2
    named = policy_for(fleet, proximity={"east": ("west",)})
    assert named.act(None, state).place == 1
