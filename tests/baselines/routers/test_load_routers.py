"""Routers by turns, chance and load."""

import numpy as np

from serving_gym.baselines.common.routers.jsq import JSQPolicy, remaining_tokens
from serving_gym.baselines.common.routers.least_kv import LeastKVPolicy
from serving_gym.baselines.common.routers.least_request import LeastRequestPolicy
from serving_gym.baselines.common.routers.power_of_two import PowerOfTwoPolicy
from serving_gym.baselines.common.routers.round_robin import RoundRobinPolicy
from serving_gym.baselines.registry import make_policy
from tests.baselines.routers.states import engine, routing_spec, routing_state, sent


def _begun(policy, num_places=4, seed=0):
    policy.reset(routing_spec(num_places), seed)
    return policy


def _shares(policy, state, draws=4000):
    choices = [policy.act(None, state) for _ in range(draws)]
    return np.bincount(choices, minlength=len(state.engines)) / draws


def test_random_draws_uniformly_from_those_that_can():
    policy = _begun(make_policy("random"))
    shares = _shares(policy, routing_state(4, can_take=[1, 0, 1, 1]))
    assert shares[1] == 0
    np.testing.assert_allclose(shares[[0, 2, 3]], 1 / 3, atol=0.03)


def test_random_may_leave_a_request_in_the_queue():
    policy = _begun(make_policy("random", switch_probability=0.0))
    assert policy.act(None, routing_state(4)) is None


def test_round_robin_takes_turns():
    policy = _begun(RoundRobinPolicy(), 3)
    assert [policy.act(None, routing_state(3)) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_counts_on_while_engines_come_and_go():
    policy = _begun(RoundRobinPolicy(), 3)
    turns = [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 1, 1]]
    # decisions 0 to 4: 0 mod 3, 1 mod 3, then 2 mod 2 and 3 mod 2 of engines 0 and 2, then 4 mod 3
    assert [policy.act(None, routing_state(3, can_take=can)) for can in turns] == [0, 1, 0, 2, 1]


def test_round_robin_does_not_count_a_decision_that_nobody_could_take():
    policy = _begun(RoundRobinPolicy(), 2)
    assert policy.act(None, routing_state(2, can_take=[0, 0])) is None
    assert policy.act(None, routing_state(2)) == 0


def test_least_request_counts_the_routers_own_requests():
    engines = [engine(), engine(num_running=9, num_waiting=9), engine()]
    policy = _begun(LeastRequestPolicy(), 3)
    assert policy.act(None, routing_state(engines, in_flight=[2, 1, 3])) == 1
    assert policy.act(None, routing_state(engines, in_flight=[2, 1, 3], can_take=[1, 0, 1])) == 0


def test_least_request_draws_among_equals():
    shares = _shares(_begun(LeastRequestPolicy()), routing_state(4, in_flight=[1, 2, 1, 1]))
    assert shares[1] == 0
    np.testing.assert_allclose(shares[[0, 2, 3]], 1 / 3, atol=0.03)


def test_power_of_two_of_two_engines_takes_the_lighter():
    policy = _begun(PowerOfTwoPolicy(), 2)
    assert {policy.act(None, routing_state(2, in_flight=[3, 2])) for _ in range(20)} == {1}
    assert {policy.act(None, routing_state(2, in_flight=[2, 3])) for _ in range(20)} == {0}


def test_power_of_two_gives_equals_their_half():
    shares = _shares(_begun(PowerOfTwoPolicy(), 2), routing_state(2, in_flight=[3, 3]))
    np.testing.assert_allclose(shares, 0.5, atol=0.03)


def test_power_of_two_draws_pairs_uniformly():
    # of 4 engines with 0, 1, 2 and 3 requests, 3, 2, 1 and 0 of the 6 pairs have it as the lighter
    shares = _shares(_begun(PowerOfTwoPolicy()), routing_state(4, in_flight=[0, 1, 2, 3]))
    np.testing.assert_allclose(shares, [3 / 6, 2 / 6, 1 / 6, 0], atol=0.03)
    shares = _shares(
        _begun(PowerOfTwoPolicy()), routing_state(4, in_flight=[3, 0, 1, 2], can_take=[1, 0, 1, 1])
    )
    np.testing.assert_allclose(shares, [0, 0, 2 / 3, 1 / 3], atol=0.03)


def test_remaining_tokens():
    state = routing_state(
        4,
        in_flight=[
            sent(0, input_tokens=500, predicted_tokens=200),  # not begun: its prompt and its output
            sent(1, input_tokens=500, predicted_tokens=200, generated_tokens=1, first_token_s=9.0),
            sent(1, input_tokens=500, predicted_tokens=200, generated_tokens=150, first_token_s=5.0),
            sent(
                3, input_tokens=500, predicted_tokens=200, generated_tokens=260, first_token_s=1.0
            ),  # outgrown
        ],
    )
    assert remaining_tokens(state).tolist() == [700, 199 + 50, 0, 1]


def test_jsq_joins_the_queue_with_the_fewest_tokens():
    policy = _begun(JSQPolicy(), 3)
    flights = [sent(0, input_tokens=900), *[sent(1)] * 3, sent(2, input_tokens=300), sent(2)]
    # tokens: 1000, 3 x 200 and 600
    assert policy.act(None, routing_state(3, in_flight=flights)) == 1
    assert policy.act(None, routing_state(3, in_flight=flights, can_take=[1, 0, 1])) == 2


def test_least_kv_goes_by_the_gauge_then_by_requests_in_flight():
    policy = _begun(LeastKVPolicy(), 3)
    assert policy.act(None, routing_state([engine(0.5), engine(0.2), engine(0.3)], in_flight=[0, 9, 0])) == 1
    even = [engine(0.5), engine(0.2), engine(0.2)]
    assert policy.act(None, routing_state(even, in_flight=[0, 2, 1])) == 2
    assert policy.act(None, routing_state(even, in_flight=[0, 1, 1])) == 1
    assert policy.act(None, routing_state(even, can_take=[1, 0, 0])) == 0


def test_least_kv_goes_by_the_share_not_by_the_blocks():
    policy = _begun(LeastKVPolicy(), 2)
    small, large = (
        engine(kv_used_blocks=50, kv_capacity_blocks=100),
        engine(kv_used_blocks=80, kv_capacity_blocks=400),
    )
    assert policy.act(None, routing_state([small, large])) == 1
