"""Settings of the agents, in plain names; free of torch, so that the command line can read them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving_gym.baselines.policy import Tunable
from serving_gym.baselines.registry import policy_tunables
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.calibration.lookup import check_choice

SCHEDULES = ("constant", "linear")
CHECKPOINT = "checkpoint"  # what a setting that names a policy has as its name where that is a checkpoint


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The network of an agent.

    Attributes:
        row_width: Width of the small network through which every engine is seen.
        place_width: Numbers kept of each engine in order, where actions are not rows of the observation (dp_tp).
        hidden_widths: Widths of the layers of actor and critic (of the Q network) behind it.
        stay_probability: Probability with which an untrained actor keeps the layout; dp_tp only.
    """

    row_width: int = 32
    place_width: int = 4
    hidden_widths: tuple[int, ...] = (64, 64)
    stay_probability: float = 0.9

    def __post_init__(self) -> None:
        check_at_least(self, 1, "row_width", "place_width", prefix="network.")
        _check(
            "network.hidden_widths", self.hidden_widths, len(self.hidden_widths) >= 1, "at least one width"
        )
        for width in self.hidden_widths:
            _check("network.hidden_widths", width, width >= 1, "at least 1")
        check_within(self, "(0, 1)", "stay_probability", prefix="network.")


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """What all agents have in common.

    Attributes:
        name: The agent: a name in `agents.learners.learner.AGENTS`.
        total_steps: Decisions to train for, where the command line does not say.
        learning_rate: Of Adam.
    """

    name: str
    total_steps: int
    learning_rate: float

    def __post_init__(self) -> None:
        check_at_least(self, 1, "total_steps", prefix="agent.")
        check_positive(self, "learning_rate", prefix="agent.")

    def places(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Keyword arguments of the environments between which validation episodes are shared out: one, as it is.

        Args:
            arguments: The environment's keyword arguments.
        """
        return [dict(arguments)]


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
        return self.name not in ("ppo", "dqn", "qr_dqn")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("agent.learning_rate_schedule", self.learning_rate_schedule, SCHEDULES)
        check_within(self, "(0, 1)", "discount", prefix="agent.")
        check_positive(self, "reward_scale", prefix="agent.")
        check_within(self, "[0, 1)", "disturbance", prefix="agent.")
        check_at_least(self, 1, "training_stride", prefix="agent.")


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
        check_at_least(self, 1, "rollout_steps", "epochs", "group_size", prefix="agent.")
        check_at_least(self, 2, "batch_size", prefix="agent.")
        check_within(self, "[0, 1]", "advantage_decay", prefix="agent.")
        check_positive(
            self, "advantage_floor", "clip_range", "max_gradient_norm", "target_kl", prefix="agent."
        )
        check_not_negative(self, "entropy_weight", "value_weight", prefix="agent.")


@dataclass(frozen=True, kw_only=True)
class RecurrentPPOConfig(PPOConfig):
    """PPO with a memory (an LSTM); the possible actions are shown to the policy, which gives the others no probability.

    Attributes:
        memory_width: Width of the LSTMs of actor and critic.
    """

    name: str = "recurrent_ppo"
    memory_width: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "memory_width", prefix="agent.")


@dataclass(frozen=True, kw_only=True)
class ResidualConfig(PPOConfig):
    """MaskablePPO over a baseline, which it overrules where its bounded corrections say so.

    Kin: residual policy learning (Silver et al. 2018; Johannink et al. 2019), there for continuous actions. Here the
    logit of the baseline's choice is `confidence`, and the network adds a correction of at most `bound` to each.

    Attributes:
        baseline: Name of the baseline, or its name and parameters.
        confidence: Logit of the baseline's choice.
        bound: Size of the largest correction; the baseline is always followed unless this is over half the confidence.
    """

    name: str = "residual"
    baseline: Any = None
    confidence: float = 4.0
    bound: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "confidence", prefix="agent.")
        least = self.confidence / 2
        _check("agent.bound", self.bound, self.bound > least, f"above half of agent.confidence, {least:g}")


@dataclass(frozen=True, kw_only=True)
class LagrangianConfig(PPOConfig):
    """MaskablePPO under a promise: the share of SLOs broken shall not exceed a limit.

    The price of a broken promise is a Lagrange multiplier, raised where the limit is exceeded and lowered where it is
    not, on a slower scale than the policy (Tessler et al. 2019, "Reward constrained policy optimization", algorithm 1:
    one critic of the penalised reward). Rewards are divided by one plus the price, as in Ray et al. 2019 ("Benchmarking
    safe exploration", section 5), so that their size does not run away with it.

    Attributes:
        missed_limit: Share of the promises (of a first token and of a pace, two a request) that may be broken.
        multiplier: The price to begin with, in reward for a broken promise.
        multiplier_rate: Change of the price per share above the limit and episode.
    """

    name: str = "ppo_lagrangian"
    missed_limit: float = 0.05
    multiplier: float = 0.0
    multiplier_rate: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "[0, 1)", "missed_limit", prefix="agent.")
        check_not_negative(self, "multiplier", prefix="agent.")
        check_positive(self, "multiplier_rate", prefix="agent.")


@dataclass(frozen=True, kw_only=True)
class DQNConfig(SB3Config):
    """DQN (Mnih et al. 2015). It knows no masks: an impossible action is tried, refused, counted and changes nothing.

    Attributes:
        buffer_size: Decisions remembered.
        warm_up_steps: Decisions taken at random before learning begins; where a training goes on, by the policy.
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
        check_at_least(
            self,
            1,
            "buffer_size",
            "batch_size",
            "train_every",
            "gradient_steps",
            "target_update_steps",
            prefix="agent.",
        )
        check_not_negative(self, "warm_up_steps", prefix="agent.")
        check_within(self, "[0, 1]", "exploration_share", "exploration_end", prefix="agent.")


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(DQNConfig):
    """DQN of the distribution of returns (Dabney et al. 2018), without masks as well.

    Attributes:
        num_quantiles: Numbers that the distribution of an action's return is described by.
    """

    name: str = "qr_dqn"
    num_quantiles: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_quantiles", prefix="agent.")


@dataclass(frozen=True, kw_only=True)
class SACConfig(SB3Config):
    """Soft actor-critic (Haarnoja et al. 2018) that sets the weights of a score at every decision.

    What describes an action (a row of the observation in routing, what a switch does in dp_tp) times the weights is its
    score; the possible action with the highest is taken.

    Attributes:
        buffer_size: Decisions remembered.
        warm_up_steps: Decisions by random weights before learning begins; where a training goes on, by the policy.
        batch_size: Decisions in a gradient step.
        train_every: Steps of the batched environment between updates.
        gradient_steps: Gradient steps of an update.
        target_rate: Share by which the target networks move in a gradient step.
        disturbance: 0: the actor explores by itself.
    """

    name: str = "sac"
    total_steps: int = 200_000
    disturbance: float = 0.0
    buffer_size: int = 100_000
    warm_up_steps: int = 2_000
    batch_size: int = 256
    train_every: int = 1
    gradient_steps: int = 1
    target_rate: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "buffer_size", "batch_size", "train_every", "gradient_steps", prefix="agent.")
        check_not_negative(self, "warm_up_steps", prefix="agent.")
        _check("agent.disturbance", self.disturbance, self.disturbance == 0, f"0 for agent={self.name}")
        check_within(self, "(0, 1]", "target_rate", prefix="agent.")


@dataclass(frozen=True, kw_only=True)
class TQCConfig(SACConfig):
    """SAC with truncated quantile critics (Kuznetsov et al. 2020).

    Attributes:
        num_quantiles: Of each of the two critics.
        num_dropped: Highest quantiles left out of the target, of each critic.
    """

    name: str = "tqc"
    num_quantiles: int = 25
    num_dropped: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_quantiles", prefix="agent.")
        most = self.num_quantiles - 1
        _check("agent.num_dropped", self.num_dropped, 0 <= self.num_dropped <= most, f"between 0 and {most}")


@dataclass(frozen=True, kw_only=True)
class SearchConfig(AgentConfig):
    """What searches over parameters have in common: whole episodes are played, and only their returns count.

    All candidates of a round play the same episodes.

    Attributes:
        episodes: Episodes that each candidate of a round plays.
        sigma: Size of the first steps, in units of a parameter (of its range, where a heuristic's are searched).
        relative: Whether the return of an episode counts as a share of what the parameters that the search began with
            return on it, so that quiet episodes count as much as busy ones; they play every round besides.
        reference: Policy that plays every round besides and in whose returns those of the episodes are counted instead:
            one that is good at all of them, where the first parameters are not. None: none.
        clip: By what share the return of an episode may differ from the one that it is counted in; more does not count,
            so that no kind of episode decides alone. None: by any.
        start: Checkpoint whose parameters the search begins with, of the same environment and network: `name:
            checkpoint` and its `path`. None: those of an untrained network.
        network: The network whose parameters are searched.
    """

    total_steps: int = 2_000_000
    learning_rate: float = 0.05
    episodes: int = 8
    sigma: float = 0.1
    relative: bool = False
    reference: Any = None
    clip: float | None = None
    start: Any = None
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(
            row_width=8, place_width=2, hidden_widths=(8,), stay_probability=0.05
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "episodes", prefix="agent.")
        check_positive(self, "sigma", prefix="agent.")
        check_positive(self, "clip", prefix="agent.")
        if self.clip is not None and self.reference is None and not self.relative:
            raise ValueError("agent.clip needs agent.reference or agent.relative=true")
        if self.start is not None:
            name = self.start["name"] if isinstance(self.start, Mapping) else self.start
            _check(
                "agent.start", repr(name), name == CHECKPOINT, f"a checkpoint of agent={self.name}, or null"
            )


@dataclass(frozen=True, kw_only=True)
class ARSConfig(SearchConfig):
    """Augmented random search (Mania et al. 2018, algorithm 1, version V1-t) over a network's parameters.

    Attributes:
        directions: Random directions a round, each tried forwards and backwards.
        kept_directions: Of these, the best, which the step follows.
    """

    name: str = "ars"
    directions: int = 8
    kept_directions: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "directions", prefix="agent.")
        kept = self.kept_directions
        allowed = f"between 1 and agent.directions, {self.directions}"
        _check("agent.kept_directions", kept, 1 <= kept <= self.directions, allowed)


@dataclass(frozen=True, kw_only=True)
class CMAESConfig(SearchConfig):
    """CMA-ES (Hansen 2016, `cma`) over a network's parameters, or over the declared constants of a heuristic.

    Attributes:
        heuristic: Name of a heuristic with constants to tune, or its name and parameters, from which the search begins;
            None: the network.
        population: Candidates a round; None: 4 + 3 log(parameters).
        diagonal: Whether the covariance is kept diagonal (Ros and Hansen 2008), as is advisable for many parameters.
        learning_rate: Not used: the step size adapts itself.
    """

    name: str = "cma_es"
    heuristic: Any = None
    population: int | None = None
    diagonal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 4, "population", prefix="agent.")
        if isinstance(self.heuristic, Mapping):
            searched_constants(self.heuristic)
        both = self.heuristic is not None and self.start is not None
        _check("agent.start", self.start, not both, "null where agent.heuristic says where the search begins")


@dataclass(frozen=True, kw_only=True)
class ImitationConfig(AgentConfig):
    """Behaviour cloning and DAgger (Ross et al. 2011): the network learns to answer as a teacher does.

    In the first iteration the teacher plays, in all others the network, and the teacher says at each state what it
    would have done (algorithm 3.1 with beta_i = 1 for i = 1 and else 0); all data is kept. Cloning is one iteration.

    Attributes:
        teacher: Name of a policy, or its name and parameters.
        iterations: Data sets gathered, each with an equal share of the budget.
        epochs: Passes over all data after each iteration.
        batch_size: Decisions in a gradient step.
        most_decisions: Decisions kept; older ones are dropped at random.
        obvious_share: Share of the answers that are a matter of course (`Adapter.is_obvious`) which is kept.
        network: The network.
    """

    name: str = "bc"
    total_steps: int = 100_000
    learning_rate: float = 2e-3
    teacher: Any = None
    iterations: int = 1
    epochs: int = 20
    batch_size: int = 256
    most_decisions: int = 200_000
    obvious_share: float = 1.0
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "iterations", "epochs", "batch_size", "most_decisions", prefix="agent.")
        check_within(self, "[0, 1]", "obvious_share", prefix="agent.")
        if self.name == "bc":
            _check("agent.iterations", self.iterations, self.iterations == 1, "1 for agent=bc")


@dataclass(frozen=True, kw_only=True)
class DAggerConfig(ImitationConfig):
    """DAgger; see `ImitationConfig`."""

    name: str = "dagger"
    iterations: int = 5


# Settings that name a policy, and those of them that must.
POLICY_KEYS = ("teacher", "baseline", "heuristic", "start", "reference")
REQUIRED_POLICIES = ("teacher", "baseline")
POLICY_LISTS = ("policies",)  # settings that name several


def searched_constants(heuristic: Mapping[str, Any]) -> dict[str, Tunable]:
    """Constants of a heuristic that are searched, with their ranges.

    Args:
        heuristic: Name and parameters.

    Raises:
        ValueError: it declares none, or leaves one out.
    """
    name, params = heuristic["name"], heuristic.get("params", {})
    tunables = policy_tunables(name)
    if not tunables:
        raise ValueError(f"agent.heuristic={name} declares no constants to search")
    missing = [key for key in tunables if key not in params]
    if missing:
        raise ValueError(f"agent.heuristic must give {missing[0]}, which is to be searched")
    return tunables


def no_policy(key: str) -> ValueError:
    """What is wrong where a required policy is not named."""
    return ValueError(f"agent.{key} must name a policy, as in agent.{key}=jsq")


def _check(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {allowed}, got {value}")
