"""The shipped checkpoints keep their promises on episodes that they were not trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec, SlowNode
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.traces import find_trace
from serving_gym.runners.configuration.clusters import cluster_of
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import CompareConfig
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env

TRAINED_ON = 'cluster.engine=""'  # the engines of version 0
SEEDS = range(6)
MIXED = FleetConfig(  # as cluster=fleet_mixed_x4
    groups=(
        GroupSpec(ReplicaSpec("llama-3.1-8b", "A100-80GB"), 2),
        GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1),
        GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", tp_size=2), 1),
    )
)
ROUTING = {
    "workload": WorkloadSpec(name="azure_conv_fitted", num_requests=2000, rate_scale=10.0),
    "cluster": MIXED,
}


@pytest.mark.parametrize(
    "workload",
    [
        WorkloadSpec(name="flying_bursty", num_requests=1500),
        pytest.param(
            WorkloadSpec(name="azure_conv", num_requests=1500, rate_scale=8.0),
            marks=pytest.mark.skipif(find_trace("azure_conv") is None, reason="the trace is not at hand"),
        ),
    ],
    ids=lambda workload: workload.name,
)
def test_the_shipped_agent_beats_both_static_layouts(workload: WorkloadSpec) -> None:
    env = make_env("dp_tp", workload=workload, split="test")
    returns = {
        name: np.array([run_episode(env, policy, seed).metrics["return"] for seed in SEEDS])
        for name, policy in {
            "agent": load_policy("zoo/dp_tp"),
            "dp": make_policy("static_dp"),
            "tp": make_policy("static_tp"),
        }.items()
    }
    assert (returns["agent"] > returns["dp"]).mean() > 0.95
    assert (returns["agent"] > returns["tp"]).mean() > 0.95


@pytest.mark.full
def test_the_shipped_agent_of_sequences_beats_the_best_heuristics() -> None:
    """Kinds of traffic follow one another, for which a layout that stays and a threshold on prompts are best."""
    words = ["env=dp_tp", "experiment=nemotron_8b", "workload=sequence", "split=validation", TRAINED_ON]
    env = composed("compare", CompareConfig, words).environment.make()
    names = ("zoo/dp_tp_sequence", "static_4x2", "prompt_threshold_sequence_tuned")
    metrics = {
        name: [run_episode(env, load_policy(name), seed).metrics for seed in range(8)] for name in names
    }
    ours = np.array([one["return"] for one in metrics["zoo/dp_tp_sequence"]])
    for name in names[1:]:
        theirs = np.array([one["return"] for one in metrics[name]])
        assert np.mean(1.0 - ours / theirs) > 0.02, name
        assert (ours > theirs).mean() > 0.6, name
    attained = {name: np.mean([one["slo_attainment"] for one in each]) for name, each in metrics.items()}
    assert attained["zoo/dp_tp_sequence"] > attained["static_4x2"] - 0.002


def test_a_node_of_another_size_is_refused() -> None:
    env = make_env("dp_tp", cluster=ClusterSpec(num_gpus=4))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="8 base engines"):
        load_policy("zoo/dp_tp").reset(env.policy_spec, seed=0)


@pytest.mark.full
def test_the_shipped_router_beats_the_heuristics() -> None:
    """What was tuned on this very traffic it equals, to 2 %, with a tail much shorter."""
    env = make_env("routing", **ROUTING, split="test")
    names = (
        "zoo/routing",
        "linear_score_tuned",
        "linear_score_mixture_tuned",
        "llumnix",
        "preserve",
        "jsq",
    )
    metrics = {name: [run_episode(env, load_policy(name), seed).metrics for seed in SEEDS] for name in names}
    returns, tails = (
        {name: np.array([one[key] for one in each]) for name, each in metrics.items()}
        for key in ("return", "ttft_p99_s")
    )
    ours = returns.pop("zoo/routing")
    assert ours.mean() > 1.02 * returns.pop("linear_score_tuned").mean()
    assert (tails["zoo/routing"] / tails["linear_score_tuned"]).mean() < 0.7
    for name, theirs in returns.items():
        assert ours.mean() > theirs.mean(), name
        assert (ours > theirs).mean() > 0.8, name


@pytest.mark.parametrize(
    ("seeds", "rival"),
    [(range(900, 902), "jsq"), pytest.param(range(500, 508), "soft_ceiling_tuned", marks=pytest.mark.full)],
)
def test_the_shipped_admitter_beats_the_heuristics(seeds: range, rival: str) -> None:
    """Under overload, by the return and by promises kept, of the critical tier too."""
    words = ["experiment=routing_overload", "split=validation", TRAINED_ON]
    env = composed("compare", CompareConfig, words).environment.make()
    ours, theirs = (
        [run_episode(env, load_policy(name), seed).metrics for seed in seeds]
        for name in ("zoo/routing_overload", rival)
    )
    for metric in ("return", "slo_attainment", "slo_attainment/critical"):
        assert np.mean([one[metric] for one in ours]) > np.mean([one[metric] for one in theirs]), metric


@pytest.mark.full
def test_the_router_of_five_minutes_has_a_short_tail() -> None:
    """Where chat comes to engines of three speeds; it still gains on the best score that minds it as well."""
    env = make_env("routing", **ROUTING, split="test")
    names = ("zoo/routing_five_minutes", "linear_score_tuned", "linear_score_mixture_tuned")
    ours, careless, tuned = (
        [run_episode(env, load_policy(name), seed).metrics for seed in SEEDS] for name in names
    )
    tails = [one["ttft_p99_s"] / other["ttft_p99_s"] for one, other in zip(ours, careless, strict=True)]
    assert np.mean(tails) < 0.6
    assert np.mean([one["return"] / other["return"] for one, other in zip(ours, tuned, strict=True)]) < 1.0


@pytest.mark.full
@pytest.mark.parametrize(
    ("perturbation", "least_gain"),
    [
        ({"gauge_interval_s": 2.0}, -0.025),
        (
            {"cluster": replace(MIXED, slow_nodes=tuple(SlowNode(0.0, place, 0.8) for place in range(4)))},
            -0.01,
        ),
        ({"cluster": replace(MIXED, slow_nodes=(SlowNode(0.0, 3, 1.2),))}, -0.015),
    ],
    ids=["stale_gauges", "faster_engines", "fast_engine_slows"],
)
def test_the_shipped_router_stays_close_to_what_was_tuned_for_chat(perturbation, least_gain) -> None:
    """Where its guard is in the way most, beside a score that has none, tuned on this traffic alone."""
    workload = WorkloadSpec(name="azure_conv_fitted", num_requests=1000, rate_rps=65.0)
    env = make_env("routing", **{**ROUTING, "workload": workload, **perturbation}, split="validation")
    ours, tuned = (
        [run_episode(env, load_policy(name), seed).metrics for seed in range(12)]
        for name in ("zoo/routing", "linear_score_tuned")
    )
    gains = [1.0 - one["return"] / other["return"] for one, other in zip(ours, tuned, strict=True)]
    tails = [one["ttft_p99_s"] / other["ttft_p99_s"] for one, other in zip(ours, tuned, strict=True)]
    assert np.mean(gains) > least_gain
    assert np.mean(tails) < 0.6


def test_the_shipped_router_serves_a_fleet_of_another_size() -> None:
    three = FleetConfig(groups=MIXED.groups[:1] + MIXED.groups[2:])
    slower = WorkloadSpec(name="azure_conv_fitted", num_requests=500, rate_scale=6.0)
    env = make_env("routing", workload=slower, cluster=three, split="test")
    episode = run_episode(env, load_policy("zoo/routing"), 0)
    assert {decision["action"] for decision in episode.decisions} == {0, 1, 2}
    assert episode.metrics["commands_refused"] == 0


def test_the_shipped_router_keeps_long_contexts_moving() -> None:
    """Where a score that was tuned on chat alone does not, nor Llumnix."""
    env = make_env(
        "routing",
        cluster=MIXED,
        workload=WorkloadSpec(name="mooncake_conv_fitted", num_requests=200, rate_rps=1.0),
        split="validation",
    )
    returns = {
        name: np.array([run_episode(env, load_policy(name), seed).metrics["return"] for seed in SEEDS])
        for name in ("zoo/routing", "linear_score_tuned", "llumnix")
    }
    ours = returns.pop("zoo/routing")
    for name, theirs in returns.items():
        assert (ours > theirs).all(), name


@pytest.mark.full
@pytest.mark.parametrize(
    ("gradual", "least_gain"),
    [
        (True, 0.02),
        pytest.param(
            False,
            0.1,
            marks=pytest.mark.xfail(
                strict=True, reason="with exact profiles `dynamo_tuned` is ahead of the agent of 0.1.0 here"
            ),
        ),
    ],
    ids=["drifts", "at once"],
)
def test_the_shipped_choice_of_planners_beats_the_best_tuned_heuristic(
    gradual: bool, least_gain: float
) -> None:
    """Most where the mix changes at once: what is divided for one mix breaks the promises of the next."""
    words = ("env=deployment", "split=validation", f"workload.params.gradual={gradual}")
    config = composed("compare", CompareConfig, words)
    env = replace(config, cluster=cluster_of(config.cluster)).environment.make()
    ours, theirs = (
        np.mean([run_episode(env, load_policy(name), seed).metrics["return"] for seed in range(200, 206)])
        for name in ("zoo/deployment", "dynamo_tuned")
    )
    assert ours - theirs > least_gain * abs(theirs)


@pytest.mark.full
def test_the_shipped_choice_of_planners_takes_wide_workers_where_there_is_room() -> None:
    """With half the load, wide decode workers answer faster and serve all; a threshold sees it in most minutes."""
    words = (
        "env=deployment",
        "split=validation",
        "workload.params.mean_rps=8.0",
        "workload.num_requests=14500",
    )
    config = composed("compare", CompareConfig, words)
    env = replace(config, cluster=cluster_of(config.cluster)).environment.make()
    ours, threshold, narrow = (
        np.mean([run_episode(env, load_policy(name), seed).metrics["return"] for seed in (200, 201)])
        for name in ("zoo/deployment", "dynamo_two_widths_tuned", "dynamo_tuned")
    )
    assert 1.0 - ours / narrow > 0.2
    assert 1.0 - ours / threshold > 0.03


@pytest.mark.full
def test_the_shipped_choice_of_planners_clears_an_overload() -> None:
    """Half more than can be served: what is tuned for less gives too little to decoding."""
    load = ("workload.params.mean_rps=24.0", "workload.num_requests=43500")
    config = composed("compare", CompareConfig, ("env=deployment", "split=validation", *load))
    env = replace(config, cluster=cluster_of(config.cluster)).environment.make()
    ours, theirs = (
        np.mean([run_episode(env, load_policy(name), seed).metrics["return"] for seed in (200, 201)])
        for name in ("zoo/deployment", "dynamo_tuned")
    )
    assert 1.0 - ours / theirs > 0.15


def test_the_shipped_planner_serves_a_cluster_of_another_size() -> None:
    words = ("env=deployment", "cluster.num_machines=4", "split=validation", "workload.params.mean_rps=32.0")
    config = composed("compare", CompareConfig, (*words, "workload.num_requests=6000"))
    env = replace(config, cluster=cluster_of(config.cluster)).environment.make()
    episode = run_episode(env, load_policy("zoo/deployment"), 300)
    assert episode.metrics["commands_refused"] == 0
    assert env.unwrapped.state.deployment.cluster.num_gpus == 32


@pytest.mark.full
@pytest.mark.xfail(
    strict=True,
    reason="the HPA, tuned in version 1 at its own period, is level with the agent, which is of version 0",
)
def test_the_shipped_autoscaler_beats_the_one_that_practitioners_would_pick() -> None:
    config = composed("compare", CompareConfig, ("experiment=autoscaling_day", "split=validation"))
    env = replace(config, cluster=cluster_of(config.cluster)).environment.make()
    episodes = {
        name: [run_episode(env, load_policy(name), seed).metrics for seed in range(300, 303)]
        for name in ("zoo/autoscaling", "hpa_rate_tuned")
    }
    ours, theirs = (np.array([each["return"] for each in episodes[name]]) for name in episodes)
    assert (1.0 - ours / theirs).mean() > 0.01
    assert all(each["commands_refused"] == each["unfinished"] == 0 for each in episodes["zoo/autoscaling"])


@pytest.mark.full
def test_the_shipped_autoscaler_finds_out_that_engines_are_slower_than_known() -> None:
    config = composed("compare", CompareConfig, ("experiment=autoscaling_day", "split=validation"))
    cluster = cluster_of(config.cluster)
    assert isinstance(cluster, FleetConfig)
    slow = tuple(SlowNode(0.0, place, 1.2) for place in range(cluster.num_places))
    env = replace(config, cluster=replace(cluster, slow_nodes=slow)).environment.make()
    episodes = {
        name: [run_episode(env, load_policy(name), seed).metrics for seed in range(300, 303)]
        for name in ("zoo/autoscaling", "hpa_rate_tuned")
    }
    returns, attained = (
        [np.mean([each[metric] for each in episodes[name]]) for name in episodes]
        for metric in ("return", "slo_attainment")
    )
    assert 1.0 - returns[0] / returns[1] > 0.05
    assert attained[0] > attained[1]


@pytest.mark.full
def test_the_shipped_placement_keeps_warm_what_is_asked_for_again() -> None:
    """It lies between what counts how often models have been asked for and what knows when they will be."""
    words = ("experiment=sharing_warm", "split=validation")
    env = composed("compare", CompareConfig, words).environment.make()
    names = ("zoo/sharing", "place_score_warm_tuned", "keep_warm", "belady")
    episodes = {
        name: [run_episode(env, load_policy(name), seed) for seed in range(300, 310)] for name in names
    }
    ours, *heuristics, clairvoyant = (
        np.array([episode.metrics["return"] for episode in each]) for each in episodes.values()
    )
    assert (ours < clairvoyant).all()
    for theirs in heuristics:
        assert (1.0 - ours / theirs).mean() > 0.01
    assert all(episode.metrics["commands_refused"] == 0 for episode in episodes["zoo/sharing"])
