"""Settings of the portfolio agent; does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving_gym.agents.learners.api.config import PolicyIterationConfig
from serving_gym.calibration.fields import check_at_least
from serving_gym.envs.workload.registry import MIXTURE, WorkloadSource, WorkloadSpec


@dataclass(frozen=True, kw_only=True)
class PortfolioConfig(PolicyIterationConfig):
    """Learns which of several policies to follow, from the observations so far.

    Attributes:
        policies: At least two, each by name and parameters as in `configs/policy`, or `name: checkpoint` and its
            `path`, which is read whenever the portfolio is loaded. The first is the default choice. Policies that
            deploy a layout once, at the start, cannot be chosen later.
        every: Decisions between two choices.
        memory: Whether inputs include mean and maximum of all observations since the episode began, in addition to the
            present one. Without it, the first policy is followed in states unlike those of the training.
        sample_every: Choices between two sampled states, on average, late in an episode; the first is always sampled,
            the i-th every i episodes.
        exploration: Probability of a random policy up to the next choice, during data collection.
        worst: Lower clip of relative advantages.
        least_cost: Added to a state's cost before advantages are divided by it, in units of reward.
        by_part: Whether each part of a mixture of workloads has its own environment, with episodes of the parts in
            turn, validation episodes too. An environment that learns from the past, such as deployment, then uses the
            past of its part only.
        pooled: As `by_part`; advantages are also averaged over all episodes of a part. Single advantages are noisy if
            they depend on a few requests.
        commit: Choices for which a rollout follows one policy before the present portfolio chooses, from the second
            improvement on; None: all of them. Each costs several times as much.
        horizon: Rollout length, decisions; None: to the end of the episode, which in routing is one decision per
            remaining request, for each policy.
    """

    name: str = "portfolio"
    total_steps: int = 4_000_000
    learning_rate: float = 2e-3
    policies: Any = ()
    every: int = 2
    memory: bool = True
    by_part: bool = False
    pooled: bool = False
    commit: int | None = None
    horizon: int | None = None
    iterations: int = 2
    sample_every: int = 50
    exploration: float = 0.3
    hidden: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.policies, list | tuple):
            raise ValueError(f"agent.policies must be a list of policies, got {self.policies!r}")
        for policy in self.policies:
            if not isinstance(policy, str) and not (
                isinstance(policy, Mapping) and isinstance(policy.get("name"), str)
            ):
                raise ValueError(
                    f"agent.policies must hold names of policies, or mappings with a name and params, got {policy!r}"
                )
        check_at_least(self, 1, "every", "commit", "horizon", prefix="agent.")

    def places(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Keyword arguments of the environments in which episodes are played: one, or one a part of the workload.

        Args:
            arguments: The environment's keyword arguments.

        Raises:
            ValueError: episodes are to be of parts, and the workload has none.
        """
        if not (self.by_part or self.pooled):
            return super().places(arguments)
        workload = arguments.get("workload")
        if not isinstance(workload, WorkloadSpec) or workload.name != MIXTURE:
            name = workload.name if isinstance(workload, WorkloadSpec) else workload
            raise ValueError(
                "agent.by_part and agent.pooled need workload=mixture, or a file in configs/workload that is one, got "
                f"{name}"
            )
        return [{**arguments, "workload": part.spec} for part in WorkloadSource(workload).parts]
