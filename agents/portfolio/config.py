"""Settings of the choice among policies; free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.api.config import PolicyIterationConfig, check_at_least_one


@dataclass(frozen=True, kw_only=True)
class PortfolioConfig(PolicyIterationConfig):
    """Whom of several policies to follow, by what has been seen so far.

    Attributes:
        policies: At least two, each by name and parameters as in `configs/policy`, or `name: checkpoint` and its
            `path`. The first is followed until another one promises more.
        every: Decisions between two choices.
        sample_every: Choices between two sampled states, on average, late in an episode; the first is always sampled,
            the i-th every i episodes.
        horizon: Decisions that a rollout looks ahead; None: to the end of the episode.
    """

    name: str = "portfolio"
    total_steps: int = 4_000_000
    learning_rate: float = 2e-3
    policies: Any = ()
    every: int = 2
    horizon: int | None = None
    iterations: int = 2
    sample_every: int = 50
    exploration: float = 0.3
    hidden: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one("every", self.every)
        if self.horizon is not None:
            check_at_least_one("horizon", self.horizon)
