"""RLlib's PPO on masked environments, where Ray is installed: `pip install -e '.[rllib]'`."""

from __future__ import annotations

import numpy as np
import pytest

import serving_gym
from tests.environments.cases import CASES
from tests.tiers import full_except

ray = pytest.importorskip("ray")
pytest.importorskip("ray.rllib", reason="pip install -e '.[rllib]'")


@pytest.fixture(scope="module", autouse=True)
def _ray():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize("name", full_except(["routing", "autoscaling"], "routing"))  # a number, and levers
def test_it_trains_and_is_compared(name):
    from serving_gym.agents.integrations.rllib import MaskedEnv, ppo_config, rllib_policy

    config = ppo_config(name, hidden=16, **CASES[name])
    config.training(train_batch_size=64, minibatch_size=32, num_epochs=1, lr=1e-3).debugging(seed=0)
    algorithm = config.build_algo()
    before = algorithm.get_module().state_dict()["actor.0.weight"].clone()
    for _ in range(2):
        result = algorithm.train()
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] >= 128  # an impossible action would raise
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
    assert not before.equal(algorithm.get_module().state_dict()["actor.0.weight"])
    policy = rllib_policy("mine", MaskedEnv({"env": name, **CASES[name]}), algorithm.get_module())
    drawn = rllib_policy(
        "drawn", MaskedEnv({"env": name, **CASES[name]}), algorithm.get_module(), draw_seed=0
    )
    returns = serving_gym.compare(name, [policy, drawn], seeds=1, **CASES[name])["policies"]
    assert all(np.isfinite(each["metrics"]["return"]["iqm"]) for each in returns.values())
    algorithm.stop()
