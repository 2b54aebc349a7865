"""What a practitioner would write: layouts by thresholds on load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serving_gym.baselines.common.layout_ladder import (
    MERGE_MODES,
    SPLIT_MODES,
    LadderConfig,
    LayoutLadder,
    parse_split_mode,
    words,
)
from serving_gym.baselines.common.layouts import parse_mode
from serving_gym.baselines.common.signals import requests_in_system
from serving_gym.baselines.policy import Action, Configured, PolicySpec, Tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.interface.state import ClusterState


@dataclass(frozen=True)
class LoadThresholdConfig(LadderConfig):
    """Constants of `LoadThresholdPolicy`; all ours.

    Attributes:
        threshold_requests_per_gpu: Requests in the system per GPU at which the first layout is left for the second.
        mode: How running requests are treated: sequential, soft or hard.
        split_mode: The same where engines are only split, sequential or hard; empty: as `mode`, and sequential for
            soft.
    """

    threshold_requests_per_gpu: float = 2.0
    mode: str = "soft"
    split_mode: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "threshold_requests_per_gpu")
        parse_mode(self.mode, "mode")
        if self.split_mode:
            parse_split_mode(self.split_mode)

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "threshold_requests_per_gpu": Tunable(0.1, 64.0, log=True),
            "mode": MERGE_MODES,
            "split_mode": words("", *SPLIT_MODES.values),
        } | LadderConfig.tunables()


class LoadThresholdPolicy(Configured[LoadThresholdConfig]):
    """Switches between a few layouts by requests in the system per GPU, with hysteresis and a dwell time."""

    name = "load_threshold"
    clairvoyant = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Starts on the layout for light load."""
        config = self.config
        mode = parse_mode(config.mode, "mode")
        as_mode = SwitchMode.SEQUENTIAL if mode == SwitchMode.SOFT else mode
        split_mode = parse_split_mode(config.split_mode) if config.split_mode else as_mode
        self._num_gpus = spec.node.num_gpus
        first = config.threshold_requests_per_gpu
        self._ladder = LayoutLadder(config, spec.num_base, first, mode, split_mode)

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Deploys at time zero, then follows the load."""
        return self._ladder.act(state, requests_in_system(state) / self._num_gpus)
