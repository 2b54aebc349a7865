"""Shedding at saturation, as the Gateway API Inference Extension did before it had flow control."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.admission.admitter import REJECT, Admitter
from serving_gym.baselines.admission.saturation import PROTECTED_PRIORITY, pool_saturation
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive, check_within
from serving_gym.envs.routing.state import RoutedRequest, RoutingState
from serving_gym.envs.simulator.kernel.features import KV_CACHE_UTIL_THRESHOLD, QUEUE_DEPTH_THRESHOLD


@dataclass(frozen=True)
class GAIELegacyConfig(Constants):
    """Constants of `GAIELegacyPolicy`; thresholds are defaults of the Gateway API Inference Extension.

    Attributes:
        queue_depth_threshold: Waiting requests at which an engine is saturated.
        kv_cache_util_threshold: Share of KV blocks in use at which it is.
        protected_priority: The last priority that is never refused. Source: ours (`saturation.PROTECTED_PRIORITY`).
    """

    queue_depth_threshold: float = tunable(QUEUE_DEPTH_THRESHOLD, 0.5, 128.0, log=True)
    kv_cache_util_threshold: float = tunable(KV_CACHE_UTIL_THRESHOLD, 0.05, 1.0)
    protected_priority: int = PROTECTED_PRIORITY

    def __post_init__(self) -> None:
        check_positive(self, "queue_depth_threshold")
        check_within(self, "(0, 1]", "kv_cache_util_threshold")


class GAIELegacyPolicy(Admitter, Configured[GAIELegacyConfig]):
    """Refuses sheddable requests where the pool's mean saturation has reached 1; all others pass.

    Gateway API Inference Extension, legacy admission controller; inference-sim (BLIS), `gaie-legacy`.
    """

    name = "gaie_legacy"

    def judge(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Refuses a sheddable request at saturation."""
        config = self.config
        if request.priority <= config.protected_priority:
            return None
        saturation = pool_saturation(state, config.queue_depth_threshold, config.kv_cache_util_threshold)
        return REJECT if saturation >= 1.0 else None
