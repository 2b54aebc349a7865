"""Stable-Baselines3's agents as learners: one round is one rollout and what is learned from it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed

from agents.adapter import Adapter, adapter_of
from agents.config import PPOConfig, SB3Config, build_agent_config
from agents.factory import make_agent, make_network
from agents.learner import Budget, Task
from agents.sb3_vec_env import SB3VecEnv
from agents.semi_mdp import ElapsedTimeCallback
from agents.spaces import read_spaces
from baselines.policy import Policy
from envs.registration import make_env, make_vector_env

WEIGHTS, OPTIMIZER, GENERATORS = "weights.pt", "optimizer.pt", "training.json"
_DQN_ROUND = 4096  # decisions
_SCALE_EPISODES = 3
_CALM = 5.0  # disturbances fade over the last fifth of the training
_LOGGED = {
    "train/approx_kl": "approx_kl",
    "train/clip_fraction": "clip_fraction",
    "train/entropy_loss": "entropy_loss",
    "train/explained_variance": "explained_variance",
    "train/loss": "loss",
    "train/policy_gradient_loss": "policy_loss",
    "train/value_loss": "value_loss",
    "train/learning_rate": "learning_rate",
    "rollout/exploration_rate": "exploration_rate",
}


class SB3Learner:
    """PPO, MaskablePPO or DQN.

    Args:
        config: Its settings.
        task: What is to be learned.
    """

    def __init__(self, config: SB3Config, task: Task) -> None:
        self.config, self.task = config, task
        self._budget = Budget(config.total_steps)
        self.adapter = adapter_of(task.env)
        interval_s = self.adapter.interval_s(task.training_arguments)
        env = make_vector_env(task.env, task.num_envs, **self.adapter.training_arguments(config, task))
        self.reward_scale = config.reward_scale or measure_reward_scale(config, task, self.adapter)
        self.env = SB3VecEnv(env, self.reward_scale, seed=task.seed)
        set_random_seed(task.seed)
        self.agent: BaseAlgorithm = make_agent(
            config,
            self.adapter,
            self.env,
            task.seed,
            interval_s=interval_s,
            progress=lambda: self._budget.progress,
        )
        self.agent.set_logger(Logger(folder=None, output_formats=[]))
        self._seed_environments(0)
        self._callbacks: list[BaseCallback] = [_Counter(self)]
        if isinstance(config, PPOConfig):
            self._callbacks.append(ElapsedTimeCallback(interval_s))

    def _seed_environments(self, steps: int) -> None:
        """Seeds of the next episodes, the same for the members of a group; later starts get other episodes."""
        size = getattr(self.config, "group_size", 1)
        root = np.random.SeedSequence([self.task.seed, steps])
        seeds = root.generate_state(self.task.num_envs) >> 1
        self.env.set_seeds([int(seeds[i // size]) for i in range(self.task.num_envs)])

    def improve(self, budget: Budget) -> dict[str, float]:
        """One rollout of PPO, or as many decisions of DQN."""
        self._budget = budget
        self.env.disturbance = self.config.disturbance * min(1.0, _CALM * (1.0 - budget.progress))
        rollout_steps = getattr(self.config, "rollout_steps", None)
        round_steps = (
            rollout_steps * self.task.num_envs if rollout_steps else min(_DQN_ROUND, budget.total_steps)
        )
        self.agent.learn(round_steps, callback=self._callbacks, reset_num_timesteps=False)
        values = self.agent.logger.name_to_value
        figures = {name: float(values[key]) for key, name in _LOGGED.items() if key in values}
        episodes = [entry["r"] for entry in self.agent.ep_info_buffer or ()]
        if episodes:
            figures["episode_return"] = float(np.mean(episodes))
        return figures

    def policy(self) -> Policy:
        """The policy as it is now; it changes when learning goes on."""
        observation, action = self.agent.observation_space, self.agent.action_space
        assert isinstance(observation, spaces.Dict)
        assert isinstance(action, spaces.Discrete)
        return self.adapter.sb3_policy(self.config, self.agent.policy, observation, action, self.config.name)

    def save_policy(self, folder: Path) -> None:
        """Writes the weights."""
        torch.save(self.agent.policy.state_dict(), folder / WEIGHTS)

    def save_training(self, folder: Path) -> None:
        """Writes the optimizer and the random generators. DQN's memory is not kept; it fills again."""
        torch.save(self.agent.policy.optimizer.state_dict(), folder / OPTIMIZER)
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (the generator SB3 uses)
        state = {
            "steps": self.agent.num_timesteps,
            "reward_scale": self.reward_scale,
            "numpy": [kind, np.asarray(keys).tolist(), *rest],
            "python": random.getstate(),
            "torch": torch.get_rng_state().tolist(),
        }
        (folder / GENERATORS).write_text(json.dumps(state), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Goes on from there; episodes that were being played begin anew, with other seeds."""
        self.agent.policy.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
        self.agent.policy.optimizer.load_state_dict(torch.load(folder / OPTIMIZER, weights_only=True))
        state = json.loads((folder / GENERATORS).read_text(encoding="utf-8"))
        self.agent.num_timesteps = state["steps"]
        self.reward_scale = self.env.reward_scale = state["reward_scale"]
        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
        self._seed_environments(state["steps"])


class _Counter(BaseCallback):
    """Tells the budget of every step."""

    def __init__(self, learner: SB3Learner) -> None:
        super().__init__()
        self.learner = learner

    def _on_step(self) -> bool:
        self.learner._budget.count(self.learner.task.num_envs)
        return True


def measure_reward_scale(config: SB3Config, task: Task, adapter: Adapter) -> float:
    """One over the spread of discounted returns of plain decisions, on a few training episodes."""
    env: Any = make_env(task.env, **task.training_arguments)
    interval_s = adapter.interval_s(task.training_arguments)
    samples = []
    for seed in range(_SCALE_EPISODES):
        observation, _ = env.reset(seed=seed)
        rewards, discounts, done = [], [], False
        while not done:
            action = adapter.plain_action(observation, env.state)
            observation, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
            discounts.append(config.discount ** (info["dt"] / interval_s))
            done = terminated or truncated
        returns = np.zeros(len(rewards) + 1)
        for i in reversed(range(len(rewards))):
            returns[i] = rewards[i] + discounts[i] * returns[i + 1]
        samples.append(returns[:-1])
    return 1.0 / max(float(np.concatenate(samples).std()), 1e-6)


def load(folder: Path, config: Mapping[str, Any], name: str) -> Policy:
    """The policy of a checkpoint.

    Args:
        folder: Of the checkpoint.
        config: Its settings.
        name: What the policy is called.
    """
    adapter, settings = adapter_of(config["env"]["name"]), build_agent_config(config["agent"])
    observation, action = read_spaces(folder)
    network = make_network(settings, adapter, observation, action)
    network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
    return adapter.sb3_policy(settings, network, observation, action, name)
