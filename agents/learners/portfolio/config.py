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
            `path`, where it is read whenever the portfolio is. The first is followed until another one promises more.
            Layouts that are deployed once, at the start, cannot be followed later.
        every: Decisions between two choices.
        memory: Whether it sees the mean and the maximum of all that was seen since the episode began, beside what is
            seen now. Without, it keeps to the first policy in states that are unlike those of the training.
        sample_every: Choices between two sampled states, on average, late in an episode; the first is always sampled,
            the i-th every i episodes.
        exploration: Probability that any of them is followed up to the next choice while data is gathered.
        worst: Relative advantages are not taken to be less.
        least_cost: Added to a state's cost before advantages are taken relative to it, in units of reward.
        by_part: Whether episodes are of one part of a mixture of workloads after another, each in an environment of its
            own: what that finds out from the past, as deployment does, it finds from this part alone. Validation
            episodes too.
        pooled: Likewise, and advantages are the mean ones of the part that an episode is of. Single advantages are
            mostly chance where a few requests decide.
        commit: Choices for which a rollout follows one policy, from the second improvement on, before it chooses as the
            present portfolio does; None: all of them. Each costs several times as much.
        horizon: Decisions that a rollout looks ahead; None: to the end of the episode, which in routing is as many
            decisions as requests are still to come, for each policy.
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
