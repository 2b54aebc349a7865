"""Tier shedding: where an engine is overloaded, less important tiers are refused."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.admission.admitter import REJECT, Admitter
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_not_negative
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class TierShedConfig(Constants):
    """Constants of `TierShedPolicy`.

    Attributes:
        overload_threshold: Requests, running and waiting, above which an engine is overloaded. Default of inference-sim
            (BLIS), `tier_shed_threshold`: 0, any load.
        admit_priority: The last priority that is let in under overload. Source: ours, for priorities 0 (critical),
            1 (standard) and 2 (sheddable); inference-sim's `tier_shed_min_priority` of 3 lets in the same two.
    """

    overload_threshold: float = tunable(0.0, 0.0, 256.0)
    admit_priority: int = 1

    def __post_init__(self) -> None:
        check_not_negative(self, "overload_threshold")


class TierShedPolicy(Admitter, Configured[TierShedConfig]):
    """Refuses requests of a later priority where the most loaded engine is overloaded.

    inference-sim (BLIS), `sim/admission.go`, `tier-shed`: load is the largest number of requests, running and waiting,
    of any instance. Here by the gauges, as old as the last poll; priorities are vLLM's (the lower is served first).
    """

    name = "tier_shed"

    def judge(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Refuses a request of a later priority under overload."""
        gauges = state.engines
        load = (gauges["num_running"] + gauges["num_waiting"]).max()
        overloaded = load > self.config.overload_threshold
        return REJECT if overloaded and request.priority > self.config.admit_priority else None
