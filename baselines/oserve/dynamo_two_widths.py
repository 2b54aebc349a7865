"""Two planners like Dynamo's, one of them with wide decode workers, and a threshold between them.

A wide decode worker answers faster, and as many GPUs in narrow ones serve more. So the wide ones are taken where they
serve what is expected with room to spare, and kept until they do not. What a practitioner would do about two layouts;
source: ours, no algorithm of a paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving_gym.baselines.common.deploying import DeployingPolicy
from serving_gym.baselines.oserve.dynamo import DynamoConfig, DynamoPolicy
from serving_gym.baselines.policy import Action, PolicySpec, Tunable
from serving_gym.calibration.fields import check_positive, check_within
from serving_gym.envs.deployment.division import rebalance
from serving_gym.envs.deployment.state import DeploymentState


@dataclass(frozen=True)
class DynamoTwoWidthsConfig:
    """Constants of the policy. All are ours.

    Attributes:
        prefill: TP and PP of prefill workers beside wide decode workers.
        decode: TP and PP of wide decode workers.
        enter: Times the forecast that the wide workers must serve to be taken.
        keep: Share of `enter` below which they are given up.
        min_gain: Of the planner of narrow workers, whose parallelism is the best for the past, by capacity.
        decode_weight: Likewise.
    """

    prefill: Sequence[int] = (2, 1)
    decode: Sequence[int] = (8, 1)
    enter: float = 1.2
    keep: float = 0.67
    min_gain: float = 0.05
    decode_weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "enter", finite=True)
        check_within(self, "[0, 1]", "keep")
        _ = self.wide, self.narrow

    @property
    def wide(self) -> DynamoConfig:
        """Of the planner of wide workers."""
        return DynamoConfig(prefill=self.prefill, decode=self.decode, period_s=None)

    @property
    def narrow(self) -> DynamoConfig:
        """Of the other planner."""
        return DynamoConfig(min_gain=self.min_gain, decode_weight=self.decode_weight, period_s=None)

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "enter": Tunable(0.5, 4.0, log=True),
            "keep": Tunable(0.3, 1.0),
            **DynamoConfig.tunables(),
        }


class DynamoTwoWidthsPolicy(DeployingPolicy):
    """Follows one of two planners, by what the wide workers of one would serve of the forecast.

    Args:
        config: Its constants; None: the defaults.
    """

    name = "dynamo_two_widths"

    def __init__(self, config: DynamoTwoWidthsConfig | None = None) -> None:
        self.config = config or DynamoTwoWidthsConfig()
        self.wide, self.narrow = DynamoPolicy(self.config.wide), DynamoPolicy(self.config.narrow)

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares both.

        Raises:
            ValueError: the cluster allows no prefill and decode workers, or not those that are asked for.
        """
        super().reset(spec, seed)
        self.wide.reset(spec, seed)
        self.narrow.reset(spec, seed)
        self._is_wide = False

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """What one of them does."""
        if state.switch is None and state.forecast.sum() > 0:
            wide = self.wide
            _, times = rebalance(
                self.setting.cluster, wide.workers, wide.prefill, wide.decode, state.forecast
            )
            self._is_wide = times >= self.config.enter * (self.config.keep if self._is_wide else 1.0)
        return (self.wide if self._is_wide else self.narrow).act(observation, state)
