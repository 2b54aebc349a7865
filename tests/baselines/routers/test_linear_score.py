"""The linear score: the highest sum wins, one at a time and many together; tuning runs on the batched environment."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np
import pytest

from serving_gym.baselines.common.routers.linear_score import SCORED, LinearScoreConfig, LinearScorePolicy
from serving_gym.baselines.policy import BatchPolicy
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners import tune
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.rollouts.rollout import episode_returns, run_episode
from tests.defaults import make_env, make_vector_env

SHORT = {"workload": WorkloadSpec(name="azure_conv_fitted", num_requests=60, rate_scale=8.0)}
IN_FLIGHT, KV_CAPACITY = PLACE_FEATURES.index("in_flight"), PLACE_FEATURES.index("kv_capacity")


def zero_weights(**others):
    return LinearScoreConfig(**{**dict.fromkeys(SCORED, 0.0), **others})


def test_there_is_a_weight_for_every_feature_that_can_differ():
    assert (
        tuple(item.name for item in fields(LinearScoreConfig))
        == SCORED
        == tuple(LinearScoreConfig.tunables())
    )
    assert PLACE_FEATURES[: len(PLACE_FEATURES) - len(SCORED)] == ("can_take", "in_service")


def test_by_hand():
    """Scores 2 x capacity - in_flight: 2 - 1, 2 - 3, 4 - 0 (cannot take it), 4 - 3; the first of two equals wins."""
    policy = LinearScorePolicy(zero_weights(kv_capacity=2.0, in_flight=-1.0))
    places = np.zeros((2, 4, len(PLACE_FEATURES)), np.float32)
    places[:, :, KV_CAPACITY] = [1, 1, 2, 2]
    places[:, :, IN_FLIGHT] = [1, 3, 0, 3]
    masks = np.array([[1, 1, 0, 1, 1], [0, 0, 0, 0, 1]], bool)
    assert policy.act_batch({"places": places}, masks).tolist() == [0, 4]
    assert isinstance(policy, BatchPolicy)


def test_one_at_a_time_and_together_give_the_same_episodes():
    env = make_env("routing", **SHORT)
    policy = load_policy("linear_score_tuned")
    together = episode_returns(make_vector_env("routing", 3, **SHORT), policy, env.policy_spec, [4, 5, 6])
    alone = [run_episode(env, policy, seed).metrics["return"] for seed in (4, 5, 6)]
    np.testing.assert_allclose(together, alone)


def test_rows_without_a_place_are_never_chosen():
    env = make_env("routing", **SHORT, max_places=7)
    wide = run_episode(env, make_policy("linear_score"), 4).metrics["return"]
    assert wide == run_episode(make_env("routing", **SHORT), make_policy("linear_score"), 4).metrics["return"]
    assert env.action_space.n == 8


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="in_flight must be finite"):
        make_policy("linear_score", in_flight=float("nan"))
    node = make_env("dp_tp", cluster=ClusterSpec())
    with pytest.raises(ValueError, match="decides where requests go"):
        make_policy("linear_score").reset(node.policy_spec, 0)


def test_tuning_improves_it(tmp_path, capsys):
    words = ["env=routing", "policy=linear_score", "workload.num_requests=150", "seeds=3", "evaluations=12"]
    words += ["policy.params.iteration_s=20.0"]  # prefers slow engines
    assert tune.main([*words, f"out={tmp_path}"]) == 0
    assert "return" in capsys.readouterr().out
    tuned = (tmp_path / "tuned.yaml").read_text()
    before, after = (float(word) for word in re.findall(r"(-[\d.]+) (?:before|tuned)", tuned))
    assert after > before
