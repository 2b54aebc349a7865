"""What a practitioner would write: layouts by thresholds on load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baselines.common.hysteresis import HysteresisLadder
from baselines.common.layouts import (
    check_layout,
    free_regions,
    parse_layout,
    parse_mode,
    power_of_two_lengths,
    uniform_layout,
    with_regions,
)
from baselines.common.signals import requests_in_system
from baselines.policy import Action, PolicySpec, Tunable
from envs.backend import ClusterState, Redeploy, SetLayout, SwitchMode
from envs.layout import Layout, groups_of


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
    """

    layouts: Sequence[str | int] = ()
    threshold_requests_per_gpu: float = 2.0
    threshold_growth_ratio: float = 2.0
    hysteresis_ratio: float = 0.5
    dwell_s: float = 10.0
    mode: str = "soft"

    def __post_init__(self) -> None:
        if not self.threshold_requests_per_gpu > 0:
            raise ValueError(
                f"threshold_requests_per_gpu must be positive, got {self.threshold_requests_per_gpu}"
            )
        if not self.threshold_growth_ratio >= 1:
            raise ValueError(f"threshold_growth_ratio must be at least 1, got {self.threshold_growth_ratio}")
        if not 0 <= self.hysteresis_ratio < 1:
            raise ValueError(f"hysteresis_ratio must lie in [0, 1), got {self.hysteresis_ratio}")
        if not self.dwell_s >= 0:
            raise ValueError(f"dwell_s must not be negative, got {self.dwell_s}")
        parse_mode(self.mode, "mode")
        for layout in self.layouts:
            parse_layout(layout)

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "threshold_requests_per_gpu": Tunable(0.25, 64.0, log=True),
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
        self._layouts = self._ladder_of(spec.num_base)
        self._mode = parse_mode(config.mode, "mode")
        self._num_gpus = spec.node.num_gpus
        first = config.threshold_requests_per_gpu
        up = tuple(first * config.threshold_growth_ratio**i for i in range(len(self._layouts) - 1))
        down = tuple(threshold * config.hysteresis_ratio for threshold in up)
        self._ladder = HysteresisLadder(up, down, config.dwell_s)
        self._fresh = True

    def _ladder_of(self, num_base: int) -> tuple[Layout, ...]:
        layouts = tuple(parse_layout(layout) for layout in self.config.layouts)
        for layout in layouts:
            check_layout(layout, num_base)
        return layouts or tuple(uniform_layout(num_base, length) for length in power_of_two_lengths(num_base))

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Deploys at time zero, then follows the load; regions that are being reconfigured are left alone."""
        rung = self._ladder.step(state.now_s, requests_in_system(state) / self._num_gpus)
        wanted = self._layouts[rung]
        fresh, self._fresh = self._fresh, False
        if fresh and state.now_s == 0.0:
            return Redeploy(wanted, weights="whole")
        regions = free_regions(state, wanted)
        if not regions:
            return None
        merges = any(region in groups_of(wanted) for region in regions)
        # nothing can be done speculatively in DP while a group is being split
        mode = SwitchMode.SEQUENTIAL if self._mode == SwitchMode.SOFT and not merges else self._mode
        return SetLayout(with_regions(state, wanted, regions), mode)
