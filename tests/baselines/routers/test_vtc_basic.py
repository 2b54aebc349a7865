"""AIBrix's virtual token counter."""

import numpy as np
import pytest

from serving_gym.baselines.common.routers.vtc_basic import VTCBasicConfig, VTCBasicPolicy
from tests.baselines.routers.states import arriving, engine, routing_spec, routing_state


def _begun(num_places=3, **params):
    policy = VTCBasicPolicy(VTCBasicConfig(**params))
    policy.reset(routing_spec(num_places), 0)
    return policy


def _send(policy, tokens, class_id=0, now_s=0.0, engines=3, can_take=None):
    request = arriving(input_tokens=tokens, predicted_tokens=0, class_id=class_id)
    return policy.act(None, routing_state(engines, request=request, now_s=now_s, can_take=can_take))


def test_a_user_goes_on_by_an_engine_every_hundred_tokens():
    policy = _begun()
    # counts before each: 0, 100, 200, 300 (mod 300: 0), 410; draws of at most 0.1 do not reach the next engine's 0.5
    assert [_send(policy, tokens) for tokens in (100, 100, 100, 110, 100)] == [0, 1, 2, 0, 1]


def test_users_have_counts_of_their_own():
    policy = _begun()
    assert _send(policy, 200, class_id=0) == 0
    assert _send(policy, 100, class_id=1) == 0
    assert _send(policy, 100, class_id=0) == 2
    assert _send(policy, 100, class_id=1) == 1


def test_output_counts_twice():
    policy = _begun()
    request = arriving(input_tokens=100, predicted_tokens=50)
    assert policy.act(None, routing_state(3, request=request)) == 0
    assert _send(policy, 1) == 2


def test_load_holds_a_user_back():
    # 0.5 x 0 + 1 x min(150 / 100, 1) against 0.5 x 1 and 0.5 x 2
    engines = [engine(num_running=150), engine(), engine()]
    assert _send(_begun(utilization_weight=1.0), 1, engines=engines) == 1
    # 0.2 x 1 against 0.5 and 1
    assert _send(_begun(utilization_weight=0.2), 1, engines=engines) == 0
    assert _send(_begun(utilization_weight=1.0, max_load=1500.0), 1, engines=engines) == 0


def test_engines_are_numbered_among_those_that_can():
    policy = _begun()
    assert _send(policy, 100, can_take=[0, 1, 1]) == 1
    assert _send(policy, 100, can_take=[0, 1, 1]) == 2
    assert _send(policy, 100, can_take=[0, 1, 1]) == 1  # 200 mod 200


def test_minutes_older_than_an_hour_are_forgotten():
    policy = _begun()
    assert _send(policy, 100, now_s=30.0) == 0  # in the minute that began at 0
    assert _send(policy, 100, now_s=90.0) == 1
    assert _send(policy, 0, now_s=3600.0) == 2  # both minutes count
    assert _send(policy, 0, now_s=3601.0) == 1  # that of 0 began more than an hour ago
    assert _send(policy, 0, now_s=3661.0) == 0
    assert _send(policy, 0, now_s=90000.0) == 0


def test_draws_break_ties():
    policy = _begun(fairness_weight=0.0)
    choices = [_send(policy, 1) for _ in range(1500)]
    np.testing.assert_allclose(np.bincount(choices) / 1500, 1 / 3, atol=0.05)


@pytest.mark.parametrize("params", [{"fairness_weight": -1.0}, {"max_load": 0.0}])
def test_mistakes_are_named(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        VTCBasicConfig(**params)
