"""Agents of Stable-Baselines3 and sb3-contrib, made from settings in plain names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, MaskablePPO
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from serving_gym.agents.config import (
    DQNConfig,
    PPOConfig,
    QRDQNConfig,
    RecurrentPPOConfig,
    ResidualConfig,
    SACConfig,
    SB3Config,
    TQCConfig,
)
from serving_gym.agents.environments.adapter import Adapter
from serving_gym.agents.environments.env_parts import weight_space, with_part
from serving_gym.agents.environments.spaces import ActionSpace, entries
from serving_gym.agents.learners.semi_mdp import (
    SemiMDPMaskableRolloutBuffer,
    SemiMDPRecurrentPPO,
    SemiMDPReplayBuffer,
    SemiMDPRolloutBuffer,
)
from serving_gym.agents.networks.networks import (
    BASELINE,
    MASK,
    DecisionNetwork,
    MaskedNetwork,
    ResidualNetwork,
)
from serving_gym.agents.policies.sb3_policies import (
    ActorCriticPolicy,
    DecidingQPolicy,
    DecidingQuantilePolicy,
    MaskableActorCriticPolicy,
    PooledObservation,
    RecurrentPolicy,
)

LOWEST_RATE = 0.05  # of the linear schedule, as a share of the first


def make_agent(
    config: SB3Config,
    adapter: Adapter,
    seen: tuple[spaces.Dict, ActionSpace],
    vec_env: VecEnv,
    interval_s: float = 1.0,
    progress: Callable[[], float] | None = None,
) -> BaseAlgorithm:
    """An untrained agent.

    Args:
        config: Its settings.
        adapter: Of the environment.
        seen: Observation and action space of the environment itself.
        vec_env: Where it learns.
        interval_s: The decision interval that `config.discount` is about, seconds.
        progress: Share of the training that is over, 0 to 1; None: as Stable-Baselines3 counts it.

    Raises:
        ValueError: there is no such agent here.
    """
    policy, arguments = _policy(config, adapter, *seen)
    common: dict[str, Any] = {
        "policy": policy,
        "env": vec_env,
        "learning_rate": _learning_rate(config, progress),
        "gamma": config.discount,
        "batch_size": getattr(config, "batch_size", None),
        "policy_kwargs": arguments,
        "seed": None,  # the learner's own: SB3 would give the environments seeds of its own
        "device": "cpu",
    }
    if isinstance(config, PPOConfig):
        return _make_ppo(config, common)
    replay = {
        "replay_buffer_class": SemiMDPReplayBuffer,
        "replay_buffer_kwargs": {"discount": config.discount, "interval_s": interval_s},
    }
    if isinstance(config, DQNConfig):
        return _make_dqn(config, progress, common | replay)
    if isinstance(config, SACConfig):
        return _make_sac(config, common | replay)
    raise ValueError(f"agent {config.name!r} is not one of Stable-Baselines3's")


def make_policy_network(
    config: SB3Config, adapter: Adapter, observation: spaces.Dict, action: ActionSpace
) -> Any:
    """An agent's policy of Stable-Baselines3 alone, for loading weights into."""
    policy, arguments = _policy(config, adapter, observation, action)
    if isinstance(policy, str):
        policy = (TQC if isinstance(config, TQCConfig) else SAC).policy_aliases[policy]
    shown = agent_spaces(config, adapter, observation, action)
    return policy(*shown, lambda _: config.learning_rate, **arguments)


def agent_spaces(
    config: SB3Config, adapter: Adapter, observation: spaces.Dict, action: ActionSpace
) -> tuple[spaces.Dict, ActionSpace | spaces.Box]:
    """Observation and action space of an agent in an environment."""
    if isinstance(config, SACConfig):
        return observation, weight_space(adapter, observation)
    if isinstance(config, RecurrentPPOConfig):
        return with_part(observation, MASK, sum(entries(action))), action
    if isinstance(config, ResidualConfig):
        return with_part(observation, BASELINE, sum(entries(action))), action
    return observation, action


def _policy(
    config: SB3Config, adapter: Adapter, observation: spaces.Dict, action: ActionSpace
) -> tuple[Any, dict[str, Any]]:
    """Class of an agent's policy, or Stable-Baselines3's name of it, and its arguments."""

    def make_network(outputs: int = 1, memory_size: int = 0) -> DecisionNetwork:
        return adapter.network(observation, action, config.network, outputs, memory_size)

    widths = list(config.network.hidden_widths)
    if isinstance(config, RecurrentPPOConfig):
        memory = config.memory_width
        return RecurrentPolicy, {
            "make_network": lambda: MaskedNetwork(make_network(memory_size=memory)),
            "net_arch": widths,
            "lstm_hidden_size": memory,
        }
    if isinstance(config, ResidualConfig):
        return MaskableActorCriticPolicy, {
            "make_network": lambda: ResidualNetwork(make_network(), config.confidence, config.bound),
            "net_arch": widths,
        }
    if isinstance(config, PPOConfig):
        policy = MaskableActorCriticPolicy if config.masked else ActorCriticPolicy
        return policy, {"make_network": make_network, "net_arch": widths}
    if isinstance(config, QRDQNConfig):
        number = config.num_quantiles
        return DecidingQuantilePolicy, {"make_network": lambda: make_network(number), "n_quantiles": number}
    if isinstance(config, DQNConfig):
        return DecidingQPolicy, {"make_network": make_network}
    arguments: dict[str, Any] = {
        "net_arch": widths,
        "features_extractor_class": PooledObservation,
        "features_extractor_kwargs": {"make_network": make_network},
    }
    if isinstance(config, TQCConfig):
        arguments["n_quantiles"] = config.num_quantiles
    return "MultiInputPolicy", arguments


def _make_ppo(config: PPOConfig, common: dict[str, Any]) -> BaseAlgorithm:
    arguments = {
        "n_steps": config.rollout_steps,
        "n_epochs": config.epochs,
        "gae_lambda": config.advantage_decay,
        "clip_range": config.clip_range,
        "ent_coef": config.entropy_weight,
        "vf_coef": config.value_weight,
        "max_grad_norm": config.max_gradient_norm,
        "target_kl": config.target_kl,
        "normalize_advantage": False,  # the buffer does
        **common,
    }
    buffer = {"group_size": config.group_size, "advantage_floor": config.advantage_floor}
    if isinstance(config, RecurrentPPOConfig):
        return SemiMDPRecurrentPPO(rollout_buffer_kwargs=buffer, **arguments)
    algorithm: Any = MaskablePPO if config.masked else PPO
    return algorithm(
        rollout_buffer_class=SemiMDPMaskableRolloutBuffer if config.masked else SemiMDPRolloutBuffer,
        rollout_buffer_kwargs=buffer,
        **arguments,
    )


def _make_dqn(
    config: DQNConfig, progress: Callable[[], float] | None, common: dict[str, Any]
) -> BaseAlgorithm:
    algorithm: Any = QRDQN if isinstance(config, QRDQNConfig) else DQN
    agent = algorithm(
        buffer_size=config.buffer_size,
        learning_starts=config.warm_up_steps,
        train_freq=config.train_every,
        gradient_steps=config.gradient_steps,
        target_update_interval=config.target_update_steps,
        exploration_fraction=config.exploration_share,
        exploration_final_eps=config.exploration_end,
        **common,
    )
    if progress is not None:
        schedule = agent.exploration_schedule
        agent.exploration_schedule = lambda _: schedule(1.0 - progress())
    return agent


def _make_sac(config: SACConfig, common: dict[str, Any]) -> BaseAlgorithm:
    arguments = {
        "buffer_size": config.buffer_size,
        "learning_starts": config.warm_up_steps,
        "train_freq": config.train_every,
        "gradient_steps": config.gradient_steps,
        "tau": config.target_rate,
        **common,
    }
    if isinstance(config, TQCConfig):
        return TQC(top_quantiles_to_drop_per_net=config.num_dropped, **arguments)
    return SAC(**arguments)


def _learning_rate(config: SB3Config, progress: Callable[[], float] | None) -> Callable[[float], float]:
    """Learning rate by the share of the training that remains."""
    if config.learning_rate_schedule == "constant":
        return lambda remaining: config.learning_rate
    return lambda remaining: (
        config.learning_rate * max(LOWEST_RATE, remaining if progress is None else 1.0 - progress())
    )
