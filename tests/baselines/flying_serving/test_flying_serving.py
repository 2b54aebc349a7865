"""One hand-worked case a branch. Eight base engines of one GPU; capacity 100,000 tokens each (conftest)."""

from dataclasses import replace

import pytest

from serving_gym.baselines.flying_serving.binding import choose_group
from serving_gym.baselines.flying_serving.config import FlyingServingConfig
from serving_gym.baselines.flying_serving.policy import FlyingServingPolicy
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Group
from serving_gym.envs.interface.state import EngineStatus, Transition, WaitingRequest

DP, TP = (1,) * 8, (8,)
SEQUENTIAL, SOFT, HARD = SwitchMode.SEQUENTIAL, SwitchMode.SOFT, SwitchMode.HARD
PRIORITY, NORMAL, LONG = 0, 1, 2

ONE_PRIORITY = {PRIORITY: {"arrived": 5, "finished": 4}}
NO_PRIORITY = {PRIORITY: {"arrived": 5, "finished": 5}}


@pytest.fixture
def make(spec, make_state):
    """A policy in DP, past its first decision, whose load thresholds are 2 and 1 requests per GPU."""

    def build(started_s=0.0, **params):
        defaults = {
            "load_signal": "requests",
            "weigh_switch": False,
            "hysteresis_ratio": 0.5,
            "smoothing_s": 0.0,
            "dwell_s": 5.0,
        }
        policy = FlyingServingPolicy(FlyingServingConfig(**{**defaults, **params}))
        policy.reset(spec, 0)
        policy.act(None, make_state(TP, now_s=started_s))
        return policy

    return build


def running(count, layout=DP, **more):
    """Requests spread over the engines of a layout."""
    rows, first = {}, 0
    for length in layout:
        rows[Group(first, length)] = {"num_running": count * length // sum(layout), **more}
        first += length
    return rows


def switching(region, *target, mode=SOFT, due_s=None):
    return Transition(region, target, mode, 99.0, due_s)


# -- use case 1: load ----------


def test_at_time_zero_the_layout_for_no_load_is_deployed_with_whole_weights(spec, make_state):
    policy = FlyingServingPolicy()
    policy.reset(spec, 0)
    assert policy.act(None, make_state(DP, now_s=0.0)) == Redeploy(TP, weights="whole")
    assert policy.act(None, make_state(TP, now_s=0.0)) is None


def test_a_burst_dissolves_the_groups(make, make_state):
    policy = make()
    assert policy.act(None, make_state(TP, rows=running(16, TP), now_s=10.0)) is None  # 2 per GPU: not above
    assert policy.act(None, make_state(TP, rows=running(17, TP), now_s=11.0)) == SetLayout(DP, HARD)


def test_queued_prompts_dissolve_the_groups_as_well(make, make_state):
    policy = make(split_tokens_per_gpu=1000.0)
    rows = {Group(0, 8): {"num_running": 1, "pending_prefill_tokens": 6000}}
    assert policy.act(None, make_state(TP, rows=rows, now_s=10.0)) is None
    assert policy.act(None, make_state(TP, rows=rows, pooled_tokens=2001, now_s=11.0)) == SetLayout(DP, HARD)


def test_light_load_forms_groups_below_the_lower_threshold(make, make_state):
    policy = make()
    policy.act(None, make_state(TP, rows=running(80, TP), now_s=10.0))
    assert policy.act(None, make_state(DP, rows=running(8), now_s=20.0)) is None  # 1 per GPU: not below
    assert policy.act(None, make_state(DP, now_s=21.0)) == SetLayout(TP, SOFT)


def test_no_second_switch_within_the_dwell_time(make, make_state):
    policy = make()
    policy.act(None, make_state(TP, rows=running(80, TP), now_s=10.0))
    assert policy.act(None, make_state(DP, now_s=14.9)) is None
    assert policy.act(None, make_state(DP, now_s=15.0)) == SetLayout(TP, SOFT)


def test_a_merge_waits_for_the_mean_load(make, make_state):
    policy = make(smoothing_s=10.0)
    for now_s in (10.0, 30.0, 60.0):
        policy.act(None, make_state(DP, rows=running(80), now_s=now_s))
    assert policy.act(None, make_state(DP, now_s=66.0)) is None  # mean 5 exp(-0.6)
    assert policy.act(None, make_state(DP, now_s=90.0)) == SetLayout(TP, SOFT)  # and exp(-3)


def test_intermediate_widths_have_growing_thresholds(make, make_state):
    policy = make(widths=(8, 2, 1), width_growth_ratio=3.0)
    assert policy.act(None, make_state(TP, rows=running(40, TP), now_s=10.0)) == SetLayout((2,) * 4, HARD)
    assert (
        policy.act(None, make_state((2,) * 4, rows=running(49, (2,) * 4), now_s=20.0)) is None
    )  # 48 of 12 each
    rows = running(56, (2,) * 4)
    assert policy.act(None, make_state((2,) * 4, rows=rows, now_s=21.0)) == SetLayout(DP, HARD)


def test_widths_must_be_groups_of_the_node(spec):
    with pytest.raises(ValueError, match="widths"):
        FlyingServingPolicy(FlyingServingConfig(widths=(16, 1))).reset(spec, 0)


def test_load_is_ignored_when_asked_to(make, make_state):
    policy = make(adapt_to_load=False)
    assert policy.act(None, make_state(DP)) is None


def test_regions_in_transition_are_left_alone(make, make_state):
    policy = make()
    moving = switching(Group(0, 8), Group(0, 8))
    busy = make_state(DP, target=TP, rows=running(80), transitions=[moving], now_s=10.0)
    assert policy.act(None, busy) is None
    assert policy.act(None, make_state(TP, rows=running(80, TP), now_s=11.0)) == SetLayout(DP, HARD)


def test_sequential_splits_are_available(make, make_state):
    policy = make(load_split_mode="soft")  # soft is sequential where a group is split
    assert policy.act(None, make_state(TP, rows=running(80, TP), now_s=10.0)) == SetLayout(DP, SEQUENTIAL)


@pytest.fixture
def queued(make):
    """As `make`, with the trigger by queues: 2 waiting requests on the node, 0.25 per GPU."""
    return lambda **params: make(**{"load_signal": "queue", "dwell_s": 1.0, **params})


def test_queues_dissolve_the_groups_and_running_requests_do_not(queued, make_state):
    policy = queued()
    assert policy.act(None, make_state(TP, rows=running(80, TP), now_s=10.0)) is None
    waiting = {Group(0, 8): {"num_running": 80, "num_waiting": 2}}
    assert policy.act(None, make_state(TP, rows=waiting, now_s=11.0)) is None  # 0.25 per GPU: not above
    waiting[Group(0, 8)]["num_waiting"] = 3
    assert policy.act(None, make_state(TP, rows=waiting, now_s=12.0)) == SetLayout(DP, HARD)


def arrived(tokens):
    """Ten answers of 5 s each have been given."""
    answers = {"finished": 10, "generated_tokens": 1000, "tpot_sum_s": 0.5}
    return {NORMAL: {"arrived": 10 + tokens / 1000, "arrived_tokens": tokens, **answers}}


@pytest.fixture
def split_at(queued, make_state):
    """A policy that split when prompts arrived at 1000 tokens/s or somewhat less: the mean of some seconds."""
    policy = queued(weigh_switch=True, hysteresis_ratio=0.9)
    for second in range(1, 31):
        policy.act(None, make_state(TP, rows=running(8, TP), totals=arrived(1000.0 * second), now_s=second))
    rows = {Group(0, 8): {"num_running": 80, "num_waiting": 30}}
    assert policy.act(None, make_state(TP, rows=rows, totals=arrived(31e3), now_s=31.0)) == SetLayout(
        DP, HARD
    )
    return policy


def test_a_merge_waits_for_as_long_as_its_drain_takes(split_at, make_state):
    def act(now_s):
        return split_at.act(None, make_state(DP, rows=running(40), totals=arrived(31e3), now_s=now_s))

    assert act(36.0) is None
    assert act(36.1) == SetLayout(TP, SOFT)


def test_few_requests_merge_at_once(split_at, make_state):
    state = make_state(DP, rows=running(8), totals=arrived(32e3), now_s=32.5)
    assert split_at.act(None, state) == SetLayout(TP, SOFT)


def test_no_merge_at_the_rate_that_had_built_up_a_queue(split_at, make_state):
    for second in range(32, 60):
        state = make_state(DP, rows=running(40), totals=arrived(1000.0 * second), now_s=second)
        assert split_at.act(None, state) is None


def test_groups_are_dissolved_at_the_rate_that_had_built_up_a_queue(split_at, make_state):
    merge = make_state(DP, rows=running(8), totals=arrived(31e3), now_s=33.0)
    assert split_at.act(None, merge) == SetLayout(TP, SOFT)
    fast = make_state(TP, rows=running(8, TP), totals=arrived(41e3), now_s=35.0)
    assert split_at.act(None, fast) == SetLayout(DP, HARD)


# -- use case 2: priority ----------


def test_a_priority_request_is_served_at_once_whatever_the_load(busy_dp, make_state):
    served = {PRIORITY: {"arrived": 5, "first_tokens": 4, "finished": 3}}
    state = make_state(DP, rows=running(400), totals=served, now_s=11.0)
    assert busy_dp().act(None, state) == SetLayout((4, 1, 1, 1, 1), HARD)


@pytest.fixture
def busy_dp(make, make_state):
    """A policy and a node that is in DP because of a burst."""

    def build(**params):
        policy = make(**params)
        policy.act(None, make_state(TP, rows=running(40, TP), now_s=10.0))
        return policy

    return build


def test_priority_binds_half_the_node_at_once_where_it_disturbs_least(busy_dp, make_state):
    policy = busy_dp()
    rows = running(40)
    rows[Group(6, 1)] = {"num_running": 1}
    state = make_state(DP, rows=rows, totals=ONE_PRIORITY, now_s=11.0)
    assert policy.act(None, state) == SetLayout((1, 1, 1, 1, 4), HARD)


def test_priority_requests_that_are_served_in_dp_are_not_interrupted(busy_dp, make_state):
    policy = busy_dp(priority_only_waiting=True)
    served = {
        PRIORITY: {"arrived": 5, "first_tokens": 4, "finished": 3}
    }  # one waits, one has its first token
    assert policy.act(None, make_state(DP, rows=running(40), totals=served, now_s=11.0)) is None
    waiting = {PRIORITY: {"arrived": 5, "first_tokens": 4, "finished": 4}}
    state = make_state(DP, rows=running(40), totals=waiting, now_s=12.0)
    assert policy.act(None, state) == SetLayout((4, 1, 1, 1, 1), HARD)


def test_a_group_that_lingers_is_not_bound_anew_for_nobody(busy_dp, make_state):
    policy = busy_dp(priority_linger_s=5.0, limit_priority_by_load=True, priority_load_limit=3.0)
    assert policy.act(None, make_state(DP, rows=running(56), totals=ONE_PRIORITY, now_s=11.0)) is None
    assert policy.act(None, make_state(DP, rows=running(40), totals=NO_PRIORITY, now_s=12.0)) is None


def test_priority_is_served_by_a_wide_group_if_there_is_one(make, make_state):
    assert make().act(None, make_state(TP, totals=ONE_PRIORITY)) is None


def test_the_group_is_kept_while_needed_and_released_after(busy_dp, make_state):
    policy = busy_dp()
    policy.act(None, make_state(DP, rows=running(40), totals=ONE_PRIORITY, now_s=11.0))
    bound = (4, 1, 1, 1, 1)
    rows = running(40, bound)
    assert policy.act(None, make_state(bound, rows=rows, totals=ONE_PRIORITY, now_s=12.0)) is None
    after = make_state(bound, rows=rows, totals=NO_PRIORITY, now_s=13.0)
    assert policy.act(None, after) == SetLayout(DP, SEQUENTIAL)


def test_the_group_may_linger(busy_dp, make_state):
    policy = busy_dp(priority_linger_s=2.0)
    policy.act(None, make_state(DP, rows=running(40), totals=ONE_PRIORITY, now_s=11.0))
    bound, rows = (4, 1, 1, 1, 1), running(40, (4, 1, 1, 1, 1))
    assert policy.act(None, make_state(bound, rows=rows, totals=NO_PRIORITY, now_s=13.0)) is None
    assert policy.act(None, make_state(bound, rows=rows, totals=NO_PRIORITY, now_s=13.1)) is not None


def test_a_dissolved_tp_group_leaves_a_group_for_priority(make, make_state):
    state = make_state(TP, rows=running(40, TP), totals=ONE_PRIORITY, now_s=10.0)
    # binding inside a wider group changes nothing, so the split on account of the load comes first
    assert make().act(None, state) == SetLayout((4, 1, 1, 1, 1), HARD)


@pytest.mark.parametrize(
    ("share", "layout"), [(0.25, (2, 1, 1, 1, 1, 1, 1)), (0.5, (4, 1, 1, 1, 1)), (1.0, (8,))]
)
def test_the_share_of_the_node(share, layout, busy_dp, make_state):
    policy = busy_dp(priority_share=share)
    state = make_state(DP, rows=running(40), totals=ONE_PRIORITY, now_s=11.0)
    assert policy.act(None, state) == SetLayout(layout, HARD)


def test_no_group_is_kept_while_the_rest_cannot_drain_its_queue(busy_dp, make_state):
    policy = busy_dp(limit_priority_by_load=True, priority_load_limit=3.0)
    assert policy.act(None, make_state(DP, rows=running(56), totals=ONE_PRIORITY, now_s=11.0)) is None


def test_stragglers_are_hurried_for_priority(busy_dp, make_state):
    policy = busy_dp()
    moving = switching(Group(0, 8), *(Group(i, 1) for i in range(8)), mode=SEQUENTIAL)
    rows = running(40, TP, status=EngineStatus.DRAINING)
    state = make_state(TP, target=DP, rows=rows, totals=ONE_PRIORITY, transitions=[moving], now_s=11.0)
    assert policy.act(None, state) == SetLayout(DP, HARD)
    hard = replace(state, transitions=(replace(moving, mode=HARD),))
    assert policy.act(None, hard) is None


def test_stragglers_are_waited_for_without_escalation(busy_dp, make_state):
    policy = busy_dp(escalate=False)
    moving = switching(Group(0, 8), *(Group(i, 1) for i in range(8)), mode=SEQUENTIAL)
    state = make_state(
        TP, target=DP, rows=running(40, TP), totals=ONE_PRIORITY, transitions=[moving], now_s=11.0
    )
    assert policy.act(None, state) is None


def test_subsets_take_turns_when_requests_have_been_paused_for_long(busy_dp, make_state):
    policy = busy_dp(max_pause_s=5.0)
    policy.act(None, make_state(DP, rows=running(40), totals=ONE_PRIORITY, now_s=11.0))
    bound = (4, 1, 1, 1, 1)
    rows = running(40, bound) | {Group(1, 1): {"status": EngineStatus.PAUSED, "num_running": 5}}
    state = make_state(bound, rows=rows, totals=ONE_PRIORITY, now_s=12.0)
    assert policy.act(None, state) is None
    assert policy.act(None, replace(state, now_s=17.0)) is None  # paused for 5 s: not longer
    assert policy.act(None, replace(state, now_s=17.1)) == SetLayout((4, 4), HARD)
    turned = make_state((4, 4), rows=rows, totals=ONE_PRIORITY, now_s=18.0)
    assert policy.act(None, turned) == SetLayout((1, 1, 1, 1, 4), SEQUENTIAL)


def test_a_merge_does_not_trap_paused_requests(busy_dp, make_state):
    policy = busy_dp()
    policy.act(None, make_state(DP, rows=running(40), totals=ONE_PRIORITY, now_s=11.0))
    paused = {Group(1, 1): {"status": EngineStatus.PAUSED, "num_running": 1}}
    state = make_state((4, 1, 1, 1, 1), rows=paused, totals=NO_PRIORITY, now_s=30.0)
    assert policy.act(None, state) == SetLayout(DP, SEQUENTIAL)  # released first
    assert policy.act(None, make_state(DP, rows=running(1), now_s=31.0)) == SetLayout(TP, SOFT)


def test_priority_can_be_switched_off(busy_dp, make_state):
    policy = busy_dp(bind_for_priority=False)
    assert policy.act(None, make_state(DP, rows=running(40), totals=ONE_PRIORITY, now_s=11.0)) is None


# -- use case 3: long context ----------


def long_arrived(tokens, finished=0):
    return {LONG: {"arrived": 1, "arrived_tokens": tokens, "finished": finished, "first_tokens": finished}}


def arrival(input_tokens, max_output_tokens=0):
    return WaitingRequest(0, 11.0, input_tokens, max_output_tokens, priority=1, class_id=LONG)


@pytest.mark.parametrize(
    ("tokens", "layout"),
    [
        (100_000, None),
        (100_001, (2, 1, 1, 1, 1, 1, 1)),
        (200_001, (4, 1, 1, 1, 1)),
        (800_000, (8,)),
        (800_001, None),  # no group holds it: it is refused on arrival
    ],
)
def test_the_smallest_group_that_holds_a_long_request(tokens, layout, busy_dp, make_state):
    policy = busy_dp()
    arrived = [arrival(tokens - 1000, 1000)]
    state = make_state(DP, rows=running(40), waiting=arrived, num_pooled=0, now_s=11.0)
    assert policy.act(None, state) == (layout and SetLayout(layout, SOFT))


def test_a_long_class_gives_the_size_away_without_its_arrival(busy_dp, make_state):
    state = make_state(
        DP, rows=running(40), totals=long_arrived(150_000), num_pooled=1, pooled_tokens=150_000, now_s=11.0
    )
    assert busy_dp().act(None, state) == SetLayout((2, 1, 1, 1, 1, 1, 1), SOFT)


@pytest.mark.parametrize(("queued", "layout"), [(600_000, (2, 2, 2, 2)), (1_200_000, (2, 2, 1, 1, 1, 1))])
def test_long_requests_bind_the_share_of_the_node_that_they_are_of_the_queue(
    queued, layout, make, make_state
):
    policy = make(load_signal="queue")
    totals = {LONG: {"arrived": 4, "arrived_tokens": 4 * 150_000}}
    rows = {Group(0, 8): {"num_running": 1, "num_waiting": 3, "pending_prefill_tokens": queued}}
    state = make_state(TP, rows=rows, totals=totals, now_s=10.0)
    assert policy.act(None, state) == SetLayout(layout, HARD)


def test_a_long_group_is_kept_while_its_request_is_in_flight(busy_dp, make_state):
    policy = busy_dp()
    policy.act(None, make_state(DP, rows=running(40), totals=long_arrived(150_000), now_s=11.0))
    bound = (2, 1, 1, 1, 1, 1, 1)
    rows = running(40, bound)
    assert policy.act(None, make_state(bound, rows=rows, totals=long_arrived(150_000), now_s=12.0)) is None
    after = make_state(bound, rows=rows, totals=long_arrived(150_000, finished=1), now_s=13.0)
    assert policy.act(None, after) == SetLayout(DP, SEQUENTIAL)


def test_long_prompts_are_no_burst(make, make_state):
    policy = make()
    rows = {Group(0, 8): {"num_running": 1, "pending_prefill_tokens": 150_000}}
    assert policy.act(None, make_state(TP, rows=rows, totals=long_arrived(150_000), now_s=10.0)) is None
    assert policy.act(None, make_state(TP, rows=rows, now_s=11.0)) == SetLayout(DP, HARD)


@pytest.mark.parametrize(("tokens", "action"), [(150_000, None), (90_000, SetLayout(DP, HARD))])
def test_requests_that_no_base_engine_holds_are_no_reason_to_split(tokens, action, make, make_state):
    totals = {LONG: {"arrived": 24, "arrived_tokens": 24 * tokens}}
    rows = {Group(0, 8): {"num_running": 2, "num_waiting": 22}}  # 3 per GPU
    policy = make(long_groups="one")
    assert policy.act(None, make_state(TP, rows=rows, totals=totals, now_s=10.0)) == action


def test_the_pool_tells_of_requests_that_fit_no_engine(spec, make_state):
    classless = replace(spec, classes=("standard", "other", "third"))
    policy = FlyingServingPolicy(FlyingServingConfig(adapt_to_load=False))
    policy.reset(classless, 0)
    stuck = make_state(DP, num_pooled=1, pooled_tokens=90_000)
    assert policy.act(None, stuck) == SetLayout((2, 1, 1, 1, 1, 1, 1), SOFT)
    # still in the pool once the group serves: the next wider one
    bound = (2, 1, 1, 1, 1, 1, 1)
    assert policy.act(None, make_state(bound, num_pooled=1, pooled_tokens=90_000)) == SetLayout(
        (4, 1, 1, 1, 1), SOFT
    )


def test_without_a_long_class_the_memory_decides_on_the_release(spec, make_state):
    policy = FlyingServingPolicy(FlyingServingConfig(adapt_to_load=False))
    policy.reset(replace(spec, classes=("standard", "other", "third")), 0)
    policy.act(None, make_state(DP, waiting=[arrival(150_000)]))
    bound, group = (2, 1, 1, 1, 1, 1, 1), Group(0, 2)
    moving = switching(group, group)
    waits = make_state(DP, target=bound, transitions=[moving], num_pooled=1, pooled_tokens=150_000)
    assert policy.act(None, waits) is None
    holds = make_state(bound, rows={group: {"kv_used_blocks": 1000, "pending_prefill_tokens": 70_000}})
    assert policy.act(None, holds) is None  # 1000 blocks of 32 tokens and the rest of the prompt
    past = make_state(bound, rows={group: {"kv_used_blocks": 1000, "pending_prefill_tokens": 60_000}})
    assert policy.act(None, past) == SetLayout(DP, SEQUENTIAL)


def test_a_share_of_the_capacity_may_count_as_long(busy_dp, make_state):
    policy = busy_dp(long_capacity_ratio=0.25)
    state = make_state(DP, rows=running(40), waiting=[arrival(60_000)], now_s=11.0)
    assert policy.act(None, state) == SetLayout((4, 1, 1, 1, 1), SOFT)


def test_priority_comes_before_long_context_and_stays_clear_of_it(busy_dp, make_state):
    policy = busy_dp()
    totals = {**ONE_PRIORITY, **long_arrived(350_000)}
    state = make_state(DP, rows=running(40), totals=totals, now_s=11.0)
    assert policy.act(None, state) == SetLayout((1, 1, 1, 1, 4), HARD)
    bound = (1, 1, 1, 1, 4)
    state = make_state(bound, rows=running(40, bound), totals=totals, now_s=12.0)
    assert policy.act(None, state) == SetLayout((4, 4), SOFT)


def test_long_context_can_be_switched_off(busy_dp, make_state):
    policy = busy_dp(bind_for_long_context=False)
    assert policy.act(None, make_state(DP, rows=running(40), waiting=[arrival(150_000)], now_s=11.0)) is None


# -- the rest ----------


def test_choose_group_stays_clear_of_transitions(make_state):
    state = make_state(DP, transitions=[switching(Group(0, 2), Group(0, 2))])
    assert choose_group(state, 4, 8) == Group(4, 4)
    assert choose_group(state, 8, 8, avoid=[Group(0, 1)], allow_avoided=False) is None


def test_failed_engines_are_left_alone(busy_dp, make_state):
    down = switching(Group(0, 1), Group(0, 1), mode=None, due_s=200.0)
    state = make_state(DP, rows=running(40), totals=ONE_PRIORITY, transitions=[down], now_s=11.0)
    assert busy_dp().act(None, state) == SetLayout((1, 1, 1, 1, 4), HARD)


@pytest.mark.parametrize("num_base", [1, 2, 4])
def test_smaller_nodes(num_base, spec, make_state):
    small = replace(spec, cluster=replace(spec.cluster, num_gpus=num_base))
    policy = FlyingServingPolicy()
    policy.reset(small, 0)
    assert policy.act(None, make_state((1,) * num_base, now_s=0.0)) == Redeploy((num_base,), weights="whole")
    policy.act(None, make_state((num_base,), totals=ONE_PRIORITY, now_s=1.0))


@pytest.mark.parametrize(
    "params",
    [
        {"load_merge_mode": "gentle"},
        {"split_requests_per_gpu": 0.0},
        {"dwell_s": -1.0},
        {"hysteresis_ratio": 1.0},
        {"width_growth_ratio": 0.9},
        {"priority_share": 0.0},
        {"long_capacity_ratio": 1.5},
        {"widths": (1, 8)},
    ],
)
def test_the_config_names_what_is_wrong(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        FlyingServingConfig(**params)
