"""llm-d's routing by predicted latency."""

import numpy as np
import pytest

from serving_gym.baselines.common.routers.headroom import headroom_scores
from serving_gym.baselines.common.routers.latency_model import LatencyModel
from serving_gym.baselines.common.routers.predicted_latency_profile import (
    PredictedLatencyProfileConfig,
    PredictedLatencyProfilePolicy,
)
from serving_gym.envs.interface.slo import SLO
from tests.baselines.routers.states import arriving, routing_spec, routing_state, sent

# engines of `routing_spec`: 1 ms a prompt token, 10 ms an iteration, 1 us a token of context


def _predict(state, request, cached=None, **columns):
    num_places = len(state.engines)
    model = LatencyModel(routing_spec(num_places, **columns).fleet)
    return model.predict(
        state, request, np.zeros(num_places, np.int64) if cached is None else np.array(cached)
    )


def test_latency_of_an_engine_at_work_and_an_idle_one():
    request = arriving(input_tokens=300, predicted_tokens=80)
    flights = [
        sent(0, input_tokens=500, predicted_tokens=200),
        sent(0, input_tokens=1000, predicted_tokens=300, generated_tokens=100, first_token_s=9.0),
    ]
    ttft, tpot = _predict(routing_state(2, in_flight=flights), request, cached=[0, 200])
    # context: 1100 and 500 to come, 300 and half of 80
    np.testing.assert_allclose(tpot, [0.01 + 1e-6 * 1940, 0.01 + 1e-6 * 340])
    # an iteration under way and one of prefill, both over 1100 tokens of context; 800 and 100 tokens to prefill
    np.testing.assert_allclose(ttft, [0.01 + 2e-6 * 1100 + 0.8, 0.01 + 0.1])


def test_latency_of_prompts_longer_than_an_iteration():
    decoding = sent(0, input_tokens=1000, generated_tokens=1, first_token_s=9.0)
    state = routing_state(1, in_flight=[decoding, sent(0, input_tokens=150)])
    ttft, _ = _predict(state, arriving(input_tokens=149), max_num_batched_tokens=np.array([101]))
    # 299 tokens in iterations of 101 - 1: three, and the one under way
    np.testing.assert_allclose(ttft, [0.01 + 0.299 + 4e-6 * 1001])


def test_latency_of_a_prompt_that_is_cached_whole():
    ttft, _ = _predict(routing_state(1), arriving(input_tokens=160), cached=[160])
    np.testing.assert_allclose(ttft, [0.01 + 0.001])  # the last token is computed


def test_latency_where_requests_must_wait_for_a_place():
    flights = [
        sent(0, input_tokens=10, predicted_tokens=50, generated_tokens=n, first_token_s=9.0)
        for n in (20, 30, 60)
    ]
    request = arriving(input_tokens=10, predicted_tokens=20)
    ttft, tpot = _predict(routing_state(1, in_flight=flights), request, max_num_seqs=np.array([2]))
    # context 30 + 40 + 70, and 20 of its own
    np.testing.assert_allclose(tpot, [0.01 + 1e-6 * 160])
    # 4 of 2 places; mean left (30 + 20 + 1) / 3
    np.testing.assert_allclose(ttft, [0.01 + 0.01 + 2e-6 * 140 + (4 / 2 - 1) * 17 * tpot[0]])


def test_latency_where_requests_must_wait_for_memory():
    flights = [sent(0, input_tokens=300, predicted_tokens=100)] * 2
    request = arriving(input_tokens=300, predicted_tokens=100)
    ttft, tpot = _predict(routing_state(1, in_flight=flights), request, kv_capacity_tokens=np.array([800]))
    np.testing.assert_allclose(tpot, [0.01 + 1e-6 * 800])  # no more context than fits
    np.testing.assert_allclose(ttft, [0.01 + 0.9 + (1200 / 800 - 1) * 100 * tpot[0]])


def test_latency_grows_with_the_batch():
    decode_s = np.tile(np.linspace(0.01, 0.02, 257), (1, 1))
    flights = [sent(0, input_tokens=1, generated_tokens=1, first_token_s=9.0)] * 127
    _, tpot = _predict(routing_state(1, in_flight=flights), arriving(), decode_s=decode_s)
    np.testing.assert_allclose(tpot, [0.015 + 1e-6 * (254 + 150)])


def _begun(config=None, slo=None, seed=0, **columns):
    policy = PredictedLatencyProfilePolicy(config)
    policy.reset(routing_spec(2, slo, **columns), seed)
    return policy


def _shares(policy, state, draws=1500):
    choices = [policy.act(None, state) for _ in range(draws)]
    return np.bincount(choices, minlength=2) / draws


def _waiting(*tokens):
    """Prompts that wait on engines 0 and 1."""
    return [sent(place, input_tokens=n) for place, n in enumerate(tokens) if n]


def _state(*tokens, **fields):
    # due one second from now
    return routing_state(2, in_flight=_waiting(*tokens), request=arriving(deadline_s=11.0, **fields))


def test_of_engines_that_keep_the_slo_the_one_with_the_least_to_spare():
    # TTFT 0.11 and 0.61 s of 1 s: scores 0.01 and 1
    assert _shares(_begun(), _state(0, 500))[1] > 0.97


def test_or_the_one_with_the_most():
    assert _shares(_begun(PredictedLatencyProfileConfig(strategy="most")), _state(0, 500))[0] > 0.97


def test_of_equal_engines_either():
    np.testing.assert_allclose(_shares(_begun(), _state(500, 500)), 0.5, atol=0.05)


def test_an_engine_that_misses_the_slo_is_explored_now_and_then():
    state = _state(0, 1000)
    assert _shares(_begun(PredictedLatencyProfileConfig(explore_probability=0.0)), state)[1] == 0
    np.testing.assert_allclose(
        _shares(_begun(PredictedLatencyProfileConfig(explore_probability=0.2)), state)[1], 0.2, atol=0.04
    )
    assert _shares(_begun(PredictedLatencyProfileConfig(explore_probability=1.0)), state)[1] == 1


def test_time_in_the_queue_counts_against_the_slo():
    config = PredictedLatencyProfileConfig(explore_probability=0.0)
    assert _shares(_begun(config), _state(0, 500))[1] > 0.9
    late = routing_state(2, in_flight=_waiting(0, 500), request=arriving(deadline_s=10.5))  # 0.5 s are left
    assert _shares(_begun(config), late)[1] == 0


def test_where_all_miss_an_idle_engine_is_taken():
    # 2.11 s on 0, and on 1, which is slow, 10 s
    columns = {"prefill_s_per_token": np.array([1e-3, 1e-1])}
    assert _shares(_begun(**columns), _state(2000, 0))[1] == 1


def test_where_all_miss_the_least_deficit_is_taken():
    config = PredictedLatencyProfileConfig(strategy="most")  # which is not heeded there
    # 0 has the smaller deficit of TTFT, 1 the smaller headroom of TPOT: 1 - 0.2 and 1 - 0.8, so 0.81 and 0.21
    np.testing.assert_allclose(
        _shares(_begun(config), _state(2000, 5000)), [0.81 / 1.02, 0.21 / 1.02], atol=0.04
    )


def test_where_all_miss_tpot_alone_is_the_lightest():
    # 0: TTFT 2.11 s and TPOT 12 ms of 20; 1: TTFT 0.21 s, TPOT 30 ms
    decode_s = np.repeat([[0.01], [0.03]], 257, axis=1)
    policy = _begun(slo=SLO(1.0, 0.02), decode_s=decode_s)
    assert _shares(policy, _state(2000, 100))[1] == 1
    # both missed on 1: TTFT alone, on 0
    assert _shares(policy, _state(2000, 3000))[0] == 1


@pytest.mark.parametrize(
    ("ttft", "tpot", "weights", "least_first", "scores"),
    [
        # a third of the way from the least TTFT, and all of it in TPOT: 0.8 / 3 + 0.2; two thirds: 0.8 + 0.4 / 3
        ([0.2, 0.3, 0.5], [0.01, 0.04, 0.03], (0.8, 0.2), True, [1.0, 0.54, 0.07]),
        ([0.2, 0.3, 0.5], [0.01, 0.04, 0.03], (0.8, 0.2), False, [0.01, 0.47, 0.94]),
        ([-0.2, -0.4], [-0.01, -0.02], (0.8, 0.2), True, [1.0, 0.01]),  # deficits
        ([0.3, 0.3], [0.02, 0.01], (0.8, 0.2), True, [0.01, 1.0]),  # TTFT does not tell them apart
        ([0.3, 0.2], [0.02, 0.02], (0.8, 0.2), True, [0.01, 1.0]),
        ([0.3, 0.3], [0.02, 0.02], (0.8, 0.2), True, [0.51, 0.51]),
        ([0.3, 0.2], [0.01, 0.02], (0.0, 0.0), True, [0.01, 1.0]),  # no weights: TTFT
        ([0.3, 0.2], [0.01, 0.02], (0.0, 3.0), True, [1.0, 0.01]),
    ],
)
def test_scores(ttft, tpot, weights, least_first, scores):
    np.testing.assert_allclose(headroom_scores(np.array(ttft), np.array(tpot), *weights, least_first), scores)


PROMPT = tuple(range(1, 11))


def _after_the_prompt(policy):
    """Sends a prompt of ten blocks, 160 tokens, to engine 1."""
    state = routing_state(2, request=arriving(PROMPT, input_tokens=160), can_take=[0, 1])
    assert policy.act(None, state) == 1
    return policy


def _asked(blocks, waiting=(0, 0), deadline_s=20.0):
    request = arriving(blocks, input_tokens=16 * len(blocks), deadline_s=deadline_s)
    return routing_state(2, in_flight=_waiting(*waiting), request=request)


def test_a_prompt_goes_where_it_is_held():
    policy = _after_the_prompt(_begun())
    assert _shares(policy, _asked(PROMPT), draws=200)[1] == 1


def test_part_of_a_prompt_does_not_hold_it():
    # seven of ten blocks at 1: 0 has less to spare, 0.16 s of prefill against 0.048 s
    policy = _after_the_prompt(_begun())
    assert policy.act(None, _asked((*PROMPT[:7], 50, 51, 52))) == 0


def test_the_loose_filter_holds_it_among_engines_that_keep_the_slo():
    part = (*PROMPT[:9], 50)  # nine of ten
    assert _after_the_prompt(_begun()).act(None, _asked(part)) == 1
    strict_only = PredictedLatencyProfileConfig(loose_affinity=0.0, explore_probability=0.0)
    assert _after_the_prompt(_begun(strict_only)).act(None, _asked(part)) == 0
    # engine 1 would be late: it leaves before the loose filter
    loose = PredictedLatencyProfileConfig(explore_probability=0.0)
    assert _after_the_prompt(_begun(loose)).act(None, _asked(part, (0, 2000), deadline_s=11.0)) == 0
    # but not before the strict one
    assert _after_the_prompt(_begun(loose)).act(None, _asked(PROMPT, (0, 2000), deadline_s=11.0)) == 1


@pytest.mark.parametrize(("penalty_s", "place"), [(1.8, 0), (1.9, 1), (0.0, 1)])
def test_too_slow_an_engine_does_not_hold_a_prompt(penalty_s, place):
    # with 2 s of prompts before it at 1, TTFT is 2.011 s there and 0.17 s at 0: 1.841 s of penalty
    config = PredictedLatencyProfileConfig(
        max_ttft_penalty_s=penalty_s, strategy="most", explore_probability=0.0
    )
    policy = _after_the_prompt(_begun(config))
    assert policy.act(None, _asked(PROMPT, (0, 2000))) == place


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"strict_affinity": 1.1}, "strict_affinity must lie in"),
        ({"explore_probability": -0.1}, "explore_probability must lie in"),
        ({"max_ttft_penalty_s": -1.0}, "max_ttft_penalty_s must not be negative"),
        ({"tpot_weight": -1.0}, "tpot_weight must not be negative"),
        ({"strategy": "some"}, r"unknown strategy 'some' \(allowed: least, most\)"),
    ],
)
def test_mistakes_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        PredictedLatencyProfileConfig(**params)
