"""Settings of the agents, in plain names; free of torch, so that the command line can read them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from envs.workload.registry import check_choice

SCHEDULES = ("constant", "linear")


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The network of an agent.

    Attributes:
        row_width: Width of the small network through which every engine is seen.
        place_width: Numbers kept of each engine in order; dp_tp only, routing knows no order.
        hidden_widths: Widths of the layers of actor and critic (of the Q network) behind it.
        stay_probability: Probability with which an untrained actor keeps the layout; MaskablePPO on dp_tp only.
    """

    row_width: int = 32
    place_width: int = 4
    hidden_widths: tuple[int, ...] = (64, 64)
    stay_probability: float = 0.9

    def __post_init__(self) -> None:
        for name in ("row_width", "place_width"):
            _check(f"network.{name}", getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for width in self.hidden_widths:
            _check("network.hidden_widths", width, width >= 1, "at least 1")
        _check("network.stay_probability", self.stay_probability, 0 < self.stay_probability < 1, "in (0, 1)")


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """What all agents have in common.

    Attributes:
        name: The agent: a name in `agents.learner.AGENTS`.
        total_steps: Decisions to train for, where the command line does not say.
        learning_rate: Of Adam.
    """

    name: str
    total_steps: int
    learning_rate: float

    def __post_init__(self) -> None:
        _check("agent.total_steps", self.total_steps, self.total_steps >= 1, "at least 1")
        _check("agent.learning_rate", self.learning_rate, self.learning_rate > 0, "positive")


@dataclass(frozen=True, kw_only=True)
class SB3Config(AgentConfig):
    """What the agents of Stable-Baselines3 have in common.

    Attributes:
        learning_rate_schedule: "constant", or "linear" down to a twentieth at the end.
        discount: On the reward of the next decision, one decision interval later; elapsed time counts. In routing the
            interval is the mean time between arrivals.
        reward_scale: Factor on the rewards that the agent learns from; None: one over the spread of discounted returns
            of plain decisions (the layout stays; requests follow an untuned score), measured on training episodes and
            then fixed.
        disturbance: Probability that a decision in training is replaced by a random possible one, falling to zero
            over the last fifth of the training.
        training_stride: Decision intervals between two decisions in training; afterwards the agent decides at every
            one. More of them make what a layout is worth stand out against what it costs to get there. dp_tp only: in
            routing every request asks for its decision.
        network: The network.
    """

    learning_rate: float = 1e-3
    learning_rate_schedule: str = "linear"
    discount: float = 0.99
    reward_scale: float | None = None
    disturbance: float = 0.1
    training_stride: float = 5.0
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @property
    def masked(self) -> bool:
        """Whether the agent chooses among the possible actions only."""
        return self.name == "maskable_ppo"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("agent.learning_rate_schedule", self.learning_rate_schedule, SCHEDULES)
        scale = self.reward_scale
        _check("agent.discount", self.discount, 0 < self.discount < 1, "in (0, 1)")
        _check("agent.reward_scale", scale, scale is None or scale > 0, "positive or null")
        _check("agent.disturbance", self.disturbance, 0 <= self.disturbance < 1, "in [0, 1)")
        _check("agent.training_stride", self.training_stride, self.training_stride >= 1, "at least 1")


@dataclass(frozen=True, kw_only=True)
class PPOConfig(SB3Config):
    """PPO and MaskablePPO (Schulman et al. 2017; Huang and Ontanon 2020).

    Attributes:
        rollout_steps: Decisions of each environment between two updates.
        batch_size: Decisions in a gradient step.
        epochs: Passes over a rollout.
        advantage_decay: Lambda of generalised advantage estimation, over one decision interval.
        clip_range: Of the probability ratio.
        entropy_weight: Of the entropy bonus.
        value_weight: Of the value loss.
        max_gradient_norm: Gradients are clipped there.
        target_kl: An update ends early beyond 1.5 times this divergence; None: never.
        group_size: Environments that live through the same episodes, so that what their advantages have in common can
            be put down to the arrivals; 1: every environment has episodes of its own.
        advantage_floor: Advantages are divided by this plus the size of the state's value, so that decisions under
            light load, where little is at stake, count beside those in a burst; None: they are left as they are.
    """

    name: str = "maskable_ppo"
    total_steps: int = 600_000
    rollout_steps: int = 64
    batch_size: int = 1024
    epochs: int = 6
    advantage_decay: float = 0.955
    clip_range: float = 0.2
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_gradient_norm: float = 0.5
    target_kl: float | None = 0.05
    group_size: int = 8
    advantage_floor: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        floor = self.advantage_floor
        _check("agent.advantage_floor", floor, floor is None or floor > 0, "positive or null")
        for name, least in (("rollout_steps", 1), ("batch_size", 2), ("epochs", 1), ("group_size", 1)):
            _check(f"agent.{name}", getattr(self, name), getattr(self, name) >= least, f"at least {least}")
        _check("agent.advantage_decay", self.advantage_decay, 0 <= self.advantage_decay <= 1, "in [0, 1]")
        for name in ("clip_range", "max_gradient_norm"):
            _check(f"agent.{name}", getattr(self, name), getattr(self, name) > 0, "positive")
        for name in ("entropy_weight", "value_weight"):
            _check(f"agent.{name}", getattr(self, name), getattr(self, name) >= 0, "at least 0")
        _check(
            "agent.target_kl",
            self.target_kl,
            self.target_kl is None or self.target_kl > 0,
            "positive or null",
        )


@dataclass(frozen=True, kw_only=True)
class DQNConfig(SB3Config):
    """DQN (Mnih et al. 2015). It knows no masks: an impossible action is tried, refused, counted and changes nothing.

    Attributes:
        buffer_size: Decisions remembered.
        warm_up_steps: Decisions taken at random before learning begins.
        batch_size: Decisions in a gradient step.
        train_every: Steps of the batched environment between updates.
        gradient_steps: Gradient steps of an update.
        target_update_steps: Decisions between copies of the network to the target network.
        exploration_share: Share of the training over which random actions become rarer.
        exploration_end: Share of random actions after that.
    """

    name: str = "dqn"
    total_steps: int = 300_000
    learning_rate: float = 5e-4
    buffer_size: int = 200_000
    warm_up_steps: int = 5_000
    batch_size: int = 256
    train_every: int = 4
    gradient_steps: int = 4
    target_update_steps: int = 8_000
    exploration_share: float = 0.4
    exploration_end: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("buffer_size", "batch_size", "train_every", "gradient_steps", "target_update_steps"):
            _check(f"agent.{name}", getattr(self, name), getattr(self, name) >= 1, "at least 1")
        _check("agent.warm_up_steps", self.warm_up_steps, self.warm_up_steps >= 0, "at least 0")
        for name in ("exploration_share", "exploration_end"):
            _check(f"agent.{name}", getattr(self, name), 0 <= getattr(self, name) <= 1, "in [0, 1]")


def build_agent_config(values: Mapping[str, Any]) -> SB3Config:
    """Settings of an agent of Stable-Baselines3 from plain values, as a checkpoint holds them.

    Raises:
        ValueError: a setting that the agent does not have, or a value that is not allowed.
    """
    config_class = DQNConfig if values["name"] == "dqn" else PPOConfig
    known = {entry.name for entry in fields(config_class)}
    for key in values:
        check_choice("agent setting", key, known)
    network = dict(values.get("network", {}))
    if "hidden_widths" in network:
        network["hidden_widths"] = tuple(network["hidden_widths"])
    return config_class(**{**values, "network": NetworkConfig(**network)})


def _check(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {allowed}, got {value}")
