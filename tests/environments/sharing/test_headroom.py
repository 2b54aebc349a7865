"""The look-ahead that knows the future is never worse than the policy it looks ahead with."""

from __future__ import annotations

import pytest

from serving_gym.baselines.common.place_score import PlaceScorePolicy
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.reproduction.sharing_headroom import look_ahead_return, main
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env
from tests.environments.sharing.samples import SMALL

PARAMS = {"num_models": 8, "sizes": ("llama-3.2-3b", "llama-2-7b"), "ratio": (1, 1), "minutes": 3}
TINY = {
    "workload": WorkloadSpec("functions_fitted", num_requests=12, rate_scale=6.0, params=PARAMS),
    "cluster": SMALL,
}


@pytest.mark.parametrize("seed", [0, 1])
def test_with_the_whole_episode_as_its_horizon(seed):
    base = run_episode(make_env("sharing", **TINY), PlaceScorePolicy(), seed).metrics["return"]
    ahead = look_ahead_return(SharingConfig(**TINY), PlaceScorePolicy(), seed, 1000)
    assert ahead >= base - 1e-9


def test_a_word_that_is_none_is_refused(capsys):
    assert main(["modles=3"]) == 2
    assert "unknown word 'modles'" in capsys.readouterr().err
