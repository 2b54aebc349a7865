"""Learners of Stable-Baselines3's agents: one round is one rollout and its updates."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed

from serving_gym.agents.config import (
    DQNConfig,
    LagrangianConfig,
    PPOConfig,
    RecurrentPPOConfig,
    ResidualConfig,
    SACConfig,
    SB3Config,
)
from serving_gym.agents.environments.adapter import Adapter, Observation, adapter_of
from serving_gym.agents.environments.env_parts import Penalised, ShowsBaseline, ShowsMask, Weighted, weighed
from serving_gym.agents.environments.spaces import ActionSpace, entries, read_spaces
from serving_gym.agents.learners.factory import make_agent, make_policy_network
from serving_gym.agents.learners.learner import Budget, Learner, Task, build_agent_config
from serving_gym.agents.learners.sb3_vec_env import SB3VecEnv
from serving_gym.agents.learners.semi_mdp import ElapsedTimeCallback
from serving_gym.agents.learners.serial_env import SerialVectorEnv
from serving_gym.agents.learners.teacher import Teacher, make_teacher
from serving_gym.agents.policies.network_policy import NetworkPolicy, scores_of
from serving_gym.agents.policies.recurrent_policy import RecurrentNetworkPolicy
from serving_gym.agents.policies.residual_policy import BatchResidualPolicy, ResidualPolicy
from serving_gym.agents.policies.sb3_policies import network_in
from serving_gym.baselines.policy import BatchPolicy, Policy
from serving_gym.envs.registration import make_env, make_vector_env

WEIGHTS, OPTIMIZER, GENERATORS = "weights.pt", "optimizer.pt", "training.json"
_ENTROPY_WEIGHT = "log_entropy_weight"  # beside the optimizers
_OFF_POLICY_ROUND = 4096  # decisions
_SCALE_EPISODES = 3
_CALM = 5.0  # disturbances fade over the last fifth of the training
_LOGGED = {
    "train/approx_kl": "approx_kl",
    "train/clip_fraction": "clip_fraction",
    "train/entropy_loss": "entropy_loss",
    "train/explained_variance": "explained_variance",
    "train/loss": "loss",
    "train/actor_loss": "actor_loss",
    "train/critic_loss": "critic_loss",
    "train/ent_coef": "entropy_weight",
    "train/policy_gradient_loss": "policy_loss",
    "train/value_loss": "value_loss",
    "train/learning_rate": "learning_rate",
    "rollout/exploration_rate": "exploration_rate",
}


class SB3Learner(Learner):
    """One of the agents of Stable-Baselines3 and sb3-contrib.

    Args:
        config: Its settings.
        task: The training task.

    Raises:
        ValueError: the environment does not give what the agent needs.
    """

    def __init__(self, config: SB3Config, task: Task) -> None:
        self.config, self.task = config, task
        self._budget = Budget(config.total_steps)
        self.adapter = adapter_of(task.env)
        interval_s = self.adapter.interval_s(task.training_arguments)
        set_random_seed(task.seed)
        self._penalised: Penalised | None = None
        env, self.seen = self._environment()
        self.reward_scale = config.reward_scale or measure_reward_scale(config, task, self.adapter)
        self.env = SB3VecEnv(env, self.reward_scale, seed=task.seed, goes_on=self.adapter.goes_on)
        self.agent: BaseAlgorithm = make_agent(
            config,
            self.adapter,
            self.seen,
            self.env,
            interval_s=interval_s,
            progress=lambda: self._budget.progress,
        )
        self.agent.set_logger(Logger(folder=None, output_formats=[]))
        self._seed(0)
        self._callbacks: list[BaseCallback] = [_Counter(self)]
        if isinstance(config, PPOConfig):
            self._callbacks.append(ElapsedTimeCallback(interval_s))

    def _environment(self) -> tuple[VectorEnv[Any, Any, Any], tuple[spaces.Dict, ActionSpace]]:
        """The training environment, and the spaces of the unwrapped environment."""
        config, task = self.config, self.task
        arguments = self.adapter.training_arguments(config, task)
        if isinstance(config, ResidualConfig):
            teacher = Teacher(config.baseline, "baseline", task, self.adapter, arguments)
            return ShowsBaseline(teacher), _spaces_of(task.env, teacher.env)
        if isinstance(config, LagrangianConfig):
            serial = SerialVectorEnv(task.env, task.num_envs, arguments)
            self._penalised = Penalised(serial, config.multiplier)
            return self._penalised, _spaces_of(task.env, serial)
        env = make_vector_env(task.env, task.num_envs, **arguments)
        seen = _spaces_of(task.env, env)
        if isinstance(config, DQNConfig | SACConfig) and not isinstance(seen[1], spaces.Discrete):
            raise ValueError(f"agent={config.name} takes one number a decision, env {task.env!r} several")
        if isinstance(config, RecurrentPPOConfig):
            return ShowsMask(env), seen
        return (Weighted(env, self.adapter) if isinstance(config, SACConfig) else env), seen

    def _seed(self, steps: int) -> None:
        """Seeds of the next episodes, the same for the members of a group, and of the exploration; others later."""
        size = getattr(self.config, "group_size", 1)
        root = np.random.SeedSequence([self.task.seed, steps])
        self.agent.action_space.seed(int(root.spawn(1)[0].generate_state(1)[0]))
        seeds = root.generate_state(self.task.num_envs) >> 1
        self.env.set_seeds([int(seeds[i // size]) for i in range(self.task.num_envs)])

    def improve(self, budget: Budget) -> dict[str, float]:
        """One rollout of PPO, or as many decisions of DQN or SAC.

        Raises:
            ValueError: the training diverged.
        """
        self._budget = budget
        self.env.disturbance = self.config.disturbance * min(1.0, _CALM * (1.0 - budget.progress))
        rollout_steps = getattr(self.config, "rollout_steps", None)
        round_steps = (
            rollout_steps * self.task.num_envs
            if rollout_steps
            else min(_OFF_POLICY_ROUND, budget.total_steps)
        )
        with _unchecked_distributions():
            self.agent.learn(round_steps, callback=self._callbacks, reset_num_timesteps=False)
        self._check_finite()
        values = self.agent.logger.name_to_value
        figures = {name: float(values[key]) for key, name in _LOGGED.items() if key in values}
        episodes = [entry["r"] for entry in self.agent.ep_info_buffer or ()]
        if episodes:
            figures["episode_return"] = float(np.mean(episodes))
        return figures | self._reprice()

    def _check_finite(self) -> None:
        if not all(bool(torch.isfinite(weights).all()) for weights in self.agent.policy.parameters()):
            raise ValueError(
                f"the training of {self.config.name} diverged; try a learning rate below "
                f"agent.learning_rate={self.config.learning_rate:g}"
            )

    def _reprice(self) -> dict[str, float]:
        """Updates the price of SLO misses from finished episodes."""
        if self._penalised is None or not isinstance(self.config, LagrangianConfig):
            return {}
        shares = self._penalised.missed_shares
        excess = sum(share - self.config.missed_limit for share in shares)
        self._penalised.multiplier = max(
            0.0, self._penalised.multiplier + self.config.multiplier_rate * excess
        )
        figures = {"multiplier": self._penalised.multiplier}
        if shares:
            figures["missed_share"] = float(np.mean(shares))
        shares.clear()
        return figures

    def policy(self) -> Policy:
        """The present policy."""
        return make_sb3_policy(self.config, self.adapter, self.agent.policy, *self.seen, self.config.name)

    def save_policy(self, folder: Path) -> None:
        """Writes the weights."""
        torch.save(self.agent.policy.state_dict(), folder / WEIGHTS)

    def save_training(self, folder: Path) -> None:
        """Writes the optimizers and the random generators. Memories of decisions are not kept; they fill again."""
        optimizers: dict[str, Any] = {
            name: optimizer.state_dict() for name, optimizer in self._optimizers().items()
        }
        if isinstance(self.config, SACConfig):
            optimizers[_ENTROPY_WEIGHT] = self._log_entropy_weight.detach()
        torch.save(optimizers, folder / OPTIMIZER)
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (the generator SB3 uses)
        state = {
            "steps": self.agent.num_timesteps,
            "reward_scale": self.reward_scale,
            "multiplier": None if self._penalised is None else self._penalised.multiplier,
            "numpy": [kind, np.asarray(keys).tolist(), *rest],
            "python": random.getstate(),
            "torch": torch.get_rng_state().tolist(),
        }
        (folder / GENERATORS).write_text(json.dumps(state), encoding="utf-8")

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One, or those of actor, critic and entropy weight."""
        agent: Any = self.agent
        if not isinstance(self.config, SACConfig):
            return {"policy": agent.policy.optimizer}
        return {
            "actor": agent.policy.actor.optimizer,
            "critic": agent.policy.critic.optimizer,
            "entropy": agent.ent_coef_optimizer,
        }

    @property
    def _log_entropy_weight(self) -> torch.Tensor:
        """What SAC learns beside its policy."""
        agent: Any = self.agent
        return agent.log_ent_coef

    def restore(self, folder: Path) -> None:
        """Restores the training state; unfinished episodes start again, with other seeds."""
        self.agent.policy.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
        stored = torch.load(folder / OPTIMIZER, weights_only=True)
        for name, optimizer in self._optimizers().items():
            optimizer.load_state_dict(stored[name])
        if _ENTROPY_WEIGHT in stored:
            self._log_entropy_weight.data.copy_(stored[_ENTROPY_WEIGHT])
        state = json.loads((folder / GENERATORS).read_text(encoding="utf-8"))
        self.agent.num_timesteps = state["steps"]
        self.reward_scale = self.env.reward_scale = state["reward_scale"]
        if self._penalised is not None:
            self._penalised.multiplier = state["multiplier"]
        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
        self._seed(state["steps"])
        if isinstance(self.config, DQNConfig | SACConfig):
            self._fill_memory(self.config.warm_up_steps)

    def _fill_memory(self, warm_up_steps: int) -> None:
        """Learns from nothing until there are so many new decisions, the policy's own where it has learned before."""
        agent: Any = self.agent
        sample = agent._sample_action  # what Stable-Baselines3 has no public way to ask for
        agent._sample_action = lambda _, *rest: sample(warm_up_steps, *rest)
        agent.learning_starts = agent.num_timesteps + warm_up_steps


class _Counter(BaseCallback):
    """Counts steps in the budget, and passes masks to the adapter."""

    def __init__(self, learner: SB3Learner) -> None:
        super().__init__()
        self.learner = learner

    def _on_step(self) -> bool:
        learner = self.learner
        learner._budget.count(learner.task.num_envs)
        if learner.config.masked:
            learner.adapter.check_masks(learner.env.action_masks())
        return True


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Spares torch a look at every number that a distribution is made of: some 5 % of PPO's time."""
    kind = torch.distributions.Distribution
    before = kind._validate_args  # what torch has no public way to ask for
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


def measure_reward_scale(config: SB3Config, task: Task, adapter: Adapter) -> float:
    """One over the standard deviation of discounted returns of simple decisions, on a few training episodes."""
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
    """The policy of a checkpoint; see `agents.learners.learner.AgentEntry`."""
    adapter, settings = adapter_of(config["env"]["name"]), build_agent_config(config["agent"])
    observation, action = read_spaces(folder)
    policy = make_policy_network(settings, adapter, observation, action)
    policy.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
    return make_sb3_policy(settings, adapter, policy, observation, action, name)


def make_sb3_policy(
    config: SB3Config,
    adapter: Adapter,
    policy: Any,
    observation: spaces.Dict,
    action: ActionSpace,
    name: str,
) -> Policy:
    """What a policy of Stable-Baselines3 decides, without chance.

    Args:
        config: Settings of the agent.
        adapter: Of the environment.
        policy: Of Stable-Baselines3.
        observation: Observation space of the environment.
        action: Action space.
        name: Its name in results.
    """
    policy.set_training_mode(False)
    if isinstance(config, RecurrentPPOConfig):
        return RecurrentNetworkPolicy(policy, adapter, name, observation, action)
    if isinstance(config, SACConfig):
        scores = _weighed_by(policy, adapter, sum(entries(action)))
        return NetworkPolicy(scores, adapter, name, observation, action)
    scores = scores_of(network_in(policy))
    if isinstance(config, ResidualConfig):
        baseline = make_teacher(config.baseline, "baseline")
        kind = BatchResidualPolicy if isinstance(baseline, BatchPolicy) else ResidualPolicy
        return kind(baseline, scores, adapter, name, observation, action)
    return NetworkPolicy(scores, adapter, name, observation, action, config.masked)


def _weighed_by(policy: Any, adapter: Adapter, num_actions: int) -> Any:
    """Scores of actions by the weights that an actor sets."""

    def scores(observation: Observation) -> NDArray[np.float32]:
        with torch.no_grad():
            seen = {key: torch.as_tensor(value) for key, value in observation.items()}
            weights = policy.actor(seen, deterministic=True).numpy()
        return weighed(adapter, observation, weights, num_actions)

    return scores


def _spaces_of(env: str, batch: VectorEnv[Any, Any, Any]) -> tuple[spaces.Dict, ActionSpace]:
    observation, action = batch.single_observation_space, batch.single_action_space
    if not isinstance(observation, spaces.Dict) or not isinstance(action, ActionSpace):
        raise ValueError(f"env {env!r} must show a Dict and take a Discrete or MultiDiscrete to be learned")
    return observation, action
