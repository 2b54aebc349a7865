"""Layouts by thresholds on what arrives: unlike what is in the system, that does not depend on the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serving_gym.baselines.common.layout_ladder import (
    MERGE_MODES,
    SPLIT_MODES,
    LadderConfig,
    LayoutLadder,
    parse_split_mode,
)
from serving_gym.baselines.common.layouts import parse_mode
from serving_gym.baselines.common.signals import ArrivalRates
from serving_gym.baselines.policy import Action, Configured, PolicySpec, Tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.interface.state import ClusterState


@dataclass(frozen=True, kw_only=True)
class ArrivalThresholdConfig(LadderConfig):
    """What both policies have in common; all ours.

    Attributes:
        smoothing_s: Time constant of the exponential averages of what arrives, seconds.
        merge_mode: How requests are treated that run where engines are merged: sequential, soft or hard.
        split_mode: And where they are only split: sequential or hard.
    """

    dwell_s: float = 5.0
    smoothing_s: float = 2.0
    merge_mode: str = "soft"
    split_mode: str = "hard"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "smoothing_s")
        parse_mode(self.merge_mode, "merge_mode")
        parse_split_mode(self.split_mode)

    def ladder(self, spec: PolicySpec, threshold: float) -> LayoutLadder:
        """Layouts of a node, of which the first is left at a threshold."""
        merge_mode = parse_mode(self.merge_mode, "merge_mode")
        return LayoutLadder(self, spec.num_base, threshold, merge_mode, parse_split_mode(self.split_mode))


@dataclass(frozen=True, kw_only=True)
class RateThresholdConfig(ArrivalThresholdConfig):
    """Constants of `RateThresholdPolicy`; all ours.

    Attributes:
        threshold_tokens_per_gpu_s: Prompt tokens per second and GPU at which the first layout is left for the second.
    """

    hysteresis_ratio: float = 0.7
    threshold_tokens_per_gpu_s: float = 3000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "threshold_tokens_per_gpu_s")

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "threshold_tokens_per_gpu_s": Tunable(100.0, 100_000.0, log=True),
            "smoothing_s": Tunable(0.2, 120.0, log=True),
            "merge_mode": MERGE_MODES,
            "split_mode": SPLIT_MODES,
        } | LadderConfig.tunables()


@dataclass(frozen=True, kw_only=True)
class PromptThresholdConfig(ArrivalThresholdConfig):
    """Constants of `PromptThresholdPolicy`; all ours.

    Attributes:
        threshold_prompt_tokens: Mean prompt at which the first layout is left for the second, tokens.
    """

    hysteresis_ratio: float = 0.8
    smoothing_s: float = 15.0
    threshold_prompt_tokens: float = 1500.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "threshold_prompt_tokens")

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "threshold_prompt_tokens": Tunable(100.0, 20_000.0, log=True),
            "smoothing_s": Tunable(1.0, 300.0, log=True),
            "merge_mode": MERGE_MODES,
            "split_mode": SPLIT_MODES,
        } | LadderConfig.tunables()


class RateThresholdPolicy(Configured[RateThresholdConfig]):
    """Switches between a few layouts by the rate at which prompt tokens arrive, with hysteresis and a dwell time."""

    name = "rate_threshold"
    clairvoyant = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Starts on the layout for light load."""
        self._num_gpus = spec.node.num_gpus
        self._arrivals = ArrivalRates(self.config.smoothing_s)
        self._ladder = self.config.ladder(spec, self.config.threshold_tokens_per_gpu_s)

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Deploys at time zero, then follows the rate."""
        tokens_per_s, _ = self._arrivals.follow(state)
        return self._ladder.act(state, tokens_per_s / self._num_gpus)


class PromptThresholdPolicy(Configured[PromptThresholdConfig]):
    """Switches between a few layouts by the mean prompt of what arrives, with hysteresis and a dwell time.

    Wide engines answer short prompts sooner; a long one holds up all others of its engine.
    """

    name = "prompt_threshold"
    clairvoyant = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Starts on the layout for short prompts."""
        self._arrivals = ArrivalRates(self.config.smoothing_s)
        self._ladder = self.config.ladder(spec, self.config.threshold_prompt_tokens)

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Deploys at time zero, then follows the mean prompt; before any has come all stays."""
        tokens, requests = self._arrivals.follow(state)
        if requests == 0.0 and state.now_s > 0.0:
            return None
        return self._ladder.act(state, tokens / requests if requests > 0.0 else 0.0)
