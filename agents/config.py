"""Settings of the agents; does not import torch, so that the command line starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving_gym.baselines.policy import Tunable
from serving_gym.baselines.registry import policy_tunables
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.calibration.lookup import check_choice

SCHEDULES = ("constant", "linear")
CHECKPOINT = "checkpoint"  # name of a policy in settings if it is a checkpoint


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The network of an agent.

    Attributes:
        row_width: Width of the small network that encodes every engine.
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
    """Settings common to all agents.

    Attributes:
        name: The agent: a name in `agents.learners.learner.AGENTS`.
        total_steps: Decisions to train for, unless given on the command line.
        learning_rate: Of Adam.
    """

    name: str
    total_steps: int
    learning_rate: float

    def __post_init__(self) -> None:
        check_at_least(self, 1, "total_steps", prefix="agent.")
        check_positive(self, "learning_rate", prefix="agent.")

    def places(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Keyword arguments of the environments for validation episodes: one, unchanged.

        Args:
            arguments: The environment's keyword arguments.
        """
        return [dict(arguments)]


@dataclass(frozen=True, kw_only=True)
class SB3Config(AgentConfig):
    """Settings common to the agents of Stable-Baselines3.

    Attributes:
        learning_rate_schedule: "constant", or "linear" down to a twentieth at the end.
        discount: On the reward of the next decision, one decision interval later; elapsed time counts. In routing the
            interval is the mean time between arrivals.
        reward_scale: Factor on the training rewards; None: one over the standard deviation of discounted returns
            of simple decisions (the layout stays; requests follow an untuned score), measured on training episodes and
            then fixed.
        disturbance: Probability that a training decision is replaced by a random possible one, falling to zero
            over the last fifth of the training.
        training_stride: Decision intervals between two decisions in training; afterwards the agent decides at every
            one. A longer stride makes the value of a layout larger relative to the cost of a switch. dp_tp only: in
            routing every request triggers a decision.
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
        """Whether the agent uses action masks."""
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
        clip_range: Clip range of the probability ratio.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        max_gradient_norm: Gradients are clipped there.
        target_kl: An update ends early beyond 1.5 times this divergence; None: never.
        group_size: Environments that run the same episodes, so that the common part of their advantages can be
            attributed to the arrivals; 1: every environment has its own episodes.
        advantage_floor: Advantages are divided by this plus the absolute value of the state, so that decisions under
            light load, with small costs, weigh as much as those in a burst; None: no division.
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
    """Recurrent PPO (an LSTM); the policy receives the action mask and gives masked actions no probability.

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
    """MaskablePPO that adds bounded corrections to a baseline's choice.

    Related: residual policy learning (Silver et al. 2018; Johannink et al. 2019), for continuous actions. Here the
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
    """MaskablePPO under a constraint: the share of SLO misses must not exceed a limit.

    The price of an SLO miss is a Lagrange multiplier, raised while the limit is exceeded and lowered otherwise, on a
    slower time scale than the policy (Tessler et al. 2019, "Reward constrained policy optimization", algorithm 1:
    one critic of the penalised reward). Rewards are divided by one plus the price, as in Ray et al. 2019 ("Benchmarking
    safe exploration", section 5), so that their size does not run away with it.

    Attributes:
        missed_limit: Limit on the share of SLO misses (TTFT and TPOT, two SLOs per request).
        multiplier: Initial price of an SLO miss, in reward.
        multiplier_rate: Change of the price per episode and unit of the share above the limit.
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
    """DQN (Mnih et al. 2015), without action masks: an impossible action is refused, counted, and changes nothing.

    Attributes:
        buffer_size: Decisions in the replay buffer.
        warm_up_steps: Random decisions before learning begins; by the policy if a training is resumed.
        batch_size: Decisions in a gradient step.
        train_every: Steps of the vector environment between updates.
        gradient_steps: Gradient steps of an update.
        target_update_steps: Decisions between copies of the network to the target network.
        exploration_share: Share of the training over which the share of random actions decays.
        exploration_end: Final share of random actions.
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
    """Quantile-regression DQN (Dabney et al. 2018), without action masks.

    Attributes:
        num_quantiles: Quantiles of the distribution of an action's return.
    """

    name: str = "qr_dqn"
    num_quantiles: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_quantiles", prefix="agent.")


@dataclass(frozen=True, kw_only=True)
class SACConfig(SB3Config):
    """Soft actor-critic (Haarnoja et al. 2018) whose action is the weights of a score, set at every decision.

    The score of an action is its features (a row of the observation in routing, the effect of a switch in dp_tp) times
    the weights; the possible action with the highest score is taken.

    Attributes:
        buffer_size: Decisions in the replay buffer.
        warm_up_steps: Decisions with random weights before learning begins; by the policy if a training is resumed.
        batch_size: Decisions in a gradient step.
        train_every: Steps of the vector environment between updates.
        gradient_steps: Gradient steps of an update.
        target_rate: Share by which the target networks move in a gradient step.
        disturbance: 0, as the actor itself explores.
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
        num_quantiles: Quantiles of each of the two critics.
        num_dropped: Highest quantiles dropped from the target, of each critic.
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
    """Settings common to searches over parameters, which use only the returns of whole episodes.

    All candidates of a round run the same episodes.

    Attributes:
        episodes: Episodes of each candidate of a round.
        sigma: Initial step size, in units of a parameter (as a share of its range for a heuristic's constants).
        relative: Whether each return is divided by the return of the initial parameters on the same episode, so that
            quiet episodes weigh as much as busy ones; the initial parameters then run in every round too.
        reference: Policy whose returns normalise them instead; it runs in every round too. Useful if the initial
            parameters are bad at some episodes. None: none.
        clip: Clips each episode's return to this relative difference from the normalising return, so that no kind of
            episode dominates. None: no clipping.
        start: Checkpoint with the initial parameters, of the same environment and network: `name: checkpoint` and its
            `path`. None: an untrained network.
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
        directions: Random directions per round, each tried forwards and backwards.
        kept_directions: Best directions, which the step follows.
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
        population: Candidates per round; None: 4 + 3 log(parameters).
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
    """Behaviour cloning and DAgger (Ross et al. 2011): the network imitates a teacher.

    In the first iteration the teacher acts, in all others the network; the teacher labels each state with its action
    (algorithm 3.1 with beta_i = 1 for i = 1 and else 0); all data is kept. Cloning is one iteration.

    Attributes:
        teacher: Name of a policy, or its name and parameters.
        iterations: Rounds of data collection, each with an equal share of the budget.
        epochs: Passes over all data after each iteration.
        batch_size: Decisions in a gradient step.
        most_decisions: Most decisions kept; older ones are dropped at random.
        obvious_share: Share of obvious decisions (`Adapter.is_obvious`) that is kept.
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


# Settings that name a policy, and those that are required.
POLICY_KEYS = ("teacher", "baseline", "heuristic", "start", "reference")
REQUIRED_POLICIES = ("teacher", "baseline")
POLICY_LISTS = ("policies",)  # settings that name several policies


def searched_constants(heuristic: Mapping[str, Any]) -> dict[str, Tunable]:
    """Constants of a heuristic to search, with their ranges; those that are chosen among values stay as they are.

    Args:
        heuristic: Name and parameters.

    Raises:
        ValueError: the heuristic declares none, or a constant is missing.
    """
    name, params = heuristic["name"], heuristic.get("params", {})
    tunables = {key: one for key, one in policy_tunables(name).items() if not one.values}
    if not tunables:
        raise ValueError(f"agent.heuristic={name} declares no constants to search")
    missing = [key for key in tunables if key not in params]
    if missing:
        raise ValueError(f"agent.heuristic must give {missing[0]}, which is to be searched")
    return tunables


def no_policy(key: str) -> ValueError:
    """The message if a required policy is not named."""
    return ValueError(f"agent.{key} must name a policy, as in agent.{key}=jsq")


def _check(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {allowed}, got {value}")
