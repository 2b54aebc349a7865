"""Minimum use (MU): the least used GPU and memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.router import Router, lowest
from serving_gym.baselines.common.routers.least_kv import kv_usage
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive, check_within
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class MinimumUseConfig(Constants):
    """Constants of `MinimumUsePolicy`; all ours, the paper gives none.

    Attributes:
        gpu_weight: Weight of GPU utilisation, 0 to 1; memory usage has the rest.
        window_s: GPU utilisation is the share of the last so many seconds in which the engine was busy, as
            nvidia-smi's is of its last sample period.
    """

    gpu_weight: float = tunable(0.5, 0.0, 1.0)
    window_s: float = tunable(1.0, 0.1, 60.0, log=True)

    def __post_init__(self) -> None:
        check_within(self, "[0, 1]", "gpu_weight")
        check_positive(self, "window_s")


class MinimumUsePolicy(Router, Configured[MinimumUseConfig]):
    """The engine with the lowest weighted average of GPU utilisation and memory usage (PreServe, section 3.2.2, "MU").

    Memory usage is the share of its KV blocks in use: an engine's other memory does not change. GPU utilisation comes
    from its counter of busy seconds, over the last window that has passed between two readings, 0 before. The first
    engine wins a tie. What the paper leaves open, and is ours: weights, window, ties.
    """

    name = "minimum_use"

    def begin(self) -> None:
        """Nothing is known of utilisation."""
        self._read_s: float | None = None
        self._busy_s = np.zeros(len(self.engines))
        self._utilisation = np.zeros(len(self.engines))

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The least used."""
        self._read(state)
        weight = self.config.gpu_weight
        return lowest(weight * self._utilisation + (1 - weight) * kv_usage(state), state.can_take)

    def _read(self, state: RoutingState) -> None:
        """Closes the window if it is over."""
        passed_s = np.inf if self._read_s is None else state.gauges_s - self._read_s
        if passed_s < self.config.window_s:
            return
        busy_s = state.engines["busy_s"].copy()
        self._utilisation = np.clip((busy_s - self._busy_s) / passed_s, 0.0, 1.0)
        self._read_s, self._busy_s = state.gauges_s, busy_s
