"""What returns are held against: the relaxation bounds them all, the search looks ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec, SlowNode
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.comparison.clairvoyant import ClairvoyantSearchPolicy
from serving_gym.runners.comparison.references import (
    Engines,
    bound_on_return,
    class_slowdowns,
    engines_of,
    srpt_flow_time,
)
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env

MIXED = FleetConfig(
    groups=(
        GroupSpec(ReplicaSpec("llama-3.1-8b", "A100-80GB"), 1),
        GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1),
    )
)
ROUTING = {"cluster": MIXED, "split": "test"}


def chat(requests, **changes):
    return WorkloadSpec(name="azure_conv_fitted", num_requests=requests, **changes)


def test_srpt_by_hand():
    """A job of 4 s is put off at 1 s for one of 1 s, and at 3 s for one of 2 s: it ends at 7 s."""
    arrivals, work = np.array([0.0, 1.0, 3.0]), np.array([4.0, 1.0, 1.5])
    # 0-1 first (3 left), 1-2 second (done, 1 s), 2-3 first (2 left), 3-4.5 third (1.5 s), 4.5-6.5 first (6.5 s)
    assert srpt_flow_time(arrivals, work) == pytest.approx(1.0 + 1.5 + 6.5)
    assert srpt_flow_time(np.array([0.0, 0.0, 9.0]), np.array([2.0, 1.0, 1.0])) == pytest.approx(1 + 3 + 1)
    assert srpt_flow_time(np.zeros(0), np.zeros(0)) == 0.0


def test_bound_by_hand(make_episode):
    """Three requests a second apart, of 10 tokens in and out, on one engine of a tenth of a second a token."""
    records = make_episode("x", 0).records
    engines = Engines(
        mixed_s=np.array([np.arange(11) * 0.1]),
        decode_s=np.array([0.02]),
        kv_s_per_token=np.array([0.001]),
        prefill_tokens_per_s=5.0,
    )
    ttft, tpot = engines.alone(records)
    np.testing.assert_allclose(ttft, 1.0)
    np.testing.assert_allclose(tpot, 0.02 + 0.001 * 15)
    objective = Objective(latency=1.0, ttft_attainment=2.0, tpot_attainment=3.0, goodput=0.5, scale=0.1)
    # pooled, each takes 2 s and there is one a second: first come 2, 3 and 4 s
    waiting = (2.0 + 3.0 + 4.0) / 0.5
    expected = 0.1 * (-(waiting + 3 * 0.035 / 0.1) - 2.0 * 3 - 0.0 + 0.5 * 3)
    slos = [SLO(ttft_s=0.5, tpot_s=0.1)]
    assert bound_on_return(engines, records, slos, objective, ["standard"]) == pytest.approx(expected)
    slowdowns = class_slowdowns(engines, records, slos, ["standard"])
    assert slowdowns["slowdown/standard"] == pytest.approx(np.mean([1.1, 1.2, 1.3]) / (1.0 + 9 * 0.035))
    promised = class_slowdowns(None, records, slos, ["standard"])["slowdown/standard"]
    assert promised == pytest.approx(np.mean([1.1, 1.2, 1.3]) / (0.5 + 9 * 0.1))


def test_a_request_alone_on_the_fastest_engine_takes_what_the_reference_says():
    alone = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1),))
    env = make_env("routing", workload=chat(1), cluster=alone, split="test")
    episode = run_episode(env, load_policy("linear_score_tuned"), 3)
    ttft, tpot = engines_of(env).alone(episode.records)
    assert episode.records.ttft_s[0] == pytest.approx(ttft[0], rel=0.12)  # attention is left out
    assert ttft[0] <= episode.records.ttft_s[0]
    assert episode.records.tpot_s[0] == pytest.approx(tpot[0], rel=0.02)


@pytest.mark.parametrize(
    ("env_name", "arguments", "policies"),
    [
        ("routing", {"workload": chat(200, rate_scale=r), **ROUTING}, ("round_robin", "linear_score_tuned"))
        for r in (0.2, 4.0, 20.0)
    ]
    + [
        (
            "dp_tp",
            {"workload": WorkloadSpec(name=name, num_requests=120), "split": "test"},
            ("static_dp", "static_tp", "flying_serving"),
        )
        for name in ("flying_bursty", "flying_priority")
    ],
)
def test_no_policy_is_better_than_the_bound(env_name, arguments, policies):
    env = make_env(env_name, **arguments)
    for name in policies:
        for seed in range(2):
            episode = run_episode(env, load_policy(name), seed)
            spec = env.policy_spec
            objective = env.config.objective
            bound = bound_on_return(engines_of(env), episode.records, spec.slos, objective, spec.classes)
            assert episode.metrics["return"] <= bound < 0


def test_an_environment_whose_engines_are_not_known_beforehand_has_no_bound():
    from tests.environments.deployment.samples import BASE

    assert engines_of(make_env("deployment", **BASE)) is None


def test_the_search_finds_what_its_base_does_not_see():
    env = make_env("routing", workload=chat(60, rate_scale=6.0), **ROUTING)
    base = load_policy("round_robin")
    plain = run_episode(env, base, 1).metrics["return"]
    search = ClairvoyantSearchPolicy(env, "routing", load_policy("round_robin"), horizon=30, candidates=2)
    assert search.clairvoyant
    found = run_episode(env, search, 1)
    assert found.metrics["return"] > 0.8 * plain  # costs: a fifth less
    assert found.metrics["return"] == run_episode(env, search, 1).metrics["return"]
    seldom = ClairvoyantSearchPolicy(env, "routing", load_policy("round_robin"), horizon=30, every=10**6)
    actions = [decision["action"] for decision in run_episode(env, seldom, 1).decisions]
    usual = [decision["action"] for decision in run_episode(env, base, 1).decisions]
    assert actions[1:] == usual[1:]


def test_the_search_inside_the_kernel_is_the_one_outside(monkeypatch):
    env = make_env("routing", workload=chat(50, rate_scale=6.0), **ROUTING)

    def searched():
        search = ClairvoyantSearchPolicy(env, "routing", load_policy("linear_score"), horizon=20)
        return run_episode(env, search, 1)

    inside = searched()
    monkeypatch.delattr(type(env.unwrapped), "roll_forks")
    outside = searched()
    assert [d["action"] for d in inside.decisions] == [d["action"] for d in outside.decisions]
    assert inside.metrics["return"] == outside.metrics["return"]


@pytest.mark.full
def test_a_search_that_keeps_to_its_candidates_sees_what_its_base_takes_back():
    """At a request a second one engine of all GPUs answers soonest; a base that wants eight apart splits it again."""
    env = make_env("dp_tp", workload=chat(60, rate_rps=1.0), split="test")

    def searched(**settings):
        base = load_policy({"name": "load_threshold", "params": {"layouts": ["8x1"]}})
        search = ClairvoyantSearchPolicy(env, "dp_tp", base, horizon=10, candidates=32, **settings)
        return run_episode(env, search, 0).metrics["return"]

    whole = run_episode(env, load_policy("static_tp"), 0).metrics["return"]
    taken_back, held = searched(every=4), searched(every=4, hold=True)
    assert held >= whole
    assert held > 0.9 * taken_back  # costs: a tenth less


def test_faster_places_raise_the_bound():
    fleet = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2),))
    faster = replace(fleet, slow_nodes=tuple(SlowNode(0.0, place, 0.8) for place in range(2)))
    bounds, returns = [], []
    for cluster in (fleet, faster):
        env = make_env("routing", workload=chat(80, rate_scale=6.0), split="test", cluster=cluster)
        episode = run_episode(env, load_policy("jsq"), 2)
        objective = env.config.objective
        spec = env.policy_spec
        bounds.append(bound_on_return(engines_of(env), episode.records, spec.slos, objective, spec.classes))
        returns.append(episode.metrics["return"])
    assert returns[0] < returns[1] <= bounds[1]
    assert bounds[1] > 0.9 * bounds[0]
    assert engines_of(env).prefill_tokens_per_s == pytest.approx(
        engines_of(make_started("routing", cluster=fleet)).prefill_tokens_per_s / 0.8, rel=1e-3
    )


def make_started(name, **arguments):
    env = make_env(name, **arguments)
    env.reset(seed=0)
    return env
