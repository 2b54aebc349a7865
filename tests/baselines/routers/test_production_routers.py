"""Routers of production in autumn 2026: llm-d's default, LMetric, loadaware, sticky_least_loaded, Dynamo's."""

import numpy as np
import pytest

from serving_gym.baselines.common.routers.dynamo_kv import DynamoKVConfig, DynamoKVPolicy
from serving_gym.baselines.common.routers.latency_observation import (
    Curve,
    LatencyObservationConfig,
    LatencyObservationPolicy,
)
from serving_gym.baselines.common.routers.llm_d import LLMDConfig, LLMDPolicy
from serving_gym.baselines.common.routers.lmetric import LMetricConfig, LMetricPolicy
from serving_gym.baselines.common.routers.loadaware import LoadAwareConfig, LoadAwarePolicy
from serving_gym.baselines.common.routers.preble import PrebleConfig, PreblePolicy, v100_prefill_s
from serving_gym.baselines.common.routers.sticky_least_loaded import (
    StickyLeastLoadedConfig,
    StickyLeastLoadedPolicy,
)
from tests.baselines.routers.states import arriving, routing_spec, routing_state, sent


def _begun(policy, num_places=3, seed=0):
    policy.reset(routing_spec(num_places), seed)
    return policy


def _prompt(*ids, **fields):
    return arriving(ids, input_tokens=16 * len(ids), **fields)


def test_llm_d_takes_the_fewest_uncached_tokens():
    policy = _begun(LLMDPolicy())
    flights = [
        sent(0, input_tokens=50),
        sent(1, input_tokens=900, first_token_s=9.0),
        sent(2, input_tokens=10),
    ]
    # 900 tokens were released with the first token
    assert policy.act(None, routing_state(3, in_flight=flights)) == 1
    assert policy.act(None, routing_state(3, in_flight=flights, can_take=[1, 0, 1])) == 2


def test_llm_d_counts_what_was_not_cached():
    policy = _begun(LLMDPolicy(), 2)
    only = [1, 0]
    assert policy.act(None, routing_state(2, request=_prompt(1, 2, 3, 4, index=0), can_take=only)) == 0
    assert policy.act(None, routing_state(2, request=_prompt(1, 2, 3, 4, index=1), can_take=only)) == 0
    # the first counts 64 tokens, the second none: 64 at 0 against 63 at 1
    flights = [sent(0, index=0, input_tokens=64), sent(0, index=1, input_tokens=64)]
    for tokens, place in ((63, 1), (65, 0)):
        other = sent(1, index=7, input_tokens=tokens)
        state = routing_state(2, in_flight=[*flights, other], request=_prompt(9, index=2))
        assert policy.act(None, state) == place
        policy.reset(policy.spec, 0)
        policy.act(None, routing_state(2, request=_prompt(1, 2, 3, 4, index=0), can_take=only))
        policy.act(None, routing_state(2, request=_prompt(1, 2, 3, 4, index=1), can_take=only))


@pytest.mark.parametrize(("excess", "place"), [(1000, 0), (1001, 1)])
def test_llm_d_sticks_until_saturated(excess, place):
    policy = _begun(LLMDPolicy(LLMDConfig(saturation_tokens=1000.0)), 2)
    prompt = list(range(5))
    assert policy.act(None, routing_state(2, request=_prompt(*prompt), can_take=[1, 0])) == 0
    # four blocks of five are 0.8
    flights = [sent(0, index=5, input_tokens=excess + 7), sent(1, index=6, input_tokens=7)]
    request = _prompt(*prompt[:4], 99, index=1)
    assert policy.act(None, routing_state(2, in_flight=flights, request=request)) == place


def test_llm_d_weighs_a_smaller_share_in_tokens():
    policy = _begun(LLMDPolicy(), 2)
    assert policy.act(None, routing_state(2, request=_prompt(1, 2, 3, 4, index=0), can_take=[1, 0])) == 0
    request = _prompt(1, 2, 8, 9, index=1)  # half: no preference, but 32 tokens less to compute
    for tokens, place in ((31, 0), (33, 1)):
        flights = [sent(0, index=5, input_tokens=tokens)]
        again = LLMDPolicy()
        again.reset(policy.spec, 0)
        again.act(None, routing_state(2, request=_prompt(1, 2, 3, 4, index=0), can_take=[1, 0]))
        assert again.act(None, routing_state(2, in_flight=flights, request=request)) == place


def test_llm_d_explores():
    policy = _begun(LLMDPolicy(LLMDConfig(explore_probability=1.0)), 2)
    request = _prompt(1, 2, 3, 4, 5)
    assert policy.act(None, routing_state(2, request=request, can_take=[1, 0])) == 0
    flights = [sent(0, index=5, input_tokens=10_000)]
    assert policy.act(None, routing_state(2, in_flight=flights, request=request)) == 1


@pytest.mark.parametrize("params", [{"affinity": 1.1}, {"saturation_tokens": -1.0}, {"queue_tokens": 0.0}])
def test_llm_d_refuses(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        LLMDConfig(**params)


def test_lmetric_multiplies():
    policy = _begun(LMetricPolicy(), 3)
    request = arriving(cached_tokens=[0, 60, 90])  # of 100
    # 100 x 1, 40 x 2 and 10 x 10
    assert policy.act(None, routing_state(3, in_flight=[0, 1, 9], request=request)) == 1
    # 100 x 1, 40 x 3 and 10 x 9
    assert policy.act(None, routing_state(3, in_flight=[0, 2, 8], request=request)) == 2


def test_lmetric_as_in_its_paper_counts_the_queue():
    request = arriving(cached_tokens=[50, 0])  # of 100
    flights = [sent(0, index=1, input_tokens=300), sent(1, index=2, input_tokens=100)]
    state = routing_state(2, in_flight=flights, request=request)
    assert _begun(LMetricPolicy(), 2).act(None, state) == 0  # 50 x 2 and 100 x 2
    policy = _begun(LMetricPolicy(LMetricConfig(count_queue=True)), 2)
    assert policy.act(None, state) == 1  # 350 x 2 and 200 x 2


def test_preble_keeps_long_prefixes_together_and_sends_others_where_the_cost_is_least():
    policy = _begun(PreblePolicy(), 3)
    first = policy.act(None, routing_state(3, request=_prompt(1, 2, 3, 4)))
    assert first == 0  # nothing has cost anything yet
    other = policy.act(None, routing_state(3, request=_prompt(9, 8)))
    assert other == 1
    # three of four blocks are known: to the first engine; one of four: to the one without costs
    assert policy.act(None, routing_state(3, request=_prompt(1, 2, 3, 7))) == 0
    assert policy.act(None, routing_state(3, request=_prompt(1, 5, 6, 7))) == 2
    # its engine cannot take it: to the cheapest of the others
    assert policy.act(None, routing_state(3, request=_prompt(1, 2, 3, 4), can_take=[0, 1, 1])) in (1, 2)


def test_preble_forgets_costs_after_its_window():
    policy = _begun(PreblePolicy(PrebleConfig(window_s=10.0)), 2)
    assert policy.act(None, routing_state(2, now_s=0.0, request=arriving())) == 0
    assert policy.act(None, routing_state(2, now_s=1.0, request=arriving())) == 1
    assert policy.act(None, routing_state(2, now_s=10.5, request=arriving())) == 0  # the first has left
    assert policy._cost[1] > 0
    assert policy.act(None, routing_state(2, now_s=30.0, request=arriving())) == 0
    assert policy._cost[1] == pytest.approx(0.0)
    assert policy._load.tolist() == [1, 0]


def test_preble_costs_by_hand():
    """AIBrix' V100: 200 tokens take (-295 + 625 - 256 + 0.8) / 0.9 ms, an answer of 45 tokens 6.75 s."""
    assert v100_prefill_s(200, 200) == pytest.approx((-295 + 625 - 256 + 0.8) / 900)
    assert v100_prefill_s(4096, 4096) == pytest.approx(
        (
            0.27106428 * 4096
            + 10.52444263
            + 4.65e-4 * 4096
            + 0.398
            - 18.425
            + 9.65e-3 * 4096
            + 5.4e-6 * 4096**2
        )
        / 900
    )
    policy = _begun(PreblePolicy(), 2)
    policy.act(None, routing_state(2, request=arriving(input_tokens=200)))
    assert policy._cost[0] == pytest.approx(v100_prefill_s(200, 200) + 6.75)


def test_loadaware_trades_a_hit_for_load():
    policy = _begun(LoadAwarePolicy(), 2)
    request = arriving(cached_tokens=[100, 0])
    # mean 3: 1 - 1/3 against 0 + 1/3; then 1 - 2/3 against 2/3
    assert policy.act(None, routing_state(2, in_flight=[4, 2], request=request)) == 0
    assert policy.act(None, routing_state(2, in_flight=[5, 1], request=request)) == 1
    # below a mean of 1 it is not divided: 1 - 1/2 against 1/2, a tie; with beta 2, 0 against 1
    assert policy.act(None, routing_state(2, in_flight=[1, 0], request=request)) == 0
    policy = _begun(LoadAwarePolicy(LoadAwareConfig(beta=2.0)), 2)
    assert policy.act(None, routing_state(2, in_flight=[1, 0], request=request)) == 1


def test_loadaware_sends_cold_prompts_by_rate():
    policy = _begun(LoadAwarePolicy(LoadAwareConfig(cold="rate")), 2)
    assert [policy.act(None, routing_state(2, in_flight=[0, 9])) for _ in range(3)] == [0, 1, 0]
    # those of a minute ago are forgotten
    assert policy.act(None, routing_state(2, now_s=71.0)) == 0
    assert _begun(LoadAwarePolicy(), 2).act(None, routing_state(2, in_flight=[9, 0])) == 1


def test_sessions_stay_and_new_ones_go_where_the_fewest_are():
    policy = _begun(StickyLeastLoadedPolicy(), 3)
    places = [policy.act(None, routing_state(3, request=arriving([70, i]))) for i in range(1, 4)]
    assert sorted(places) == [0, 1, 2]
    again = [policy.act(None, routing_state(3, request=arriving([70, i, 60 + i]))) for i in range(1, 4)]
    assert again == places
    # its engine is away: it moves for good
    can_take = np.arange(3) != places[0]
    moved = policy.act(None, routing_state(3, request=arriving([70, 1, 61, 80]), can_take=can_take))
    assert moved != places[0]
    assert policy.act(None, routing_state(3, request=arriving([70, 1, 61, 80, 81]))) == moved
    assert (
        policy.act(None, routing_state(3, request=arriving([70, 9]))) == places[0]
    )  # the same system prompt


def test_sessions_expire_and_single_requests_do_not_count():
    policy = _begun(StickyLeastLoadedPolicy(StickyLeastLoadedConfig(expiration_s=100.0)), 2)
    for i in range(4):
        policy.act(None, routing_state(2, request=arriving([], index=i), now_s=1.0))
    assert policy._active.tolist() == [0, 0]
    policy.act(None, routing_state(2, request=arriving([1]), now_s=10.0))
    policy.act(None, routing_state(2, request=arriving([2]), now_s=90.0))
    assert policy._active.sum() == 2
    policy.act(None, routing_state(2, request=arriving([], index=9), now_s=151.0))
    assert policy._active.sum() == 1  # the first has been silent for 141 s


def test_dynamo_adds_blocks_to_compute_and_blocks_in_use():
    policy = _begun(DynamoKVPolicy(), 2)
    request = _prompt(1, 2, 3, 4, index=0, cached_tokens=[0, 0])
    assert policy.act(None, routing_state(2, request=request, can_take=[1, 0])) == 0
    running = [sent(0, index=0, input_tokens=64, first_token_s=9.0)]
    # 0 holds all four: (4 - 4) + 4 blocks that it has already; 1: 4 + 4
    warm = _prompt(1, 2, 3, 4, index=1, cached_tokens=[64, 0])
    assert policy.act(None, routing_state(2, in_flight=running, request=warm)) == 0
    running.append(sent(0, index=1, input_tokens=64, first_token_s=9.0))
    # another prompt: 4 + 8 at 0, where shared blocks count once, 4 + 4 at 1
    cold = _prompt(5, 6, 7, 8, index=2, cached_tokens=[0, 0])
    assert policy.act(None, routing_state(2, in_flight=running, request=cold)) == 1
    assert policy.act(None, routing_state(2, in_flight=[], request=cold)) == 0  # all have ended
    assert policy._shared[1] == {}


def test_dynamo_draws_with_a_temperature():
    policy = _begun(DynamoKVPolicy(DynamoKVConfig(temperature=0.5)), 2)
    request = _prompt(1, 2, cached_tokens=[0, 32])
    places = [policy.act(None, routing_state(2, request=request)) for _ in range(400)]
    # costs normalised 1 and 0: e^-2 against 1
    assert np.mean(places) == pytest.approx(1 / (1 + np.exp(-2)), abs=0.06)


def test_dynamo_lmetric():
    # linear: 10 + 10 against 4 + 20; product: 10 x 11 against 4 x 21
    request = arriving(range(10), input_tokens=160, cached_tokens=[0, 96])
    for selection, place in (("linear", 0), ("lmetric", 1)):
        policy = _begun(DynamoKVPolicy(DynamoKVConfig(selection=selection)), 2)
        other = _prompt(*range(100, 110), index=5, cached_tokens=[0, 0])
        policy.act(None, routing_state(2, request=other, can_take=[0, 1]))
        running = [sent(1, index=5, input_tokens=160, first_token_s=9.0)]
        assert policy.act(None, routing_state(2, in_flight=running, request=request)) == place


def test_curve_has_three_anchors():
    config = LatencyObservationConfig(min_requests=10)
    curve = Curve(config)
    for i in range(11):
        curve.add(float(i), 0.1 * (1 + i), float(4 * i))
    curve.compute(11.0)
    assert curve.trusted
    # P10, P25 and P50 of 0.1 .. 1.1; loads of the ranks within ten percentiles
    assert curve.floor_s == pytest.approx(0.2)
    assert curve.low == pytest.approx((4 * 2.5, 0.35))
    assert curve.typical == pytest.approx((4 * 5, 0.6))
    assert curve.predict(0.0) == pytest.approx(0.2)
    assert curve.predict(5.0) == pytest.approx(0.2 + 5 * 0.15 / 10)
    assert curve.predict(30.0) == pytest.approx(0.35 + 20 * 0.25 / 10)
    curve.low = (19.0, 0.35)  # too close to the typical load: a straight line
    assert curve.predict(30.0) == pytest.approx(0.2 + 30 * 0.4 / 20)


def test_latency_observation_learns_who_is_slow():
    policy = _begun(LatencyObservationPolicy(LatencyObservationConfig(explore_probability=0.0)), 2)
    ttft_s = (0.1, 2.0)
    flights, places = [], []
    for i in range(80):
        place = policy.act(
            None, routing_state(2, in_flight=flights, request=arriving(index=i), now_s=10.0 * i)
        )
        places.append(place)
        flights = [sent(place, index=i, first_token_s=10.0 * i + ttft_s[place])]
    assert 1 in places[:40]
    assert set(places[40:]) == {0}
