"""Layouts by thresholds on how long prompts are: wide engines answer short ones sooner, long ones hold up others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from baselines.common.layout_ladder import LadderConfig, LayoutLadder, parse_split_mode
from baselines.common.layouts import parse_mode
from baselines.common.signals import ArrivalRates
from baselines.policy import Action, PolicySpec, Tunable
from envs.backend import ClusterState


@dataclass(frozen=True)
class PromptThresholdConfig(LadderConfig):
    """Constants of `PromptThresholdPolicy`; all ours.

    Attributes:
        threshold_prompt_tokens: Mean prompt at which the first layout is left for the second, tokens.
        smoothing_s: Time constant of the exponential averages whose ratio it is, seconds.
        merge_mode: How requests are treated that run where engines are merged: sequential, soft or hard.
        split_mode: And where they are only split: sequential or hard.
    """

    hysteresis_ratio: float = 0.8
    dwell_s: float = 5.0
    threshold_prompt_tokens: float = 1500.0
    smoothing_s: float = 15.0
    merge_mode: str = "soft"
    split_mode: str = "hard"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threshold_prompt_tokens", "smoothing_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        parse_mode(self.merge_mode, "merge_mode")
        parse_split_mode(self.split_mode)

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "threshold_prompt_tokens": Tunable(100.0, 20_000.0, log=True),
            "smoothing_s": Tunable(1.0, 300.0, log=True),
        } | LadderConfig.tunables()


class PromptThresholdPolicy:
    """Switches between a few layouts by the mean prompt of what arrives, with hysteresis and a dwell time.

    Args:
        config: Its constants.
    """

    name = "prompt_threshold"
    clairvoyant = False

    def __init__(self, config: PromptThresholdConfig | None = None) -> None:
        self.config = config or PromptThresholdConfig()

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Starts on the layout for short prompts."""
        config = self.config
        self._arrivals = ArrivalRates(config.smoothing_s)
        self._ladder = LayoutLadder(
            config,
            spec.num_base,
            config.threshold_prompt_tokens,
            parse_mode(config.merge_mode, "merge_mode"),
            parse_split_mode(config.split_mode),
        )

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Deploys at time zero, then follows the mean prompt; before any has come all stays."""
        tokens, requests = self._arrivals.follow(state)
        if requests == 0.0 and state.now_s > 0.0:
            return None
        return self._ladder.act(state, tokens / requests if requests > 0.0 else 0.0)
