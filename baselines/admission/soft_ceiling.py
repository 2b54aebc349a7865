"""llm-d's soft reflective ceiling: lower priorities are held, the more of them the more saturated the pool is."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from serving_gym.baselines.admission.admitter import HOLD, Admitter
from serving_gym.baselines.admission.saturation import pool_saturation
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.routing.state import RoutedRequest, RoutingState
from serving_gym.envs.simulator.kernel.features import KV_CACHE_UTIL_THRESHOLD, QUEUE_DEPTH_THRESHOLD


@dataclass(frozen=True)
class SoftCeilingConfig(Constants):
    """Constants of `SoftCeilingPolicy`: those of the saturation detector; the ceiling itself has none.

    Attributes:
        queue_depth_threshold: Waiting requests at which an engine is saturated.
        kv_cache_util_threshold: Share of KV blocks in use at which it is.
    """

    queue_depth_threshold: float = tunable(QUEUE_DEPTH_THRESHOLD, 0.5, 128.0, log=True)
    kv_cache_util_threshold: float = tunable(KV_CACHE_UTIL_THRESHOLD, 0.05, 2.0)

    def __post_init__(self) -> None:
        check_positive(self, "queue_depth_threshold", "kv_cache_util_threshold")


class SoftCeilingPolicy(Admitter, Configured[SoftCeilingConfig]):
    """Holds a request of band i of N while the pool's saturation is at 1 - i * saturation / (N - 1) or above.

    llm-d-router, `soft-reflective-ceiling-policy`, 2026. Bands are the priorities, the most urgent is band 0 and has a
    ceiling of 1. Below saturation 1 a band at its ceiling is open at every round(saturation / (1 - saturation))-th
    tick of its own. Nothing is refused but by a full queue, and a request that arrives stands behind those of its class
    that are held.

    Departures: bands are the priorities seen so far in the episode; a tick is an offer of a request of the band, not a
    millisecond.
    """

    name = "soft_ceiling"
    once = False

    def begin(self) -> None:
        """No band is known."""
        self._bands: list[int] = []
        self._ticks: dict[int, int] = {}

    def judge(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Holds what its band's ceiling does not let in."""
        band = self._band(request.priority)
        if not request.held_before and state.held_of_class[request.class_id] > 0:
            return HOLD
        config = self.config
        saturation = pool_saturation(state, config.queue_depth_threshold, config.kv_cache_util_threshold)
        return None if self._is_open(band, request.priority, saturation) else HOLD

    def _band(self, priority: int) -> int:
        """The band's place among those seen, the most urgent first."""
        if priority not in self._ticks:
            insort(self._bands, priority)
            self._ticks[priority] = 0
        return bisect_left(self._bands, priority)

    def _is_open(self, band: int, priority: int, saturation: float) -> bool:
        if saturation >= 1.0:
            return False
        if band == 0 or saturation < 1.0 - band * saturation / (len(self._bands) - 1):
            return True
        self._ticks[priority] += 1
        period = max(1, int(saturation / (1.0 - saturation + 1e-9) + 0.5))
        return self._ticks[priority] % period == 0
