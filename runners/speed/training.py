"""Speed of training: decisions a second, what is learned from them included."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from hydra import compose
from omegaconf import OmegaConf

from serving_gym.agents.learners.learner import Budget, Task, make_learner
from serving_gym.runners.configuration.schema import BenchConfig, register_command
from serving_gym.runners.configuration.train_config import TrainConfig, register_agents
from serving_gym.runners.configuration.typed import build
from serving_gym.runners.speed.measurement import Measurement

if TYPE_CHECKING:
    from serving_gym.agents.learners.learner import Learner

_LEARNERS = (("routing", "maskable_ppo"),)
_ROUNDS = 3


def training_steps(config: BenchConfig) -> Iterator[Measurement]:
    """MaskablePPO with the settings it ships with, `num_envs` episodes side by side, after a first round."""
    register_agents()
    register_command("train", TrainConfig)
    for env, agent in _LEARNERS:
        learners: list[Learner] = []

        def steps(env: str = env, agent: str = agent, learners: list[Learner] = learners) -> float:
            budget = Budget(10**9)
            if not learners:
                learners.append(_learner(env, agent, config.num_envs))
                learners[0].improve(budget)
                budget = Budget(10**9)
            begun = time.process_time()
            for _ in range(_ROUNDS):
                learners[0].improve(budget)
            return budget.steps / (time.process_time() - begun)

        params = {"env": env, "agent": agent, "batched": True, "num_envs": config.num_envs}
        yield Measurement("train.steps_per_s", "1/s", params, steps)


def _learner(env: str, agent: str, num_envs: int) -> Learner:
    """What `runners.train` would make."""
    values = compose("train", overrides=[f"env={env}", f"agent={agent}", "out=unused"])
    plain = cast(dict[str, Any], OmegaConf.to_container(values, resolve=True))
    config = build(TrainConfig, plain)
    return make_learner(config.agent_config, Task(env, config.environment.arguments, num_envs))
