"""The reward ranks policies as it should: the clairvoyant one first, tricks last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from serving_gym.baselines.common.deploying import DeployingPolicy
from serving_gym.baselines.oserve.dynamo import DynamoConfig, DynamoPolicy
from serving_gym.baselines.policy import Action
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.deployment.state import Deploy, DeploymentState
from serving_gym.envs.machines.cluster import ReplicaKind
from serving_gym.envs.machines.placement import place
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import DRIFT, make_env
from tests.environments.deployment.samples import BASE

K = ReplicaKind
SEEDS = (0, 1)


class Restless(DeployingPolicy):
    """Switches whenever it can: between few wide and many narrow replicas."""

    name = "restless"

    def act(self, observation: Any, state: DeploymentState) -> Deploy | None:
        if state.switch is not None:
            return None
        kinds = {K(8): 2} if K(4) in state.deployment.kinds else {K(4): 4}
        return Deploy(place(self.setting.cluster, kinds, state.deployment))


class Worst(DeployingPolicy):
    """Takes the last of the candidates, which reaches least."""

    name = "worst"

    def act(self, observation: Any, state: DeploymentState) -> int:
        return int(observation["candidates"][:, 0].sum()) - 1


class Idle(DeployingPolicy):
    """Leaves most GPUs idle, so that little ends, and that seldom."""

    name = "idle"

    def act(self, observation: Any, state: DeploymentState) -> Deploy | None:
        return Deploy(place(self.setting.cluster, {K(4): 1})) if state.now_s == 0 else None


class Foreseeing(DynamoPolicy):
    """Plans for what really comes, with room for decoding."""

    name, clairvoyant = "foreseeing", True

    def __init__(self) -> None:
        super().__init__(DynamoConfig(decode_weight=0.6, period_s=None))

    def act(self, observation: Any, state: DeploymentState) -> Action:
        return super().act(observation, replace(state, forecast=state.coming[0]))


def mean_return(env: Any, policy: Any) -> float:
    return float(np.mean([run_episode(env, policy, seed).metrics["return"] for seed in SEEDS]))


def test_the_clairvoyant_one_comes_first_and_tricks_come_last():
    """On half an episode of the default task at a load that replicas which do both can serve."""
    default = DRIFT
    workload = replace(default, num_requests=12_000, params={**default.params, "mean_rps": 13.0})
    env = make_env("deployment", workload=workload, split="validation", past_spans=20)
    honest = [Foreseeing(), make_policy("vllm_static"), make_policy("clairvoyant_deployment")]
    returns = [mean_return(env, policy) for policy in honest]
    tricks = {policy.name: mean_return(env, policy) for policy in (Restless(), Worst(), Idle())}
    assert max(returns) == returns[0]
    assert max(tricks.values()) < min(returns), (returns, tricks)


def test_replicas_too_small_for_long_requests_do_not_pay():
    """One GPU holds 2576 tokens: who deploys that has the long requests refused, and a fine tail of the others."""
    small = DeploymentSpec(
        model="llama-3.1-8b", num_machines=2, gpus_per_machine=2, memory_utilization=0.205, reinit_s=2.0
    )
    env = make_env("deployment", **BASE | {"cluster": small, "prediction": PredictionSpec(name="oracle")})

    class Of(DeployingPolicy):
        name = "of"

        def __init__(self, kinds: dict[ReplicaKind, int]) -> None:
            self.kinds = kinds

        def act(self, observation: Any, state: DeploymentState) -> Any:
            return self.evenly(self.kinds, state) if state.switch is None else None

    refusing, serving = (run_episode(env, Of(kinds), 0) for kinds in ({K(1): 4}, {K(2): 2}))
    assert refusing.metrics["reward/abandoned"] < 0 == serving.metrics["reward/abandoned"]
    assert refusing.metrics["return"] < serving.metrics["return"]


@pytest.mark.parametrize("term", ["p99", "throughput"])
def test_weights_of_the_terms_count(term):
    plain, weighted = (make_env("deployment", **BASE | {term: weight}) for weight in (0.0, 2.0))
    for env in (plain, weighted):
        env.reset(seed=0)
    (_, before, *_), (_, after, _, _, info) = plain.step(0), weighted.step(0)
    assert after - before == pytest.approx(0.1 * 2.0 * info["reward_terms"][term])
