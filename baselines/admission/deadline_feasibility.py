"""Deadline feasibility: a request that can no longer keep its promises is refused."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.admission.admitter import REJECT, Admitter
from serving_gym.baselines.common.routers.latency_model import LatencyModel
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_not_negative
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class DeadlineFeasibilityConfig(Constants):
    """Constants of `DeadlineFeasibilityPolicy`; source: ours.

    Attributes:
        ttft_margin: Factor on the predicted time to the first token, which must not exceed what is left of it.
        tpot_margin: Factor on the predicted time per output token, which must not exceed its promise.
        protected_priority: The last priority that is never refused; -1: none is (priorities from 0 on).
    """

    ttft_margin: float = tunable(1.0, 0.0, 8.0)
    tpot_margin: float = tunable(1.0, 0.0, 2.0)
    protected_priority: int = -1

    def __post_init__(self) -> None:
        check_not_negative(self, "ttft_margin", "tpot_margin")


class DeadlineFeasibilityPolicy(Admitter, Configured[DeadlineFeasibilityConfig]):
    """Refuses a request that no engine is expected to answer in time, whenever it is offered.

    As llm-d's `latency-slo-admitter` (llm-d-router, `requestcontrol/admitter/latencyslo`): refused where no endpoint is
    predicted to keep both promises and none is idle. Departures: latencies come from `LatencyModel` instead of a model
    trained on past requests; all priorities can be refused, not the sheddable alone; a request in the queue is looked
    at again at each retry, with what is left of its deadline.
    """

    name = "deadline_feasibility"
    once = False

    def begin(self) -> None:
        """Takes the engines' nominal speeds."""
        self._model = LatencyModel(self.spec.fleet)

    def judge(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Refuses what cannot make it."""
        if request.priority <= self.config.protected_priority or not state.can_take.any():
            return None
        ttft_s, tpot_s = self._model.predict(state, request, request.cached_tokens)
        left_s = request.deadline_s - state.now_s
        in_time = self.config.ttft_margin * ttft_s <= left_s
        in_time &= self.config.tpot_margin * tpot_s <= self.spec.slos[request.class_id].tpot_s
        idle = (state.engines["num_running"] + state.engines["num_waiting"]) == 0
        return None if (state.can_take & (in_time | (idle & (left_s > 0)))).any() else REJECT
