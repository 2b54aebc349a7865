"""A routing state goes out as JSON and comes back the same; what is wrong with one is said in a sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.routing.state import RoutingState
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.serving.wire import state_from_json
from tests.baselines.routers.states import state_to_json
from tests.defaults import make_env

FLEET = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=900), 3),))


@pytest.fixture(scope="module")
def env():
    workload = WorkloadSpec(name="azure_conv_fitted", num_requests=120, rate_rps=60.0)
    return make_env("routing", workload=workload, cluster=FLEET, gauge_interval_s=0.5)


@pytest.mark.parametrize(
    "name", ["jsq", "preserve", "llumnix", "llm_d", "llm_d_legacy", "predicted_latency_profile", "sia"]
)
def test_a_policy_decides_the_same_about_what_came_over_the_wire(env, name):
    near, far = make_policy(name), make_policy(name)
    observation, _ = env.reset(seed=1)
    for policy in (near, far):
        policy.reset(env.policy_spec, 1)
    done = False
    while not done:
        text = json.dumps(state_to_json(env.state))
        back = state_from_json(json.loads(text), 3, env.policy_spec.slos)
        action = near.act(observation, env.state)
        assert repr(far.act(observation, back)) == repr(action)
        observation, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated


def small(**other) -> dict:
    request = {"index": 4, "arrival_s": 9.0, "input_tokens": 100}
    return {
        "now_s": 10.0,
        "engines": [{}, {"num_running": 3}, {}],
        "in_flight": [],
        "request": request,
    } | other


def test_little_needs_to_be_said(env):
    state = state_from_json(small(), 3, env.policy_spec.slos)
    assert isinstance(state, RoutingState)
    assert state.can_take.tolist() == [True, True, True]
    assert state.request is not None
    assert state.request.deadline_s == 10.0  # a second after it came
    assert state.gauges_s == 10.0
    assert state.unsent_tokens == 100
    assert state.engines["num_running"].tolist() == [0, 3, 0]
    assert np.isfinite(state.request.network_s).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "state must be an object, got NoneType"),
        ({"now_s": 1.0}, "state.engines is missing"),
        (small(engines=[{}]), "a row for each of 3 places, got 1"),
        (small(engines=[{}, {}, {"num_runing": 1}]), "did you mean 'num_running'"),
        (small(now_s="soon"), "state.now_s must be a finite number, got 'soon'"),
        (small(in_flight=[{"place": 3}]), "in_flight.place must be from 0 to 2, got 3"),
        (small(in_flight=3), "in_flight must be a list of objects or an object of columns, got 3"),
        (small(can_take=[True]), "can_take must have 3 entries, got 1"),
        (small(request={"index": 1, "arrival_s": 0.0}), "request.input_tokens is missing"),
        (small(request={"index": 1, "arrival_s": 0.0, "input_tokens": 0}), "input_tokens must be from 1 to"),
        (
            small(request={"index": 1, "arrival_s": 0.0, "input_tokens": 5, "class_id": 9}),
            "class_id must be from 0 to 0, got 9",
        ),
        (small(unknown=1), "unknown"),
    ],
)
def test_what_is_wrong_with_a_state(env, values, message):
    with pytest.raises(ValueError, match=message):
        state_from_json(values, 3, env.policy_spec.slos)
