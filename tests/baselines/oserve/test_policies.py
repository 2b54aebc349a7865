"""OServe and what it is compared with, as policies: each rule by hand, and whole episodes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from serving_gym.baselines.common.deploying import worth_it
from serving_gym.baselines.oserve.policy import OServeConfig, OServePolicy
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.deployment.profiling import CapacityTable
from serving_gym.envs.deployment.state import DeploymentSetting, DeploymentState, SwitchUnderway
from serving_gym.envs.deployment.strategies import Plan
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.cluster import Cluster, Deployment, ReplicaKind
from serving_gym.envs.machines.placement import place
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env
from tests.environments.deployment.samples import BASE, SMALL

K = ReplicaKind
CLUSTER = Cluster(1, 4)
# One GPU is good at type 1, two together at type 2.
TABLE = CapacityTable((K(1), K(2)), np.array([[10.0, 1.0], [12.0, 10.0]]))
ONES, TWOS = place(CLUSTER, {K(1): 4}), place(CLUSTER, {K(2): 2})
MIXED = {K(2): 1, K(1): 2}
ENVIRONMENT = {"forecaster": "environment", "profiling": "environment"}


def spec(past=((40.0, 0.0), (0.0, 20.0)), table: CapacityTable = TABLE) -> PolicySpec:
    setting = DeploymentSetting(CLUSTER, "llama-3.1-8b", table, np.ones((2, 2)), np.array(past))
    return PolicySpec(
        DeploymentSpec(model="llama-3.1-8b", num_machines=1, gpus_per_machine=4),
        (SLO(1.0, 0.1),),
        ("standard",),
        60.0,
        setting=setting,
    )


def state(forecast, deployment: Deployment = ONES, now_s: float = 60.0, **changes) -> DeploymentState:
    count = len(deployment.replicas)
    values = {
        "now_s": now_s,
        "deployment": deployment,
        "engines": np.zeros(count),
        "shares": np.zeros((count, 2)),
        "switch": None,
        "history": np.array([forecast], float),
        "forecast": np.array(forecast, float),
        "num_pooled": 0,
        "pooled_tokens": 0,
        "totals": np.zeros((1, 12)),
        "coming": np.array([forecast], float),
        **changes,
    }
    return DeploymentState(**values)


def ready(name: str, setting: PolicySpec | None = None, **params):
    policy = make_policy(name, **params)
    policy.reset(spec() if setting is None else setting, 0)
    return policy


def oserve(**params):
    words = {"forecaster": "environment", "profiling": "environment", "objective": "throughput"}
    return ready("oserve", **(words | params))


def test_static_deploys_what_serves_most_of_the_past_and_then_keeps_it():
    """Four small replicas serve 40 and 4 of the past, two large ones 24 and 20."""
    policy = ready("vllm_static")
    command = policy.act(None, state([40, 0], now_s=0.0))
    assert command.deployment.kinds == {K(2): 2}
    assert (command.shares == 1).all()
    assert policy.act(None, state([40, 0], TWOS, shares=np.ones((2, 2)))) is None


def test_static_deploys_the_layout_that_it_is_given():
    assert ready("vllm_static", layout=[1, 1]).act(None, state([40, 0], now_s=0.0)).deployment.kinds == {
        K(1): 4
    }
    with pytest.raises(ValueError, match=r"layout=\[4, 2\] does not fit; choose one of \[1, 1\], \[2, 1\]"):
        ready("vllm_static", layout=[4, 2])
    with pytest.raises(ValueError, match="layout must be TP and PP"):
        ready("vllm_static", layout=[0, 1])


def test_the_first_decision_asks_for_more_than_the_profile_errs_by():
    """A per cent more is what the profile cannot tell from none."""
    for gain, taken in ((0.5, True), (0.01, False)):
        found, present = Plan({K(1): 4}, 100.0 * (1 + gain)), Plan({K(2): 2}, 100.0)
        assert worth_it(found, present, state([40, 0], TWOS, now_s=0.0), min_gain=0.05) is taken
    assert worth_it(found, present, state([40, 0], TWOS, now_s=0.0), min_gain=0.0)


def test_reload_follows_the_forecast_with_the_switch_it_is_given():
    for switch in ("reload", "ad_hoc"):
        policy = ready("vllm_reload", switch=switch)
        command = policy.act(None, state([0, 20], ONES))
        assert command.deployment.kinds == {K(2): 2}
        assert command.switch == switch
        assert policy.act(None, state([40, 0], ONES, shares=np.ones((4, 2)))) is None


def test_reload_does_not_change_for_less_than_it_must_gain():
    """Of 40 of type 1 and one of type 2, ones serve 40 in a span, twos 24: two thirds more."""
    assert ready("vllm_reload", min_gain=0.6).act(None, state([40, 1], TWOS)).deployment.kinds == {K(1): 4}
    assert ready("vllm_reload", min_gain=0.7).act(None, state([40, 1], TWOS)).deployment == TWOS


def test_nobody_begins_a_switch_while_one_is_under_way():
    under = SwitchUnderway(50.0, 70.0, True)
    for name, params in (("vllm_static", {}), ("vllm_reload", {}), ("oserve", ENVIRONMENT)):
        action = ready(name, **params).act(None, state([0, 20], ONES, switch=under))
        assert action is None or action.deployment == ONES


@pytest.mark.parametrize("search", ["algorithm_1", "optimal"])
def test_oserve_deploys_what_suits_both_types_and_sends_each_where_it_is_good(search):
    """Ten of type 2 fill the large replica, twenty of type 1 the two small ones."""
    command = oserve(search=search).act(None, state([20, 10], ONES))
    assert command.deployment.kinds == MIXED
    large = [replica.kind == K(2) for replica in command.deployment.replicas]
    np.testing.assert_allclose(command.shares[large], [[0, 1]], atol=1e-9)
    np.testing.assert_allclose(command.shares[np.logical_not(large)], [[0.5, 0], [0.5, 0]], atol=1e-9)
    assert command.switch == "ad_hoc"


def test_oserve_keeps_what_is_nearly_as_good_but_takes_the_better_for_nothing():
    """The mixed deployment serves all 30; large ones 20 of type 1 in 1.67 spans, 3.3 of type 2 in the rest: 23.3."""
    policy = oserve(min_gain=0.3)
    assert policy.act(None, state([20, 10], TWOS)).deployment == TWOS
    assert policy.act(None, state([20, 10], TWOS, now_s=0.0)).deployment.kinds == MIXED
    assert oserve(min_gain=0.25).act(None, state([20, 10], TWOS)).deployment.kinds == MIXED


def test_oserve_keeps_types_apart_among_replicas_that_are_alike():
    """Type 1 takes 0.5 spans of large replicas, type 2 0.3: the first has 0.4 of type 1 (4.8), the second the rest."""
    command = oserve(min_gain=10.0).act(None, state([6, 3], TWOS))
    np.testing.assert_allclose(command.shares, [[4.8 / 6, 0], [1.2 / 6, 1]], atol=1e-9)
    even = oserve(min_gain=10.0, assignment="even").act(None, state([6, 3], TWOS))
    np.testing.assert_allclose(even.shares, 0.5)
    spread = oserve(assignment="spread").act(None, state([20, 10], ONES))
    assert spread.deployment.kinds == MIXED
    np.testing.assert_allclose(np.sort(spread.shares, axis=0), [[10, 1], [10, 1], [12, 10]])


def test_oserve_serves_by_the_maximum_flow_where_told_to():
    """Twelve of type 1 and ten of type 2 fit the M_k = 60 of one large replica: the other has nothing to do."""

    def shares(**params):
        policy = oserve(min_gain=10.0, **params)
        return policy.act(None, state([12, 10], TWOS)).shares

    flow = shares(assignment="as_solved", solver="flow_requests")
    np.testing.assert_allclose(np.sort(flow, axis=0), [[0, 0], [1, 1]])
    np.testing.assert_allclose(flow[:, 0], flow[:, 1])
    np.testing.assert_allclose(shares(assignment="even", solver="flow_requests"), 0.5)
    np.testing.assert_allclose(
        shares(assignment="apart", solver="flow_requests"), [[1, 0], [0, 1]], atol=1e-9
    )
    np.testing.assert_allclose(shares(assignment="as_solved"), 0.5)


def test_where_every_deployment_has_room_oserve_may_prefer_wide_replicas():
    """Of 4 and 2 the mixed deployment reaches most; two large ones serve them 24/(4 + 2 * 1.2) = 3.75 times."""
    assert oserve().act(None, state([4, 2], ONES)).deployment.kinds == MIXED
    assert oserve(most_room=3.7).act(None, state([4, 2], ONES)).deployment.kinds == {K(2): 2}
    assert oserve(most_room=3.8).act(None, state([4, 2], ONES)).deployment.kinds == MIXED
    assert oserve(most_room=3.7).act(None, state([4, 2], TWOS)).deployment == TWOS


def test_oserve_forecasts_from_what_it_has_seen():
    history = np.array([[30.0, 0.0], [10.0, 20.0]])
    policy = ready("oserve", forecaster="moving_average", profiling="environment", history=2)
    seen = state([1, 1], history=history)
    np.testing.assert_allclose(policy.forecast(seen), [20, 10])
    nothing = state([3, 4], history=np.zeros((0, 2)))
    np.testing.assert_allclose(policy.forecast(nothing), [3, 4])
    assert policy.act(None, seen).deployment.kinds == MIXED


def test_the_lstm_is_fitted_once_and_needs_a_past():
    long = spec(np.abs(np.random.default_rng(0).normal(20, 3, (30, 2))))
    policy = OServePolicy(OServeConfig(history=8, profiling="environment"))
    policy.reset(long, 0)
    forecaster = policy._fitted
    policy.reset(long, 1)
    assert policy._fitted is forecaster
    assert np.isfinite(policy.forecast(state([20, 20]))).all()
    with pytest.raises(ValueError, match="needs more than history=8 spans"):
        policy.reset(spec(), 0)


def test_nothing_to_serve_is_nothing_to_decide():
    for name, params in (
        ("oserve", ENVIRONMENT),
        ("vllm_reload", {}),
        ("clairvoyant_deployment", {}),
    ):
        assert ready(name, **params).act(None, state([0, 0])) is None


def test_the_clairvoyant_one_looks_at_what_comes_not_at_the_forecast():
    policy = ready("clairvoyant_deployment")
    assert policy.clairvoyant
    assert policy.act(None, state([40, 0], coming=np.array([[0.0, 20.0]]))).deployment.kinds == {K(2): 2}


def test_the_clairvoyant_one_deploys_for_several_spans_and_assigns_for_one():
    """Of 13.3 and 16 in the mean two large replicas serve all in 1.36 spans, one large and two small ones in 1.44."""
    coming = np.array([[40.0, 0.0], [0.0, 24.0], [0.0, 24.0], [40.0, 0.0]])
    command = ready("clairvoyant_deployment").act(None, state([1, 1], coming=coming))
    assert command.deployment.kinds == {K(2): 2}
    np.testing.assert_allclose(command.shares[:, 0], 0.5)
    near = ready("clairvoyant_deployment", look_ahead=1).act(None, state([1, 1], coming=coming))
    assert near.deployment.kinds == {K(1): 4}


def test_llumnix_has_the_best_uniform_layout_and_lets_load_decide():
    policy = ready("llumnix_deployment")
    command = policy.act(None, state([40, 0], now_s=0.0))
    assert command.deployment.kinds == {K(2): 2}
    assert not command.shares.any()
    assert policy.act(None, state([40, 0], TWOS)) is None


def test_dynamo_divides_gpus_between_its_workers():
    """Decoding takes three times as long as prefilling: one prefill worker, three decode workers."""
    P, D = K(1, 1, "prefill"), K(1, 1, "decode")
    table = CapacityTable((K(1), P, D), np.array([[10.0, 1.0], [30.0, 30.0], [10.0, 10.0]]))
    policy = ready("dynamo", spec(table=table))
    command = policy.act(None, state([10, 10], ONES))
    assert command.deployment.kinds == {P: 1, D: 3}
    assert policy.act(None, state([10, 10], command.deployment, shares=np.ones((4, 2)))) is None
    with pytest.raises(ValueError, match=r"cluster\.disaggregation=true"):
        ready("dynamo")


def test_dynamo_takes_the_workers_and_the_weight_that_it_is_told():
    """The wide decode worker reaches less; and decoding counted a third leaves prefill workers more."""
    P, D, W = K(1, 1, "prefill"), K(1, 1, "decode"), K(2, 1, "decode")
    table = CapacityTable((K(1), P, D, W), np.array([[10.0, 1.0], [30.0, 30.0], [10.0, 10.0], [15.0, 15.0]]))
    deployed = [
        ready("dynamo", spec(table=table), **params).act(None, state([10, 10], ONES)).deployment.kinds
        for params in ({}, {"decode": [2, 1]}, {"decode_weight": 1 / 3})
    ]
    assert deployed == [{P: 1, D: 3}, {P: 2, W: 1}, {P: 2, D: 2}]
    with pytest.raises(ValueError, match=r"policy\.params\.decode: there is no \(TP=4, decode\)"):
        ready("dynamo", spec(table=table), decode=[4, 1])


def test_wide_decode_workers_are_taken_and_kept_by_what_they_serve():
    """Two prefill workers and a wide decode worker serve 15 requests a span of either type, or of both together."""
    P, D, W = K(1, 1, "prefill"), K(1, 1, "decode"), K(2, 1, "decode")
    table = CapacityTable((K(1), P, D, W), np.array([[10.0, 1.0], [30.0, 30.0], [10.0, 10.0], [15.0, 15.0]]))
    wide = {"prefill": [1, 1], "decode": [2, 1], "enter": 1.5, "keep": 0.6}
    policy, demands = ready("dynamo_two_widths", spec(table=table), **wide), (11, 10, 16, 17, 11, 10)
    now, taken = ONES, []
    for demand in demands:  # they serve 15 / demand times the demand: taken from 1.5 on, kept to 0.9
        command = policy.act(None, state([demand / 2, demand / 2], now))
        now = command.deployment if command is not None else now
        taken.append(now.kinds.get(W, 0))
    assert taken == [0, 1, 1, 0, 0, 1]
    assert set(now.kinds) == {P, W}


def test_without_wide_workers_it_is_the_planner():
    cluster = dataclasses.replace(SMALL, disaggregation=True)
    env = make_env("deployment", **BASE | {"cluster": cluster})
    wide, asked = {"prefill": [1, 1], "decode": [2, 1]}, {"period_s": None}
    returns = [
        run_episode(env, make_policy(name, **params), seed=1).metrics["return"]
        for name, params in (
            ("dynamo", asked),
            ("dynamo_two_widths", wide | {"enter": 1e9}),
            ("dynamo", wide | asked),
            ("dynamo_two_widths", wide | {"enter": 1e-9}),
        )
    ]
    assert returns[0] == returns[1] != returns[2] == returns[3]


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("stay", {}),
        ("random", {}),
        ("vllm_static", {}),
        ("llumnix_deployment", {}),
        ("vllm_reload", {"switch": "ad_hoc"}),
        ("oserve", {"history": 20, "restarts": 2}),
        (
            "oserve",
            {"history": 20, "restarts": 2, "profiling": "mixed", "most_room": 1.5, "assignment": "even"},
        ),
        *(
            ("oserve", {"history": 20, "restarts": 2, "assignment": "as_solved", "solver": solver})
            for solver in ("flow_units", "flow_requests")
        ),
        ("clairvoyant_deployment", {"min_gain": 0.0}),
    ],
)
def test_whole_episodes(name, params):
    env = make_env("deployment", **BASE)
    episode = run_episode(env, make_policy(name, **params), seed=1)
    assert episode.metrics["commands_refused"] == 0
    assert episode.metrics["completed"] == episode.metrics["arrived"] == 500


def test_dynamo_in_a_whole_episode():
    cluster = dataclasses.replace(SMALL, disaggregation=True)
    env = make_env("deployment", **BASE | {"cluster": cluster})
    episode = run_episode(env, make_policy("dynamo"), seed=1)
    assert episode.metrics["commands_refused"] == 0
    assert episode.metrics["completed"] == 500
    assert {kind.role for kind in env.state.deployment.kinds} == {"prefill", "decode"}


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("oserve", {"forecaster": "lstm"}, "forecaster"),
        ("oserve", {"search": "greedy"}, "search"),
        ("oserve", {"min_gain": -0.1}, "min_gain"),
        ("oserve", {"history": 0}, "history"),
        ("oserve", {"restarts": -1}, "restarts"),
        ("oserve", {"assignment": "odd"}, "assignment"),
        ("oserve", {"solver": "flow"}, "solver"),
        ("oserve", {"profiling": "guess"}, "profiling"),
        ("oserve", {"objective": "latency"}, "objective"),
        ("oserve", {"most_room": 0.5}, "most_room"),
        ("vllm_reload", {"switch": "slow"}, "switch"),
        ("clairvoyant_deployment", {"min_gain": -1.0}, "min_gain"),
        ("clairvoyant_deployment", {"look_ahead": 0}, "look_ahead"),
        ("dynamo", {"min_gain": -1.0}, "min_gain"),
        ("dynamo", {"decode_weight": 0.0}, "decode_weight"),
        ("dynamo", {"prefill": [4]}, "prefill must be TP and PP"),
        ("dynamo", {"decode": "4x1"}, "decode must be TP and PP"),
        ("dynamo_two_widths", {"decode": "8x1"}, "decode must be TP and PP"),
        ("dynamo_two_widths", {"min_gain": -1.0}, "min_gain"),
        ("dynamo_two_widths", {"enter": 0.0}, "enter must be positive and finite"),
        ("dynamo_two_widths", {"keep": 1.5}, r"keep must lie in \[0, 1\]"),
    ],
)
def test_mistakes_are_named(name, params, words):
    with pytest.raises(ValueError, match=words):
        make_policy(name, **params)


def test_another_decision_is_refused():
    with pytest.raises(ValueError, match="cut into replicas"):
        make_policy("oserve").reset(dataclasses.replace(spec(), setting=None), 0)


def test_dynamo_plans_for_the_mean_of_the_time_between_its_decisions():
    """Asked every third span it sees the three spans since its last decision, asked each span the environment's one."""
    P, D = K(1, 1, "prefill"), K(1, 1, "decode")
    table = CapacityTable((K(1), P, D), np.array([[10.0, 1.0], [30.0, 30.0], [10.0, 10.0]]))
    setting = spec(table=table)
    seldom, often = make_policy("dynamo"), make_policy("dynamo")
    assert seldom.period_s == 180.0
    seldom.reset(setting.asked_every(180.0), 0)
    often.reset(setting.asked_every(60.0), 0)
    seen = dataclasses.replace(
        state([10, 10], ONES), history=np.array([[9.0, 9.0], [1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])
    )
    assert seldom.demand(seen).tolist() == [3.0, 5.0]
    assert often.demand(seen).tolist() == [10.0, 10.0]
