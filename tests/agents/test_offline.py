"""Datasets of every environment, and learners that have nothing else to learn from."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml

from serving_gym.agents.checkpoint import load_policy
from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.learners.offline.dataset import Experience, read_dataset
from serving_gym.envs.registration import env_id, make_env
from serving_gym.runners import collect, compare, train
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.policies import load_policy as named_policy
from serving_gym.runners.offline.dataset import Dataset
from serving_gym.runners.offline.recording import Numbered, Recorder
from serving_gym.runners.rollouts.rollout import run_episode
from tests.environments.cases import CASES, NAMES, entries

minari = pytest.importorskip("minari")

SMALL = ["env=routing", "workload.num_requests=200"]


def recorded(name: str, folder: Path, explore: float = 0.0) -> tuple[Recorder, dict]:
    """A dataset of one episode of random decisions, and what it is made of."""
    env = Recorder(make_env(name, **CASES[name]))
    dataset = Dataset(folder, env, gym.spec(env_id(name)), "parquet")
    episode = run_episode(env, Numbered(named_policy("random"), adapter_of(name), env, explore), 5, "random")
    dataset.add(env.episode(), 5, {"policy": "random", "seed": 5, **episode.metrics})
    dataset.describe({"reward_terms": list(env.terms)})
    return env, env.episode()


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_of_every_environment_is_read_back_as_it_was(name, tmp_path):
    (tmp_path / "data").mkdir()
    env, kept = recorded(name, tmp_path / "data", explore=0.3)
    data = minari.MinariDataset(tmp_path / "data")
    assert data.observation_space == env.observation_space
    assert data.action_space == env.action_space
    (episode,) = data.iterate_episodes()
    count = len(kept["rewards"])
    assert len(episode) == data.total_steps == count > 0
    for part, values in kept["observations"].items():
        assert len(values) == count + 1
        np.testing.assert_array_equal(episode.observations[part], values)
    np.testing.assert_array_equal(episode.actions, kept["actions"])
    np.testing.assert_array_equal(episode.rewards, kept["rewards"])
    for part in ("action_mask", "dt", "refused", "explored", "reward_terms"):
        np.testing.assert_array_equal(episode.infos[part], kept["infos"][part])
    assert episode.infos["action_mask"].shape == (count + 1, sum(entries(env.action_space)))
    assert episode.infos["reward_terms"].shape == (count + 1, len(env.terms))
    assert episode.infos["explored"].any()
    assert not episode.infos["explored"][0]
    assert (episode.terminations | episode.truncations).tolist() == [False] * (count - 1) + [True]
    (about,) = data.storage.get_episode_metadata([0])
    assert about["return"] == pytest.approx(sum(kept["rewards"]))
    assert about["seed"] == 5

    read = read_dataset(str(tmp_path), env_id(name), env.observation_space, env.action_space)
    np.testing.assert_array_equal(read.at, np.arange(count))
    np.testing.assert_array_equal(read.dt_s, np.float32(kept["infos"]["dt"][1:]))
    assert read.over.tolist() == [False] * (count - 1) + [True]
    assert all(read.masks[i, action] for i, action in enumerate(read.actions) if read.actions.ndim == 1)


def test_the_command_writes_what_minari_loads_and_the_environment_plays_again(tmp_path, monkeypatch, capsys):
    words = [*SMALL, "policies=[random,jsq]", "seeds=2", "env.gauge_interval_s=0.5", f"out={tmp_path}"]
    assert collect.main(words) == 0
    assert "800 decisions in 4 episodes" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = minari.load_dataset("Serving/Routing-v1")
    about = data.storage.metadata
    assert about["policies"] == ["random", "jsq"]
    assert about["seeds"] == [0, 1]
    assert about["split"] == "train"
    assert about["command"].startswith("python -m runners.collect env=routing")
    assert about["ref_min_score"] < about["ref_max_score"]
    assert about["reward_terms"][0] == "latency"
    env = data.recover_environment()
    assert env.unwrapped.config.gauge_interval_s == 0.5
    assert env.unwrapped.config.split == "train"
    episode = data[3]
    (own,) = data.storage.get_episode_metadata([3])
    assert (own["policy"], own["seed"]) == ("jsq", 1)
    observation, _ = env.reset(seed=own["seed"])
    for i, action in enumerate(episode.actions):
        np.testing.assert_array_equal(observation["places"], episode.observations["places"][i])
        observation, reward, *_ = env.step(int(action))
        assert reward == episode.rewards[i]
    assert collect.main(words) == USER_ERROR
    assert "holds a dataset Serving/Routing-v1 already" in capsys.readouterr().err


def test_a_command_that_fails_leaves_no_half_dataset(tmp_path, capsys):
    class Broken(Exception):
        pass

    def break_off(*_: object) -> None:
        raise Broken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "describe", break_off)
        with pytest.raises(Broken):
            collect.main([*SMALL, "policies=[jsq]", "seeds=1", f"out={tmp_path}"])
    assert not list(tmp_path.rglob("metadata.json"))
    assert collect.main([*SMALL, "policies=[jsq]", "seeds=1", f"out={tmp_path}"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["policies=[]"], "policies must name at least one policy"),
        (["policies=[jsq,jsq]"], "policies names 'jsq' more than once"),
        (["policies=[jsqq]"], "unknown policy 'jsqq'; did you mean 'jsq'"),
        (["policies=[jsq]", "explore=1.5"], "explore must lie in [0, 1], got 1.5"),
        (["policies=[jsq]", "data_format=csv"], "unknown data_format 'csv'"),
    ],
)
def test_mistakes_at_collecting_are_one_sentence(words, said, tmp_path, capsys):
    assert collect.main([*SMALL, *words, f"out={tmp_path}"]) == USER_ERROR
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("data")
    words = ["env=routing", "workload.num_requests=500", "policies=[random,jsq]", "seeds=6", "explore=0.2"]
    assert collect.main([*words, f"out={out}"]) == 0
    return out


def test_the_best_episodes_are_those_of_the_better_policy(dataset):
    env = make_env("routing", **CASES["routing"])
    with pytest.raises(ValueError, match=r"the environment has .* collect it with the same cluster"):
        read_dataset(str(dataset), env_id("routing"), env.observation_space, env.action_space)
    env = gym.make("Serving/Routing-v1")
    named = [str(dataset), env_id("routing"), env.observation_space, env.action_space]
    best, jsq = read_dataset(*named, best_share=0.5), read_dataset(*named, behaviours=["jsq"])
    np.testing.assert_array_equal(best.actions, jsq.actions)
    assert 0.1 < jsq.explored.mean() < 0.3
    with pytest.raises(ValueError, match=r"agent\.behaviours=jsqs is not in .* episodes of jsq, random"):
        read_dataset(*named, behaviours=["jsqs"])


def two_episodes() -> Experience:
    return Experience(
        observations={},
        masks=np.ones((6, 2), bool),
        at=np.array([0, 1, 3, 4]),
        actions=np.zeros(4, np.int64),
        rewards=np.array([1.0, 2.0, 4.0, 8.0], np.float32),
        dt_s=np.array([2.0, 1.0, 4.0, 1.0], np.float32),
        over=np.array([False, True, False, True]),
        explored=np.zeros(4, bool),
        episodes=np.array([0, 0, 1, 1]),
    )


def test_returns_discount_by_elapsed_time_within_an_episode():
    data = two_episodes()
    np.testing.assert_allclose(data.returns(0.5, 2.0), [1.0 + 0.5 * 2.0, 2.0, 4.0 + 0.25 * 8.0, 8.0])


@pytest.mark.parametrize(
    ("steps", "rewards", "elapsed_s", "at", "over"),
    [
        (1, [1.0, 2.0, 4.0, 8.0], [2.0, 1.0, 4.0, 1.0], [1, 2, 4, 5], [False, True, False, True]),
        (2, [2.0, 2.0, 6.0, 8.0], [3.0, 1.0, 5.0, 1.0], [2, 2, 5, 5], [True, True, True, True]),
        (9, [2.0, 2.0, 6.0, 8.0], [3.0, 1.0, 5.0, 1.0], [2, 2, 5, 5], [True, True, True, True]),
    ],
)
def test_what_followed_within_some_decisions(steps, rewards, elapsed_s, at, over):
    found = two_episodes().ahead(steps, 0.5, 2.0)
    np.testing.assert_allclose(found.rewards, rewards)
    np.testing.assert_allclose(found.elapsed_s, elapsed_s)
    assert found.at.tolist() == at
    assert found.over.tolist() == over


@pytest.mark.parametrize("agent", ["offline_bc", "cql"])
def test_learns_from_a_heuristic_and_random_decisions_and_beats_random(agent, dataset, tmp_path):
    if agent == "cql":
        pytest.importorskip("torchrl")
    out = tmp_path / "run"
    words = ["env=routing", "workload.num_requests=500", f"agent={agent}", f"agent.dataset={dataset}"]
    words += ["agent.best_share=0.5", "agent.learning_rate=0.003"]
    training = ["total_steps=50000", "validations=1", "validation_seeds=1", "seeds=1", "baselines=[]"]
    assert train.main([*words, *training, f"out={out}"]) == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    learned = [row for row in rows if row["kind"] == "train"]
    assert learned[-1]["loss"] < learned[0]["loss"]
    last = out / "last"  # what the dataset alone has taught
    named = [*words[:2], f"policies=[random,{last}]", "seeds=4", "plots=false", "launcher.workers=1"]
    assert compare.main([*named, f"out={tmp_path / 'c'}"]) == 0
    found = json.loads((tmp_path / "c" / "comparison.json").read_text())
    returns = {name: each["metrics"]["return"]["iqm"] for name, each in found["policies"].items()}
    assert returns[str(last)] > 0.6 * returns["random"]  # both are negative
    assert found["probability_of_improvement"][f"{last}>random"] == 1.0


@pytest.mark.parametrize("agent", ["offline_bc", "cql"])
def test_a_stopped_training_goes_on(agent, dataset, tmp_path):
    if agent == "cql":
        pytest.importorskip("torchrl")
    words = ["env=routing", "workload.num_requests=500", f"agent={agent}", f"agent.dataset={dataset}"]
    common = ["validations=1", "validation_seeds=1", "seeds=1", "baselines=[]", "agent.batch_size=32"]
    assert train.main([*words, *common, "total_steps=3200", f"out={tmp_path / 'a'}"]) == 0
    assert train.main([f"resume={tmp_path / 'a'}", "total_steps=6400"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    steps = [row["steps"] for row in rows if row["kind"] == "train"]
    assert steps == [3200, 6400]
    settings = yaml.safe_load((tmp_path / "a" / "last" / "config.yaml").read_text())["agent"]
    assert settings["dataset"] == str(dataset)
    assert load_policy(tmp_path / "a").name == str(tmp_path / "a")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["agent=cql"], "agent=cql learns from a dataset: name the folder that runners.collect wrote"),
        (
            ["agent=offline_bc", "agent.dataset=nowhere"],
            "agent.dataset='nowhere' holds no dataset of Serving/DPTP",
        ),
        (
            ["agent=offline_bc", "agent.dataset=x", "agent.best_share=0"],
            "agent.best_share must lie in (0, 1], got 0",
        ),
    ],
)
def test_mistakes_at_training_are_one_sentence(words, said, tmp_path, capsys):
    assert train.main(["env=dp_tp", *words, "baselines=[]", f"out={tmp_path}"]) == USER_ERROR
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error


def test_cql_says_that_it_takes_one_number_a_decision(tmp_path, capsys):
    pytest.importorskip("torchrl")
    words = ["experiment=autoscaling_day", "env.episode_s=1800"]
    assert collect.main([*words, "policies=[random]", "seeds=1", f"out={tmp_path / 'd'}"]) == 0
    named = [*words, "agent=cql", f"agent.dataset={tmp_path / 'd'}", "baselines=[]", f"out={tmp_path / 't'}"]
    assert train.main(named) == USER_ERROR
    assert "agent=cql takes one number a decision" in capsys.readouterr().err
