"""Layouts by thresholds on what arrives: unlike what is in the system, that does not depend on the layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baselines.common.layout_ladder import LayoutLadder, check_thresholds
from baselines.common.layouts import parse_layout, parse_mode
from baselines.policy import Action, PolicySpec, Tunable
from envs.backend import TOTALS, ClusterState

_ARRIVED_TOKENS = TOTALS.index("arrived_tokens")


@dataclass(frozen=True)
class RateThresholdConfig:
    """Constants of `RateThresholdPolicy`; all ours.

    Attributes:
        layouts: From light to heavy load, as written in configs; empty: every uniform layout, the widest first.
        threshold_tokens_per_gpu_s: Prompt tokens per second and GPU at which the first layout is left for the second.
        threshold_growth_ratio: Each further threshold is so many times the one before.
        hysteresis_ratio: A layout is returned to below this share of the threshold it was left at, 0 to 1.
        smoothing_s: Time constant of the rate's exponential average, seconds.
        dwell_s: Least time between two changes, seconds.
        merge_mode: How requests are treated that run where engines are merged: sequential, soft or hard.
        split_mode: And where they are only split: sequential or hard.
    """

    layouts: Sequence[str | int] = ()
    threshold_tokens_per_gpu_s: float = 3000.0
    threshold_growth_ratio: float = 2.0
    hysteresis_ratio: float = 0.7
    smoothing_s: float = 2.0
    dwell_s: float = 5.0
    merge_mode: str = "soft"
    split_mode: str = "hard"

    def __post_init__(self) -> None:
        if not self.threshold_tokens_per_gpu_s > 0:
            raise ValueError(
                f"threshold_tokens_per_gpu_s must be positive, got {self.threshold_tokens_per_gpu_s}"
            )
        if not self.smoothing_s > 0:
            raise ValueError(f"smoothing_s must be positive, got {self.smoothing_s}")
        check_thresholds(self.threshold_growth_ratio, self.hysteresis_ratio, self.dwell_s)
        parse_mode(self.merge_mode, "merge_mode")
        parse_mode(self.split_mode, "split_mode")
        for layout in self.layouts:
            parse_layout(layout)

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "threshold_tokens_per_gpu_s": Tunable(100.0, 100_000.0, log=True),
            "threshold_growth_ratio": Tunable(1.0, 8.0, log=True),
            "hysteresis_ratio": Tunable(0.1, 0.95),
            "smoothing_s": Tunable(0.2, 120.0, log=True),
            "dwell_s": Tunable(1.0, 60.0, log=True),
        }


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
        self._last_s = self._tokens = self._rate = 0.0
        self._ladder = LayoutLadder(
            config.layouts,
            spec.num_base,
            config.threshold_tokens_per_gpu_s,
            config.threshold_growth_ratio,
            config.hysteresis_ratio,
            config.dwell_s,
            parse_mode(config.merge_mode, "merge_mode"),
            parse_mode(config.split_mode, "split_mode"),
        )

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Deploys at time zero, then follows the rate."""
        elapsed_s = state.now_s - self._last_s
        if elapsed_s > 0:
            tokens = float(state.totals[:, _ARRIVED_TOKENS].sum())
            new = 1.0 - math.exp(-elapsed_s / self.config.smoothing_s)
            self._rate += new * ((tokens - self._tokens) / elapsed_s - self._rate)
            self._last_s, self._tokens = state.now_s, tokens
        return self._ladder.act(state, self._rate / self._num_gpus)
