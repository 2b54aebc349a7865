"""What a practitioner would write: layouts by thresholds on load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baselines.common.layout_ladder import LayoutLadder, check_thresholds
from baselines.common.layouts import parse_layout, parse_mode
from baselines.common.signals import requests_in_system
from baselines.policy import Action, PolicySpec, Tunable
from envs.backend import ClusterState, SwitchMode


@dataclass(frozen=True)
class LoadThresholdConfig:
    """Constants of `LoadThresholdPolicy`; all ours.

    Attributes:
        layouts: From light to heavy load, as written in configs; empty: every uniform layout, the widest first.
        threshold_requests_per_gpu: Requests in the system per GPU at which the first layout is left for the second.
        threshold_growth_ratio: Each further threshold is so many times the one before.
        hysteresis_ratio: A layout is returned to below this share of the threshold it was left at, 0 to 1.
        dwell_s: Least time between two changes, seconds.
        mode: How running requests are treated: sequential, soft or hard.
        split_mode: The same where engines are only split, sequential or hard; empty: as `mode`, and sequential for
            soft, since nothing can be done speculatively in DP while a group is being split.
    """

    layouts: Sequence[str | int] = ()
    threshold_requests_per_gpu: float = 2.0
    threshold_growth_ratio: float = 2.0
    hysteresis_ratio: float = 0.5
    dwell_s: float = 10.0
    mode: str = "soft"
    split_mode: str = ""

    def __post_init__(self) -> None:
        if not self.threshold_requests_per_gpu > 0:
            raise ValueError(
                f"threshold_requests_per_gpu must be positive, got {self.threshold_requests_per_gpu}"
            )
        check_thresholds(self.threshold_growth_ratio, self.hysteresis_ratio, self.dwell_s)
        parse_mode(self.mode, "mode")
        if self.split_mode:
            parse_mode(self.split_mode, "split_mode")
        for layout in self.layouts:
            parse_layout(layout)

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "threshold_requests_per_gpu": Tunable(0.1, 64.0, log=True),
            "threshold_growth_ratio": Tunable(1.0, 8.0, log=True),
            "hysteresis_ratio": Tunable(0.1, 0.95),
            "dwell_s": Tunable(1.0, 60.0, log=True),
        }


class LoadThresholdPolicy:
    """Switches between a few layouts by requests in the system per GPU, with hysteresis and a dwell time.

    Args:
        config: Its constants.
    """

    name = "load_threshold"
    clairvoyant = False

    def __init__(self, config: LoadThresholdConfig | None = None) -> None:
        self.config = config or LoadThresholdConfig()

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Starts on the layout for light load."""
        config = self.config
        mode = parse_mode(config.mode, "mode")
        as_mode = SwitchMode.SEQUENTIAL if mode == SwitchMode.SOFT else mode
        split_mode = parse_mode(config.split_mode, "split_mode") if config.split_mode else as_mode
        self._num_gpus = spec.node.num_gpus
        self._ladder = LayoutLadder(
            config.layouts,
            spec.num_base,
            config.threshold_requests_per_gpu,
            config.threshold_growth_ratio,
            config.hysteresis_ratio,
            config.dwell_s,
            mode,
            split_mode,
        )

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Deploys at time zero, then follows the load."""
        return self._ladder.act(state, requests_in_system(state) / self._num_gpus)
