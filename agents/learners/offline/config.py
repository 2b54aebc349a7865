"""Settings of the agents that learn from a dataset alone; free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving_gym.agents.config import AgentConfig, NetworkConfig
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(AgentConfig):
    """Settings common to the agents that learn from a dataset.

    Attributes:
        total_steps: Decisions in gradient steps, `batch_size` each.
        learning_rate: Of Adam; it falls to a tenth.
        dataset: Folder of a Minari dataset that `runners.collect` wrote.
        behaviours: Policies in it whose episodes are learned from; empty: all.
        best_share: Share of these episodes that is kept: those whose return is highest beside the others of their seed.
        batch_size: Decisions in a gradient step.
        max_gradient_norm: Gradients are clipped there.
        network: The network.
    """

    total_steps: int = 2_000_000
    learning_rate: float = 1e-3
    dataset: str | None = None
    behaviours: tuple[str, ...] = ()
    best_share: float = 1.0
    batch_size: int = 256
    max_gradient_norm: float = 10.0
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "batch_size", prefix="agent.")
        check_within(self, "(0, 1]", "best_share", prefix="agent.")
        check_positive(self, "max_gradient_norm", prefix="agent.")


@dataclass(frozen=True, kw_only=True)
class OfflineBCConfig(OfflineConfig):
    """Behaviour cloning of a dataset; with `best_share` below 1, of its best episodes.

    Percentile behaviour cloning is in Chen et al. 2021 ("Decision Transformer", section 5).
    """

    name: str = "offline_bc"


@dataclass(frozen=True, kw_only=True)
class CQLConfig(OfflineConfig):
    """Discrete conservative Q-learning (Kumar et al. 2020), by TorchRL's `DiscreteCQLLoss`.

    Attributes:
        discount: On the value of the next decision, one decision interval later; elapsed time counts.
        n_step: Decisions whose rewards are counted as they came before values are trusted.
        conservatism: Weight of the conservative term, the log-sum-exp of all possible actions' values less the value of
            the action in the dataset (equation 4, CQL(H)).
        target_rate: Share by which the target network moves in a gradient step.
        reward_scale: Factor on the rewards; None: one over the standard deviation of discounted returns in the dataset.
    """

    name: str = "cql"
    discount: float = 0.99
    n_step: int = 1
    conservatism: float = 1.0
    target_rate: float = 0.005
    reward_scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "(0, 1)", "discount", prefix="agent.")
        check_at_least(self, 1, "n_step", prefix="agent.")
        check_not_negative(self, "conservatism", prefix="agent.")
        check_within(self, "(0, 1]", "target_rate", prefix="agent.")
        check_positive(self, "reward_scale", prefix="agent.")
