"""What is saved comes back as the same policy; what does not fit is refused in one sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from serving_gym.agents import checkpoint
from serving_gym.agents.checkpoint import (
    find_checkpoint,
    load_policy,
    read_config,
    replacing,
    standing,
    write_description,
)
from serving_gym.agents.config import DQNConfig, NetworkConfig, PPOConfig
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import Task, make_env

BURSTY = WorkloadSpec(name="flying_bursty", num_requests=60)
SMALL = NetworkConfig(row_width=8, place_width=2, hidden_widths=(16,))
CONFIGS = {
    "maskable_ppo": PPOConfig(rollout_steps=8, batch_size=8, epochs=1, group_size=2, network=SMALL),
    "ppo": PPOConfig(name="ppo", rollout_steps=8, batch_size=8, epochs=1, group_size=1, network=SMALL),
    "dqn": DQNConfig(name="dqn", buffer_size=500, warm_up_steps=8, batch_size=8, network=SMALL),
}


def trained(name, steps=32):
    learner = make_learner(CONFIGS[name], Task("dp_tp", {"workload": BURSTY}, num_envs=2))
    budget = Budget(steps)
    while not budget.over:
        learner.improve(budget)
    return learner


def save(learner, folder):
    env = make_env("dp_tp", workload=BURSTY)
    settings = {
        "agent": learner.config,
        "env": {"name": "dp_tp", "cluster": ClusterSpec()},
        "workload": BURSTY,
    }
    with replacing(folder) as fresh:
        learner.save_policy(fresh)
        learner.save_training(fresh)
        write_description(
            fresh, settings, env.observation_space, env.action_space, {"steps": 32, "return": -1.25}
        )
    return folder


def decisions(policy, seed=5):
    env = make_env("dp_tp", workload=BURSTY)
    observation, _ = env.reset(seed=seed)
    policy.reset(env.policy_spec, seed)
    actions, done = [], False
    while not done:
        actions.append(policy.act(observation, env.state))
        observation, _, terminated, truncated, _ = env.step(actions[-1])
        done = terminated or truncated
    return actions, env.core.num_refused


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_round_trip(name, tmp_path):
    learner = trained(name)
    folder = save(learner, tmp_path / "checkpoint")
    policy = load_policy(folder)
    actions, refused = decisions(policy)
    assert actions == decisions(learner.policy())[0] == decisions(policy)[0]
    assert refused == 0 or name != "maskable_ppo"
    assert all(type(action) is int for action in actions)
    assert load_policy(tmp_path).name == str(tmp_path)  # the run's folder will do
    assert not policy.clairvoyant


def test_a_checkpoint_says_what_it_is(tmp_path):
    folder = save(trained("maskable_ppo"), tmp_path / "checkpoint")
    config = read_config(folder)
    assert config["agent"]["name"] == "maskable_ppo"
    assert config["agent"]["network"]["hidden_widths"] == [16]
    assert config["workload"]["num_requests"] == 60
    card = (folder / "card.md").read_text()
    for words in ("maskable_ppo", "flying_bursty", "steps", "-1.25", "torch", "serving-gym"):
        assert words in card
    spaces = json.loads((folder / "spaces.json").read_text())
    assert spaces["observation"]["engines"]["shape"][0] == 8
    assert spaces["action"]["n"] == 78


def test_another_setting_is_refused(tmp_path):
    policy = load_policy(save(trained("maskable_ppo"), tmp_path / "checkpoint"))
    smaller = make_env("dp_tp", workload=BURSTY, cluster=ClusterSpec(num_gpus=4))
    with pytest.raises(
        ValueError, match=r"trained on a node of 8 base engines \(78 actions\), this one has 4"
    ):
        policy.reset(smaller.policy_spec, 0)
    classes = make_env("dp_tp", workload=WorkloadSpec(name="flying_priority", num_requests=20))
    observation, _ = classes.reset(seed=0)
    policy.reset(classes.policy_spec, 0)
    with pytest.raises(ValueError, match="another number of request classes"):
        policy.act(observation, classes.state)


def test_training_goes_on_from_what_was_saved(tmp_path):
    learner = trained("maskable_ppo")
    folder = save(learner, tmp_path / "last")
    copy = make_learner(CONFIGS["maskable_ppo"], Task("dp_tp", {"workload": BURSTY}, num_envs=2))
    copy.restore(folder)
    assert decisions(copy.policy()) == decisions(learner.policy())
    ours, theirs = (each.agent.policy.optimizer.state_dict()["state"] for each in (learner, copy))
    for key in ours:
        np.testing.assert_array_equal(ours[key]["exp_avg"], theirs[key]["exp_avg"])
    assert copy.agent.num_timesteps == learner.agent.num_timesteps == 32
    assert copy.reward_scale == learner.reward_scale
    copy.improve(Budget(64, steps=32))
    assert copy.agent.num_timesteps == 48


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "checkpoint"
    with replacing(folder) as fresh:
        (fresh / "a").write_text("first")
    with pytest.raises(RuntimeError), replacing(folder) as fresh:  # noqa: PT012
        (fresh / "a").write_text("second")
        raise RuntimeError
    assert (folder / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    folder.rename(checkpoint.previous(folder))  # killed between the two renames
    assert (standing(folder) / "a").read_text() == "first"
    with replacing(folder) as fresh:
        (fresh / "a").write_text("third")
    assert (standing(folder) / "a").read_text() == "third"


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint in"):
        load_policy(tmp_path)
    with pytest.raises(ValueError, match="zoo holds"):
        load_policy("zoo/nothing")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"format": 1, "agent": {"name": "maskable_pp"}}))
    with pytest.raises(ValueError, match="did you mean 'maskable_ppo'"):
        load_policy(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"format": 99, "agent": {"name": "ppo"}}))
    with pytest.raises(ValueError, match="format 99"):
        load_policy(tmp_path)


def test_other_learners_may_bring_their_loader(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"format": 1, "agent": {"name": "own", "width": 3}}))
    monkeypatch.setitem(
        checkpoint.LOADERS, "own", lambda folder, config, name: (folder, config["agent"]["width"], name)
    )
    assert load_policy(tmp_path) == (tmp_path, 3, str(tmp_path))


def test_the_zoo_lies_in_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "ZOO", tmp_path)
    (tmp_path / "dp_tp").mkdir()
    (tmp_path / "dp_tp" / "config.yaml").write_text("")
    assert find_checkpoint("zoo/dp_tp") == tmp_path / "dp_tp"
