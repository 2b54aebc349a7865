"""What holds of every router in the registry that decides by the state; those by the observation have their own."""

import numpy as np
import pytest

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.policy import BatchPolicy
from serving_gym.baselines.registry import POLICIES, make_policy
from serving_gym.envs.routing.state import Dispatch
from tests.baselines.routers.states import arriving, busy_state, routing_spec, routing_state

ROUTERS = [
    name
    for name in POLICIES
    if name == "random"
    or (
        name != "static"
        and isinstance(make_policy(name), Router)
        and type(make_policy(name)).__module__.startswith("serving_gym.baselines.")
        and not isinstance(make_policy(name), BatchPolicy)
    )
]


def _states(can_take=None):
    rng = np.random.default_rng(0)
    for i in range(60):
        request = arriving(
            hash_ids=1000 * (i % 5) + np.arange(i % 7),
            cached_tokens=16 * rng.integers(0, 4, 16),
            index=i,
            input_tokens=int(rng.integers(100, 200)),
            class_id=i % 2,
        )
        yield busy_state(rng, num_in_flight=i, request=request, can_take=can_take, now_s=10.0 + i)


def _place(action):
    """Where an action sends the request; None: it is held."""
    return action.place if isinstance(action, Dispatch) else action


def _choices(name, seed=7, can_take=None, policy=None):
    policy = policy or make_policy(name)
    policy.reset(routing_spec(16), seed)
    return [_place(policy.act(None, state)) for state in _states(can_take)]


@pytest.mark.parametrize("name", ROUTERS)
def test_choices_are_places_and_follow_the_seed(name):
    choices = _choices(name)
    assert all(type(choice) is int and 0 <= choice < 16 for choice in choices if choice is not None)
    assert any(choice is not None for choice in choices)
    assert choices == _choices(name)


@pytest.mark.parametrize("name", ROUTERS)
def test_reset_forgets(name):
    policy = make_policy(name)
    assert _choices(name, policy=policy) == _choices(name, policy=policy)


@pytest.mark.parametrize("name", ROUTERS)
def test_only_those_that_can_take_the_request_are_chosen(name):
    can_take = np.isin(np.arange(16), (3, 8, 13))
    assert set(_choices(name, can_take=can_take)) - {None} <= {3, 8, 13}


@pytest.mark.parametrize("name", ROUTERS)
def test_the_only_one_that_can_take_the_request_gets_it(name):
    assert set(_choices(name, can_take=np.arange(16) == 11)) - {None} == {11}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_request_that_nobody_can_take_is_held(name):
    policy = make_policy(name)
    policy.reset(routing_spec(3), 0)
    assert policy.act(None, routing_state(3, can_take=[0, 0, 0])) is None
    assert policy.act(None, routing_state(3, request=None)) is None


@pytest.mark.parametrize("name", ROUTERS)
def test_an_empty_fleet_takes_the_first_request(name):
    policy = make_policy(name)
    policy.reset(routing_spec(3), 0)
    assert _place(policy.act(None, routing_state(3))) in (0, 1, 2)


@pytest.mark.parametrize("name", ROUTERS)
def test_one_engine_gets_everything(name):
    policy = make_policy(name)
    policy.reset(routing_spec(1), 0)
    states = [routing_state(1, request=arriving([i, i + 1])) for i in range(5)]
    assert [_place(policy.act(None, state)) for state in states] == [0] * 5
