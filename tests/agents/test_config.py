"""Settings refuse what makes no sense, by name; files and dataclasses agree."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from serving_gym.agents.checkpoint import plain
from serving_gym.agents.config import (
    ARSConfig,
    CMAESConfig,
    DQNConfig,
    ImitationConfig,
    LagrangianConfig,
    NetworkConfig,
    PPOConfig,
    ResidualConfig,
    SACConfig,
    TQCConfig,
)
from serving_gym.agents.learners.learner import (
    AGENTS,
    Budget,
    agent_config_class,
    agent_entry,
    build_agent_config,
)
from serving_gym.runners.configuration.policies import CONFIG_DIR


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PPOConfig(learning_rate=0.0), "learning_rate"),
        (lambda: PPOConfig(learning_rate_schedule="linar"), "linear"),
        (lambda: PPOConfig(discount=1.0), "discount"),
        (lambda: PPOConfig(disturbance=1.0), "disturbance"),
        (lambda: PPOConfig(batch_size=1), "batch_size"),
        (lambda: PPOConfig(advantage_decay=1.1), "advantage_decay"),
        (lambda: PPOConfig(target_kl=0.0), "target_kl"),
        (lambda: PPOConfig(advantage_floor=-1.0), "advantage_floor"),
        (lambda: DQNConfig(exploration_end=2.0), "exploration_end"),
        (lambda: NetworkConfig(stay_probability=1.0), "stay_probability"),
        (lambda: build_agent_config({"name": "ppo", "epoch": 3}), "epochs"),
        (lambda: ResidualConfig(bound=2.0), "above half of agent.confidence, 2"),
        (lambda: LagrangianConfig(missed_limit=1.0), "missed_limit"),
        (lambda: SACConfig(target_rate=0.0), "target_rate"),
        (lambda: SACConfig(disturbance=0.1), "disturbance must be 0 for agent=sac"),
        (lambda: TQCConfig(num_quantiles=5, num_dropped=5), "num_dropped must be between 0 and 4"),
        (lambda: ARSConfig(kept_directions=9), "kept_directions must be between 1 and agent.directions, 8"),
        (lambda: CMAESConfig(population=3), "population"),
        (lambda: CMAESConfig(heuristic={"name": "jsq"}), "jsq declares no constants"),
        (lambda: CMAESConfig(heuristic={"name": "linear_score"}), "must give in_flight"),
        (lambda: ImitationConfig(iterations=2), "iterations must be 1 for agent=bc"),
        (lambda: build_agent_config({"name": "qr_dqn", "quantiles": 3}), "num_quantiles"),
        (lambda: agent_entry("maskable_pp0"), "maskable_ppo"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("name", sorted(set(AGENTS) - {"api"}))
def test_files_give_every_setting(name):
    values = yaml.safe_load((CONFIG_DIR / "agent" / f"{name}.yaml").read_text())
    values.pop("defaults")
    assert set(values) == {entry.name for entry in dataclasses.fields(agent_config_class(name))}
    config = build_agent_config(values)
    assert config.name == name
    assert plain(config) == values


def test_a_budget_is_used_up_by_steps_or_by_time():
    heard = []
    budget = Budget(100, on_progress=heard.append)
    budget.count(40)
    assert heard == [0.4]
    assert not budget.over
    budget.count(60)
    assert budget.over
    assert Budget(100, max_minutes=1.0, spent_s=60.0).over
    assert Budget(100, max_minutes=1.0, spent_s=30.0).progress == pytest.approx(0.5, abs=0.01)
