"""What would look good by a careless count must rank last: to refuse, hold for ever, starve the long, thrash,
scale to zero."""

from __future__ import annotations

import numpy as np
import pytest

import tests.environments.autoscaling.samples as samples_of_autoscaling
import tests.environments.deployment.samples as samples_of_deployment
import tests.environments.sharing.samples as samples_of_sharing
from serving_gym.baselines.policy import Action
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.scaling import Operation, ScaleChange
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.comparison.results import Kinds, compare_results
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env

LONG_TOKENS = 1000


class Cheat:
    """Does one thing whatever happens."""

    clairvoyant = False
    honest: str | None = None  # whom it does as, where it does not cheat

    def __init__(self, name: str) -> None:
        self.name = name

    def reset(self, spec, seed: int) -> None:
        self.spec, self.rng = spec, np.random.default_rng(seed)
        if self.honest is not None:
            self.usual = make_policy(self.honest)
            self.usual.reset(spec, seed)

    def act(self, observation, state) -> Action:
        """Nothing: what is held is held for ever."""
        return None


class StarvesTheLong(Cheat):
    """Holds long prompts until they are refused."""

    honest = "jsq"

    def act(self, observation, state) -> Action:
        return None if self.tokens(state) > LONG_TOKENS else self.usual.act(observation, state)

    def tokens(self, state) -> int:
        """Of the request's prompt."""
        return state.request.input_tokens


class StarvesTheLongOnNodes(StarvesTheLong):
    honest = "first_fit"

    def tokens(self, state) -> int:
        return state.requests[state.offered]["input_tokens"]


class Thrashes(Cheat):
    """Another layout at every decision, hard."""

    def act(self, observation, state) -> Action:
        return int(self.rng.choice(np.arange(26)) * 3 + 2)


class Redeploys(Cheat):
    """Another deployment in every span."""

    def act(self, observation, state) -> Action:
        possible = np.flatnonzero(observation["candidates"].any(axis=1))
        return int(self.rng.choice(possible[possible > 1])) if (possible > 1).any() else 0


class ScalesToZero(Cheat):
    """Takes every instance away as soon as it may: nothing is spent, and nobody is served."""

    def act(self, observation, state) -> Action:
        return [
            ScaleChange(each.endpoint, Operation.STOP, len(each.present))
            for each in state.endpoints
            if len(each.present)
        ]


class ScalesToZeroTowardsTheEnd(ScalesToZero):
    """Serves the first half, and leaves what comes then to nobody."""

    honest = "queue_proportional"

    def act(self, observation, state) -> Action:
        ends = state.now_s >= AUTOSCALING["episode_s"] / 2
        return super().act(observation, state) if ends else self.usual.act(observation, state)


ROUTING = {
    "workload": WorkloadSpec(name="azure_conv_fitted", num_requests=150, rate_scale=8.0),
    "split": "test",
}
DP_TP = {"workload": WorkloadSpec(name="flying_bursty", num_requests=200), "split": "test"}
DEPLOYMENT = {**samples_of_deployment.BASE, "split": "test"}
AUTOSCALING = {**samples_of_autoscaling.ONE, "min_instances": 0, "split": "test"}
SHARING = {
    "workload": WorkloadSpec(
        "functions_fitted",
        num_requests=60,
        rate_scale=2.0,
        params={"num_models": 12, "sizes": ("llama-3.2-3b", "llama-2-7b"), "ratio": (2, 1), "minutes": 3},
    ),
    "cluster": samples_of_sharing.SMALL,
    "split": "test",
}


@pytest.mark.parametrize(
    ("env_name", "arguments", "cheats", "honest"),
    [
        ("routing", {**ROUTING, "drain_limit_s": 10.0}, [Cheat, StarvesTheLong], ["random", "jsq"]),
        pytest.param(
            "routing",
            {**ROUTING, "queue_capacity": 0},
            [Cheat, StarvesTheLong],
            ["random", "jsq"],
            marks=pytest.mark.full,
        ),
        ("dp_tp", DP_TP, [Thrashes], ["static_dp", "static_tp", "flying_serving"]),
        pytest.param("deployment", DEPLOYMENT, [Redeploys], ["stay", "vllm_static"], marks=pytest.mark.full),
        pytest.param(
            "autoscaling",
            AUTOSCALING,
            [ScalesToZero, ScalesToZeroTowardsTheEnd],
            ["fixed_instances", "queue_proportional"],
            marks=pytest.mark.full,
        ),
        ("sharing", SHARING, [Cheat, StarvesTheLongOnNodes], ["random", "first_fit"]),
    ],
    ids=["hold", "refuse", "thrash", "redeploy", "to_zero", "hold_on_nodes"],
)
def test_cheats_rank_last(env_name, arguments, cheats, honest):
    env = make_env(env_name, **arguments)
    cheating = {kind.__name__: kind(kind.__name__) for kind in cheats}
    policies = cheating | {name: make_policy(name) for name in honest}
    results = {
        name: [run_episode(env, policy, seed, name) for seed in range(4)] for name, policy in policies.items()
    }
    comparison = compare_results(results, Kinds(learned=frozenset(cheating)))
    ranks = sorted(policies, key=lambda name: comparison["policies"][name]["metrics"]["return"]["iqm"])
    assert set(ranks[: len(cheats)]) == set(cheating)
    assert not any(comparison["gates"][name]["holds"] for name in cheating)
    assert comparison["badge"] != "solved"
