"""Searches over parameters that begin with those of a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from serving_gym.agents.checkpoint import load_policy, write_description
from serving_gym.agents.config import ARSConfig, CMAESConfig, NetworkConfig, SearchConfig
from serving_gym.agents.learners.learner import Budget
from serving_gym.agents.learners.search_learner import PARAMETERS, SearchLearner
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import policy_config
from serving_gym.runners.configuration.train_config import TrainConfig, register_agents
from tests.defaults import Task
from tests.environments.autoscaling.samples import ONE

CHAT = {"workload": WorkloadSpec(name="azure_conv_fitted", num_requests=200, rate_scale=10.0)}
PLACES = {"routing": CHAT, "autoscaling": ONE}
WIDE = NetworkConfig(row_width=4, hidden_widths=(12,))
CONFIGS = {
    "ars": ARSConfig(episodes=1, directions=2, kept_directions=1),
    "cma_es": CMAESConfig(episodes=1, population=4),
}


def checkpoint(folder: Path, config: SearchConfig, env: str = "routing") -> SearchLearner:
    """Writes what a search has found after a round."""
    learner = SearchLearner(config, Task(env, PLACES[env], seed=1))
    learner.improve(Budget(10_000))
    said = {"agent": config, "env": {"name": env}, "workload": {"name": "short"}}
    space = learner.stage.scalar
    folder.mkdir()
    write_description(folder, said, space.observation_space, space.action_space, {})
    learner.save_policy(folder)
    return learner


def beginning_with(folder: Path, config: SearchConfig, env: str = "routing") -> SearchLearner:
    start = {"name": "checkpoint", "path": str(folder)}
    return SearchLearner(dataclasses.replace(config, start=start), Task(env, PLACES[env]))


@pytest.mark.parametrize("found_by", CONFIGS)
@pytest.mark.parametrize("agent", CONFIGS)
def test_a_search_begins_with_what_another_has_found(agent: str, found_by: str, tmp_path: Path) -> None:
    found = checkpoint(tmp_path / "found", CONFIGS[found_by]).search.mean
    learner = beginning_with(tmp_path / "found", CONFIGS[agent])
    np.testing.assert_array_equal(learner.search.mean, found)
    np.testing.assert_array_equal(learner.candidates.start, found)
    assert not np.array_equal(found, SearchLearner(CONFIGS[agent], Task("routing", CHAT)).search.mean)


def test_shares_are_of_what_it_begins_with(tmp_path: Path) -> None:
    found = checkpoint(tmp_path / "found", CONFIGS["cma_es"])
    learner = beginning_with(tmp_path / "found", dataclasses.replace(CONFIGS["cma_es"], relative=True))
    usual = found.stage.returns(found.policy(), [7])
    returns = np.array([usual, 1.5 * usual, 0.5 * usual])
    np.testing.assert_allclose(learner._counted(returns, [7]), returns / np.abs(usual), rtol=1e-6)


def test_what_it_leaves_does_not_need_what_it_began_with(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    checkpoint(first, CONFIGS["ars"])
    config = dataclasses.replace(CONFIGS["ars"], start={"name": "checkpoint", "path": str(first)})
    learner = checkpoint(second, config)
    shutil.rmtree(first)
    seeds = [3]
    kept = learner.stage.returns(learner.policy(), seeds)
    np.testing.assert_array_equal(learner.stage.returns(load_policy(second), seeds), kept)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "wide", dataclasses.replace(CONFIGS["ars"], network=WIDE))
    with pytest.raises(ValueError, match=r"agent\.start must have \d+ parameters, .*wide' has \d+"):
        beginning_with(tmp_path / "wide", CONFIGS["ars"])
    with pytest.raises(
        ValueError, match=r"agent\.start must be of env=autoscaling, .*wide' is of env=routing"
    ):
        beginning_with(tmp_path / "wide", CONFIGS["ars"], "autoscaling")
    with pytest.raises(ValueError, match=r"ars or cma_es found; 'zoo/dp_tp' is of agent="):
        beginning_with(Path("zoo/dp_tp"), CONFIGS["ars"])
    constants = policy_config("load_threshold")
    with pytest.raises(ValueError, match=r"agent\.start must be null where agent\.heuristic"):
        CMAESConfig(heuristic=constants, start={"name": "checkpoint", "path": "zoo/autoscaling"})
    with pytest.raises(
        ValueError, match=r"agent\.start must be a checkpoint of agent=ars, or null, got 'jsq'"
    ):
        ARSConfig(start={"name": "jsq", "params": {}})


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "old", CONFIGS["ars"])
    (tmp_path / "old" / PARAMETERS).write_text(json.dumps({"parameters": [0.5, 0.5]}))
    with pytest.raises(ValueError, match="has 2 parameters, its network"):
        load_policy(tmp_path / "old")


def test_the_command_line_names_it() -> None:
    register_agents()
    words = ("env=autoscaling", "agent=cma_es", "agent.start=zoo/autoscaling", "out=unused")
    start = composed("train", TrainConfig, words).agent_config.start
    assert start == {"name": "checkpoint", "path": "zoo/autoscaling"}


@pytest.mark.parametrize("agent", sorted(CONFIGS))
def test_a_search_that_was_saved_goes_on_as_it_would_have(agent: str, tmp_path: Path) -> None:
    whole, saved = (SearchLearner(CONFIGS[agent], Task("routing", CHAT, seed=1)) for _ in range(2))
    for round_ in range(3):
        whole.improve(Budget(1.0))
        if round_ < 2:
            saved.improve(Budget(1.0))
    saved.save_training(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"search.json"}
    copy = SearchLearner(CONFIGS[agent], Task("routing", CHAT, seed=1))
    copy.restore(tmp_path)
    assert np.array_equal(copy.search.mean, saved.search.mean)
    copy.improve(Budget(1.0))
    assert np.array_equal(copy.search.mean, whole.search.mean)


def test_a_pickled_search_is_not_read(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self):
            return (tmp_path.rmdir, ())

    (tmp_path / "search.pkl").write_bytes(pickle.dumps(Harm()))
    learner = SearchLearner(CONFIGS["ars"], Task("routing", CHAT))
    with pytest.raises(ValueError, match="is a pickle of an earlier version, which is not read"):
        learner.restore(tmp_path)
