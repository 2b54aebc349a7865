"""llm-d's probabilistic admitter: sheddable requests are refused with a probability that rises steeply."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.admission.admitter import REJECT, Admitter
from serving_gym.baselines.admission.saturation import PROTECTED_PRIORITY, pool_saturation
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.routing.state import RoutedRequest, RoutingState
from serving_gym.envs.simulator.kernel.features import KV_CACHE_UTIL_THRESHOLD, QUEUE_DEPTH_THRESHOLD


@dataclass(frozen=True)
class ProbabilisticAdmitterConfig(Constants):
    """Constants of `ProbabilisticAdmitterPolicy`, llm-d's defaults.

    Attributes:
        queue_depth_threshold: Waiting requests at which an engine is saturated.
        kv_cache_util_threshold: Share of KV blocks in use at which it is.
        power: Of the saturation.
        k: Factor on it.
        protected_priority: The last priority that is never refused. Source: ours (`saturation.PROTECTED_PRIORITY`).
    """

    queue_depth_threshold: float = tunable(QUEUE_DEPTH_THRESHOLD, 0.5, 128.0, log=True)
    kv_cache_util_threshold: float = tunable(KV_CACHE_UTIL_THRESHOLD, 0.05, 2.0)
    power: float = tunable(5.0, 0.5, 10.0)
    k: float = tunable(300.0, 0.1, 10_000.0, log=True)
    protected_priority: int = PROTECTED_PRIORITY

    def __post_init__(self) -> None:
        check_positive(self, "queue_depth_threshold", "kv_cache_util_threshold", "power", "k")


class ProbabilisticAdmitterPolicy(Admitter, Configured[ProbabilisticAdmitterConfig]):
    """Refuses a sheddable request with probability min(saturation^power * k, 1).

    llm-d-router, `pkg/epp/framework/plugins/requestcontrol/admitter/probabilisticadmitter`, merged in 2026; found by
    evolution of programs in a simulator. With its defaults 1 % is refused at a saturation of 0.2 and all at 0.32.
    """

    name = "probabilistic_admitter"

    def judge(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Refuses a sheddable request by chance."""
        config = self.config
        if request.priority <= config.protected_priority:
            return None
        saturation = pool_saturation(state, config.queue_depth_threshold, config.kv_cache_util_threshold)
        return REJECT if self.rng.random() < min(saturation**config.power * config.k, 1.0) else None
