"""Agents of Stable-Baselines3, made from settings in plain names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from agents.adapter import Adapter
from agents.config import DQNConfig, PPOConfig, SB3Config
from agents.semi_mdp import SemiMDPMaskableRolloutBuffer, SemiMDPReplayBuffer, SemiMDPRolloutBuffer

LOWEST_RATE = 0.05  # of the linear schedule, as a share of the first


def make_agent(
    config: SB3Config,
    adapter: Adapter,
    vec_env: VecEnv,
    seed: int,
    tensorboard_dir: str | None = None,
    interval_s: float = 1.0,
    progress: Callable[[], float] | None = None,
) -> BaseAlgorithm:
    """An untrained agent.

    Args:
        config: Its settings.
        adapter: Of the environment.
        vec_env: Where it learns.
        seed: Of its weights and its exploration.
        tensorboard_dir: Where Stable-Baselines3 itself writes events; None: nowhere.
        interval_s: The decision interval that `config.discount` is about, seconds.
        progress: Share of the training that is over, 0 to 1; None: as Stable-Baselines3 counts it.

    Raises:
        ValueError: there is no such agent here.
    """
    network, arguments = adapter.sb3_network(config)
    common: dict[str, Any] = {
        "policy": network,
        "env": vec_env,
        "learning_rate": _learning_rate(config, progress),
        "gamma": config.discount,
        "batch_size": getattr(config, "batch_size", None),
        "policy_kwargs": arguments,
        "tensorboard_log": tensorboard_dir,
        "seed": None,  # given below: SB3 would give the environments seeds of its own
        "device": "cpu",
    }
    if isinstance(config, DQNConfig):
        agent: BaseAlgorithm = _make_dqn(config, interval_s, progress, common)
    elif isinstance(config, PPOConfig):
        agent = _make_ppo(config, common)
    else:
        raise ValueError(f"agent {config.name!r} is not one of Stable-Baselines3's")
    return agent


def make_network(
    config: SB3Config, adapter: Adapter, observation: spaces.Dict, action: spaces.Discrete
) -> Any:
    """An agent's policy network alone, for loading weights into."""
    classes: dict[str, Any] = {"maskable_ppo": MaskablePPO, "ppo": PPO, "dqn": DQN}
    named, arguments = adapter.sb3_network(config)
    policy_class = classes[config.name].policy_aliases[named] if isinstance(named, str) else named
    return policy_class(observation, action, lambda _: config.learning_rate, **arguments)


def _make_ppo(config: PPOConfig, common: dict[str, Any]) -> BaseAlgorithm:
    algorithm: Any = MaskablePPO if config.masked else PPO
    return algorithm(
        n_steps=config.rollout_steps,
        n_epochs=config.epochs,
        gae_lambda=config.advantage_decay,
        clip_range=config.clip_range,
        ent_coef=config.entropy_weight,
        vf_coef=config.value_weight,
        max_grad_norm=config.max_gradient_norm,
        target_kl=config.target_kl,
        normalize_advantage=False,  # the buffer does
        rollout_buffer_class=SemiMDPMaskableRolloutBuffer if config.masked else SemiMDPRolloutBuffer,
        rollout_buffer_kwargs={"group_size": config.group_size, "advantage_floor": config.advantage_floor},
        **common,
    )


def _make_dqn(
    config: DQNConfig, interval_s: float, progress: Callable[[], float] | None, common: dict[str, Any]
) -> DQN:
    agent = DQN(
        buffer_size=config.buffer_size,
        learning_starts=config.warm_up_steps,
        train_freq=config.train_every,
        gradient_steps=config.gradient_steps,
        target_update_interval=config.target_update_steps,
        exploration_fraction=config.exploration_share,
        exploration_final_eps=config.exploration_end,
        replay_buffer_class=SemiMDPReplayBuffer,
        replay_buffer_kwargs={"discount": config.discount, "interval_s": interval_s},
        **common,
    )
    if progress is not None:
        schedule = agent.exploration_schedule
        agent.exploration_schedule = lambda _: schedule(1.0 - progress())
    return agent


def _learning_rate(config: SB3Config, progress: Callable[[], float] | None) -> Callable[[float], float]:
    """Learning rate by the share of the training that remains."""
    if config.learning_rate_schedule == "constant":
        return lambda remaining: config.learning_rate
    return lambda remaining: (
        config.learning_rate * max(LOWEST_RATE, remaining if progress is None else 1.0 - progress())
    )
