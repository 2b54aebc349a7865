"""Layouts by thresholds on what arrives: unlike what is in the system, that does not depend on the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from baselines.common.layout_ladder import LadderConfig, LayoutLadder, parse_split_mode
from baselines.common.layouts import parse_mode
from baselines.common.signals import ArrivalRates
from baselines.policy import Action, PolicySpec, Tunable
from envs.backend import ClusterState


@dataclass(frozen=True)
class RateThresholdConfig(LadderConfig):
    """Constants of `RateThresholdPolicy`; all ours.

    Attributes:
        threshold_tokens_per_gpu_s: Prompt tokens per second and GPU at which the first layout is left for the second.
        smoothing_s: Time constant of the rate's exponential average, seconds.
        merge_mode: How requests are treated that run where engines are merged: sequential, soft or hard.
        split_mode: And where they are only split: sequential or hard.
    """

    hysteresis_ratio: float = 0.7
    dwell_s: float = 5.0
    threshold_tokens_per_gpu_s: float = 3000.0
    smoothing_s: float = 2.0
    merge_mode: str = "soft"
    split_mode: str = "hard"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threshold_tokens_per_gpu_s", "smoothing_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        parse_mode(self.merge_mode, "merge_mode")
        parse_split_mode(self.split_mode)

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "threshold_tokens_per_gpu_s": Tunable(100.0, 100_000.0, log=True),
            "smoothing_s": Tunable(0.2, 120.0, log=True),
        } | LadderConfig.tunables()


class RateThresholdPolicy:
    """Switches between a few layouts by the rate at which prompt tokens arrive, with hysteresis and a dwell time.

    Args:
        config: Its constants.
    """

    name = "rate_threshold"
    clairvoyant = False

    def __init__(self, config: RateThresholdConfig | None = None) -> None:
        self.config = config or RateThresholdConfig()

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Starts on the layout for light load."""
        config = self.config
        self._num_gpus = spec.node.num_gpus
        self._arrivals = ArrivalRates(config.smoothing_s)
        self._ladder = LayoutLadder(
            config,
            spec.num_base,
            config.threshold_tokens_per_gpu_s,
            parse_mode(config.merge_mode, "merge_mode"),
            parse_split_mode(config.split_mode),
        )

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Deploys at time zero, then follows the rate."""
        tokens_per_s, _ = self._arrivals.follow(state)
        return self._ladder.act(state, tokens_per_s / self._num_gpus)
