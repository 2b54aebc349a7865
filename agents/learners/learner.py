"""Interface of learners to `runners.train`, and the registry of agents.

A learner of one's own is a class that extends `Learner`, a dataclass of its settings that extends
`agents.config.AgentConfig`, an entry in `AGENTS`, and a file in `configs/agent`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from serving_gym.calibration.lookup import check_choice, load_attribute

if TYPE_CHECKING:
    from serving_gym.agents.config import AgentConfig
    from serving_gym.baselines.policy import Policy


@dataclass(frozen=True)
class Task:
    """A training task.

    Attributes:
        env: Name of the environment.
        arguments: Its keyword arguments, typed; episodes are drawn from the training split.
        num_envs: Episodes side by side.
        seed: Of everything random.
        also: Keyword arguments of the same environment elsewhere, where as many training episodes are played as here;
            for learners that can.
        also_words: What the command line calls each of these, for messages; none: their number.
    """

    env: str
    arguments: Mapping[str, Any]
    num_envs: int = 32
    seed: int = 0
    also: tuple[Mapping[str, Any], ...] = ()
    also_words: tuple[str, ...] = ()

    @property
    def training_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `make_env` and `make_vector_env` for training."""
        return {**self.arguments, "split": "train"}

    @property
    def places(self) -> list[dict[str, Any]]:
        """Keyword arguments of all training environments."""
        return [{**arguments, "split": "train"} for arguments in (self.arguments, *self.also)]


@dataclass
class Budget:
    """How long to train, in decisions or in minutes, whichever is used up first.

    Attributes:
        total_steps: Decisions.
        max_minutes: Minutes; None: no limit.
        steps: Decisions taken so far; learners count them up.
        spent_s: Time that earlier, interrupted runs took, seconds.
        on_progress: Hears the share that is used up, whenever `count` is called.
    """

    total_steps: int
    max_minutes: float | None = None
    steps: int = 0
    spent_s: float = 0.0
    on_progress: Callable[[float], None] | None = None
    started_s: float = field(default_factory=time.monotonic)

    def count(self, steps: int) -> None:
        """Adds decisions taken."""
        self.steps += steps
        if self.on_progress:
            self.on_progress(self.progress)

    @property
    def elapsed_s(self) -> float:
        """Time spent, including earlier runs, seconds."""
        return self.spent_s + time.monotonic() - self.started_s

    @property
    def progress(self) -> float:
        """Share of the budget used, 0 to 1."""
        by_time = 0.0 if self.max_minutes is None else self.elapsed_s / (60.0 * self.max_minutes)
        return min(1.0, max(self.steps / self.total_steps, by_time))

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.progress >= 1.0


class Learner(Protocol):
    """Learns a policy, round by round.

    Args of every learner's class: its config, the `Task`.
    """

    def improve(self, budget: Budget) -> dict[str, float]:
        """One round: gathers experience and learns from it, telling `budget.count`. Returns figures worth logging."""
        ...

    def finish(self, budget: Budget) -> dict[str, float]:
        """Learns from remaining data after the budget is used up.

        Returns:
            Figures worth logging; none where nothing was left to learn from, as where every round learns from its own.
        """
        return {}

    def policy(self) -> Policy:
        """The present policy, without exploration."""
        ...

    def save_policy(self, folder: Path) -> None:
        """Writes the files of the agent's loader."""
        ...

    def save_training(self, folder: Path) -> None:
        """Writes the additional state to resume training (optimizer, random generators)."""
        ...

    def restore(self, folder: Path) -> None:
        """Reads the files of the two methods above."""
        ...


@dataclass(frozen=True)
class AgentEntry:
    """Classes and functions of an agent, each as "module:name".

    Attributes:
        config: Dataclass of its settings.
        learner: Class of its learner.
        loader: Function from the folder of a checkpoint, its settings and the policy's name to the policy.
    """

    config: str
    learner: str
    loader: str


_SB3 = ("agents.learners.sb3_learner:SB3Learner", "agents.learners.sb3_learner:load")
_SEARCH = ("agents.learners.search_learner:SearchLearner", "agents.learners.search_learner:load")
_IMITATION = ("agents.learners.imitation:ImitationLearner", "agents.learners.imitation:load")
AGENTS: dict[str, AgentEntry] = {
    "maskable_ppo": AgentEntry("agents.config:PPOConfig", *_SB3),
    "ppo": AgentEntry("agents.config:PPOConfig", *_SB3),
    "recurrent_ppo": AgentEntry("agents.config:RecurrentPPOConfig", *_SB3),
    "ppo_lagrangian": AgentEntry("agents.config:LagrangianConfig", *_SB3),
    "residual": AgentEntry("agents.config:ResidualConfig", *_SB3),
    "dqn": AgentEntry("agents.config:DQNConfig", *_SB3),
    "qr_dqn": AgentEntry("agents.config:QRDQNConfig", *_SB3),
    "sac": AgentEntry("agents.config:SACConfig", *_SB3),
    "tqc": AgentEntry("agents.config:TQCConfig", *_SB3),
    "ars": AgentEntry("agents.config:ARSConfig", *_SEARCH),
    "cma_es": AgentEntry("agents.config:CMAESConfig", *_SEARCH),
    "bc": AgentEntry("agents.config:ImitationConfig", *_IMITATION),
    "dagger": AgentEntry("agents.config:DAggerConfig", *_IMITATION),
    "offline_bc": AgentEntry(
        "agents.learners.offline.config:OfflineBCConfig",
        "agents.learners.offline.learner:CloningLearner",
        "agents.learners.imitation:load",
    ),
    "cql": AgentEntry(
        "agents.learners.offline.config:CQLConfig",
        "agents.learners.offline.cql:CQLLearner",
        "agents.learners.imitation:load",
    ),
    "api": AgentEntry(
        "agents.learners.api.config:APIConfig",
        "agents.learners.api.learner:APILearner",
        "agents.learners.api.learner:load",
    ),
    "portfolio": AgentEntry(
        "agents.learners.portfolio.config:PortfolioConfig",
        "agents.learners.portfolio.learner:PortfolioLearner",
        "agents.learners.portfolio.learner:load",
    ),
    "reuse": AgentEntry(
        "agents.learners.reuse.config:ReuseConfig",
        "agents.learners.reuse.learner:ReuseLearner",
        "agents.learners.reuse.learner:load",
    ),
}


def agent_entry(name: str) -> AgentEntry:
    """An agent by name.

    Raises:
        ValueError: there is none of that name; names the nearest.
    """
    check_choice("agent", name, AGENTS)
    return AGENTS[name]


def agent_config_class(name: str) -> type[AgentConfig]:
    """The dataclass of an agent's settings."""
    config: type[AgentConfig] = load_attribute(agent_entry(name).config)
    return config


def build_agent_config(values: Mapping[str, Any]) -> Any:
    """Settings of an agent from the plain values of a checkpoint.

    Raises:
        ValueError: a setting that the agent does not have, or a value that is not allowed.
    """
    from serving_gym.agents.config import NetworkConfig

    config_class = agent_config_class(values["name"])
    known = [entry.name for entry in fields(config_class)]
    for key in values:
        check_choice("agent setting", key, known)
    built = dict(values)
    if "network" in built:
        network = dict(built["network"])
        network["hidden_widths"] = tuple(network.get("hidden_widths", NetworkConfig().hidden_widths))
        built["network"] = NetworkConfig(**network)
    return config_class(**built)


def make_learner(config: AgentConfig, task: Task) -> Learner:
    """The learner of an agent."""
    learner: Learner = load_attribute(agent_entry(config.name).learner)(config, task)
    return learner
