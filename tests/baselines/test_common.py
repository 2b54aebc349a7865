import numpy as np
import pytest

from serving_gym.baselines.common.arrival_thresholds import (
    PromptThresholdConfig,
    PromptThresholdPolicy,
    RateThresholdConfig,
    RateThresholdPolicy,
)
from serving_gym.baselines.common.hysteresis import HysteresisLadder
from serving_gym.baselines.common.layouts import (
    compose,
    free_regions,
    parse_layout,
    requests_by_base,
    rolling_step,
    with_regions,
)
from serving_gym.baselines.common.load_threshold import LoadThresholdConfig, LoadThresholdPolicy
from serving_gym.baselines.common.random import RandomPolicy
from serving_gym.baselines.common.signals import in_flight_by_class, mean_prompt_tokens, without_first_token
from serving_gym.baselines.common.static import (
    ShiftParallelismPolicy,
    StaticDPPolicy,
    StaticLayoutPolicy,
    StaticTPPolicy,
)
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Group, all_layouts, format_layout
from serving_gym.envs.interface.state import Transition


@pytest.mark.parametrize("num_base", [1, 2, 4, 8])
def test_parse_layout_is_the_inverse_of_format_layout(num_base):
    for layout in all_layouts(num_base):
        assert parse_layout(format_layout(layout)) == layout


def test_parse_layout_takes_what_yaml_makes_of_it():
    assert parse_layout(8) == (8,)
    assert parse_layout([2, 1, 1]) == (2, 1, 1)


@pytest.mark.parametrize("text", ["", "8x", "x2", "2+", "1+2+1", "3", "four", "-4", "0x4", "1.5"])
def test_parse_layout_refuses(text):
    with pytest.raises(ValueError):
        parse_layout(text)


def test_compose_keeps_the_outermost_groups():
    apart = [Group(i, 1) for i in range(8)]
    assert compose([*apart, Group(0, 4), Group(2, 2), Group(6, 2)]) == (4, 1, 1, 2)


def test_regions_in_transition_stay_what_they_are_becoming(make_state):
    moving = Transition(Group(0, 4), (Group(0, 4),), SwitchMode.SOFT, 99.0, None)
    state = make_state((1,) * 8, target=(4, 1, 1, 1, 1), transitions=[moving])
    assert free_regions(state, (2, 2, 2, 2)) == (Group(4, 2), Group(6, 2))
    assert with_regions(state, (2, 2, 2, 2), [Group(4, 2)]) == (4, 2, 1, 1)
    assert free_regions(state, (8,)) == ()


def test_rolling_merges_the_group_with_the_fewest_requests_first(make_state):
    rows = {Group(0, 2): {"num_running": 5}, Group(2, 2): {"num_running": 3}, Group(4, 2): {"num_waiting": 4}}
    state = make_state((2, 2, 2, 2), rows=rows)
    assert rolling_step(state, (4, 4)) == (2, 2, 4)  # four requests instead of eight
    assert rolling_step(make_state((2, 2, 4), rows=rows), (4, 4)) == (4, 4)


def test_rolling_waits_for_what_is_being_merged(make_state):
    moving = Transition(Group(4, 4), (Group(4, 4),), SwitchMode.SOFT, 99.0, None)
    rows = {Group(0, 2): {"num_running": 1}}
    state = make_state((2, 2, 1, 1, 1, 1), target=(2, 2, 4), rows=rows, transitions=[moving])
    assert rolling_step(state, (4, 4)) == (2, 2, 4)


def test_rolling_splits_at_once_and_changes_an_idle_node_at_once(make_state):
    busy = make_state((4, 4), rows={Group(0, 4): {"num_running": 1}})
    assert rolling_step(busy, (1,) * 8) == (1,) * 8
    assert rolling_step(busy, (2, 2, 4)) == (2, 2, 4)
    assert rolling_step(make_state((2, 2, 2, 2)), (4, 4)) == (4, 4)
    assert rolling_step(busy, (4, 4)) == (4, 4)


def test_a_rolling_ladder_merges_group_by_group(spec, make_state):
    config = LoadThresholdConfig(
        layouts=["2x4", "4x2"], rolling=True, dwell_s=0.0, threshold_requests_per_gpu=2.0
    )
    policy = LoadThresholdPolicy(config)
    policy.reset(spec, 0)
    policy.act(None, make_state(now_s=0.0))
    assert policy.act(None, _loaded(make_state, (4, 4), 20, 1.0)) == SetLayout(
        (2,) * 4, SwitchMode.SEQUENTIAL
    )
    few = _loaded(make_state, (2,) * 4, 4, 2.0)
    first = policy.act(None, few)
    assert first == SetLayout(rolling_step(few, (4, 4)), SwitchMode.SOFT)
    assert sorted(first.layout) == [2, 2, 4]
    assert policy.act(None, _loaded(make_state, first.layout, 4, 3.0)) == SetLayout((4, 4), SwitchMode.SOFT)
    assert policy.act(None, _loaded(make_state, (4, 4), 4, 4.0)) is None


def test_requests_of_a_group_are_shared_among_its_members(make_state):
    state = make_state(
        (2, 1, 1), rows={Group(0, 2): {"num_running": 3, "num_waiting": 1}, Group(3, 1): {"num_running": 5}}
    )
    assert requests_by_base(state, 4) == [2.0, 2.0, 0.0, 5.0]


def test_signals_by_class(make_state):
    totals = {
        0: {"arrived": 10, "arrived_tokens": 50, "refused": 1, "failed": 2, "finished": 4, "first_tokens": 6}
    }
    state = make_state(totals=totals)
    np.testing.assert_array_equal(in_flight_by_class(state), [3, 0, 0])
    np.testing.assert_array_equal(without_first_token(state), [3, 0, 0])
    np.testing.assert_array_equal(mean_prompt_tokens(state), [5, 0, 0])


def test_ladder_climbs_several_rungs_at_once_and_falls_with_hysteresis():
    ladder = HysteresisLadder(up=(2.0, 4.0), down=(1.0, 2.0), dwell_s=10.0)
    assert ladder.step(0.0, 1.9) == 0
    assert ladder.step(1.0, 5.0) == 2
    assert ladder.step(5.0, 0.0) == 2  # dwells
    assert ladder.step(11.0, 2.5) == 2  # between the thresholds
    assert ladder.step(12.0, 1.5) == 1
    assert ladder.step(22.0, 0.5) == 0


def test_ladder_falls_by_its_own_signal():
    ladder = HysteresisLadder(up=(2.0,), down=(1.0,), dwell_s=0.0, rung=1)
    assert ladder.step(0.0, 0.0, falling=1.5) == 1
    assert ladder.step(0.0, 0.0, falling=0.5) == 0


def test_ladder_refuses_thresholds_without_hysteresis():
    with pytest.raises(ValueError, match="below"):
        HysteresisLadder(up=(1.0,), down=(1.0,), dwell_s=0.0)


@pytest.mark.parametrize(
    ("policy", "deployment"),
    [
        (StaticDPPolicy(), Redeploy((1,) * 8)),
        (StaticTPPolicy(), Redeploy((8,))),
        (StaticLayoutPolicy("4x2"), Redeploy((2, 2, 2, 2))),
        (StaticLayoutPolicy("4+2+1+1", weights="whole"), Redeploy((4, 2, 1, 1), weights="whole")),
        (ShiftParallelismPolicy(), Redeploy((8,), execution="shift", weights="whole")),
    ],
)
def test_static_policies_deploy_once(policy, deployment, spec, make_state):
    policy.reset(spec, 0)
    assert policy.act(None, make_state(now_s=0.0)) == deployment
    assert policy.act(None, make_state(now_s=0.0)) is None  # a second decision at time zero
    assert policy.act(None, make_state()) is None


def test_a_static_policy_leaves_a_running_cluster_as_it_is(spec, make_state):
    policy = StaticTPPolicy()
    policy.reset(spec, 0)
    assert policy.act(None, make_state(now_s=5.0)) is None


def test_a_static_layout_must_cover_the_node(spec):
    with pytest.raises(ValueError, match="covers 4 base engines, the node has 8; did you mean"):
        StaticLayoutPolicy("4x1").reset(spec, 0)


def test_random_draws_follow_the_seed(spec, make_state):
    def draws(seed):
        policy = RandomPolicy()
        policy.reset(spec, seed)
        return [policy.act(None, make_state()) for _ in range(20)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert all(isinstance(command, SetLayout) and sum(command.layout) == 8 for command in draws(1))


def test_random_may_stay(spec, make_state):
    policy = RandomPolicy(switch_probability=0.0)
    policy.reset(spec, 0)
    assert policy.act(None, make_state()) is None


def _loaded(make_state, layout, requests, now_s, **kwargs):
    return make_state(layout, rows={Group(0, layout[0]): {"num_running": requests}}, now_s=now_s, **kwargs)


def test_load_threshold_follows_the_load(spec, make_state):
    config = LoadThresholdConfig(layouts=[8, "4x2", "8x1"], threshold_requests_per_gpu=2.0, dwell_s=10.0)
    policy = LoadThresholdPolicy(config)
    policy.reset(spec, 0)
    assert policy.act(None, make_state((8,), now_s=0.0)) == Redeploy((8,), weights="whole")
    assert policy.act(None, _loaded(make_state, (8,), 16, 1.0)) is None  # at the threshold, not above
    assert policy.act(None, _loaded(make_state, (8,), 17, 2.0)) == SetLayout(
        (2, 2, 2, 2), SwitchMode.SEQUENTIAL
    )
    assert policy.act(None, _loaded(make_state, (2,) * 4, 40, 5.0)) is None  # dwells
    assert policy.act(None, _loaded(make_state, (2,) * 4, 40, 12.0)) == SetLayout(
        (1,) * 8, SwitchMode.SEQUENTIAL
    )
    assert policy.act(None, _loaded(make_state, (1,) * 8, 15, 22.0)) == SetLayout((2,) * 4, SwitchMode.SOFT)


def test_load_threshold_splits_in_a_way_of_its_own(spec, make_state):
    policy = LoadThresholdPolicy(LoadThresholdConfig(layouts=[8, "8x1"], split_mode="hard"))
    policy.reset(spec, 0)
    assert policy.act(None, _loaded(make_state, (8,), 17, 1.0)) == SetLayout((1,) * 8, SwitchMode.HARD)
    assert policy.act(None, _loaded(make_state, (1,) * 8, 1, 20.0)) == SetLayout((8,), SwitchMode.SOFT)


def _arrived(make_state, layout, tokens, now_s):
    return make_state(layout, now_s=now_s, totals={0: {"arrived_tokens": tokens}})


def test_rate_threshold_follows_what_arrives(spec, make_state):
    """Over 8 GPUs: 8,000 tokens a second are 1,000 each, and an average of one second keeps 1/e of what it was."""
    config = RateThresholdConfig(
        layouts=[8, "4x2", "8x1"],
        threshold_tokens_per_gpu_s=600.0,
        threshold_growth_ratio=2.0,
        hysteresis_ratio=0.5,
        smoothing_s=1.0,
        dwell_s=2.0,
    )
    policy = RateThresholdPolicy(config)
    policy.reset(spec, 0)
    assert policy.act(None, _arrived(make_state, (8,), 0, 0.0)) == Redeploy((8,), weights="whole")
    # 1000 (1 - 1/e) = 632 is above 600
    assert policy.act(None, _arrived(make_state, (8,), 8_000, 1.0)) == SetLayout((2,) * 4, SwitchMode.HARD)
    # 632 / e + 4000 (1 - 1/e) = 2761 is above 1200, but it dwells
    assert policy.act(None, _arrived(make_state, (2,) * 4, 40_000, 2.0)) is None
    assert policy.act(None, _arrived(make_state, (2,) * 4, 72_000, 3.0)) == SetLayout(
        (1,) * 8, SwitchMode.HARD
    )
    # 2761 / e + 4000 (1 - 1/e) = 3544; nothing arrives for two seconds and two more: 480, below 1200 / 2, and 65
    assert policy.act(None, _arrived(make_state, (1,) * 8, 72_000, 5.0)) == SetLayout(
        (2,) * 4, SwitchMode.SOFT
    )
    assert policy.act(None, _arrived(make_state, (2,) * 4, 72_000, 7.0)) == SetLayout((8,), SwitchMode.SOFT)


def test_prompt_threshold_follows_the_mean_prompt(spec, make_state):
    """Averages of one second keep 1/e of what they were; what counts is the ratio of tokens to requests."""
    config = PromptThresholdConfig(
        layouts=["2x4", "4x2"],
        threshold_prompt_tokens=1500.0,
        hysteresis_ratio=0.8,
        smoothing_s=1.0,
        dwell_s=0.0,
        rolling=False,
    )
    policy = PromptThresholdPolicy(config)
    policy.reset(spec, 0)

    def after(layout, requests, tokens, now_s):
        totals = {0: {"arrived": requests, "arrived_tokens": tokens}}
        return policy.act(None, make_state(layout, now_s=now_s, totals=totals))

    assert after((1,) * 8, 0, 0, 0.0) == Redeploy((4, 4), weights="whole")
    assert after((4, 4), 0, 0, 1.0) is None, "nothing has come"
    assert after((4, 4), 10, 14_000, 2.0) is None  # 1400
    # (14 / e + 20) / (10 / e + 10) = 1.84 thousand tokens
    assert after((4, 4), 20, 34_000, 3.0) == SetLayout((2,) * 4, SwitchMode.HARD)
    assert after((2,) * 4, 30, 46_500, 4.0) is None  # 1393, not below 0.8 times 1500
    assert after((2,) * 4, 50, 52_500, 5.0) == SetLayout((4, 4), SwitchMode.SOFT)


@pytest.mark.parametrize(
    "params", [{"threshold_prompt_tokens": 0.0}, {"smoothing_s": -1.0}, {"layouts": ["5"]}]
)
def test_prompt_threshold_names_what_is_wrong(params):
    with pytest.raises(ValueError, match="covers 5 base engines|" + next(iter(params))):
        PromptThresholdConfig(**params)


@pytest.mark.parametrize(
    "params",
    [
        {"threshold_tokens_per_gpu_s": 0.0},
        {"smoothing_s": 0.0},
        {"threshold_growth_ratio": 0.5},
        {"hysteresis_ratio": 1.0},
        {"dwell_s": -1.0},
        {"merge_mode": "gentle"},
        {"split_mode": "gentle"},
        {"split_mode": "soft"},
        {"layouts": ["5"]},
    ],
)
def test_rate_threshold_names_what_is_wrong(params):
    with pytest.raises(ValueError, match="covers 5 base engines|" + next(iter(params))):
        RateThresholdConfig(**params)


def test_load_threshold_leaves_transitions_alone(spec, make_state):
    policy = LoadThresholdPolicy(LoadThresholdConfig(layouts=[8, "8x1"]))
    policy.reset(spec, 0)
    moving = Transition(Group(0, 8), (Group(0, 8),), SwitchMode.SOFT, 99.0, None)
    assert (
        policy.act(None, _loaded(make_state, (1,) * 8, 80, 100.0, target=(8,), transitions=[moving])) is None
    )


@pytest.mark.parametrize(
    "params",
    [
        {"threshold_requests_per_gpu": 0.0},
        {"threshold_growth_ratio": 0.5},
        {"hysteresis_ratio": 1.0},
        {"dwell_s": -1.0},
        {"mode": "gentle"},
        {"split_mode": "soft"},
        {"layouts": ["5"]},
    ],
)
def test_load_threshold_names_what_is_wrong(params):
    with pytest.raises(ValueError, match="unknown .*mode|covers 5 base engines|" + next(iter(params))):
        LoadThresholdConfig(**params)
