"""The queue manager: when a non-interactive request leaves the queue, and for which endpoint (sections 6.1 and 6.2).

Every endpoint signals periodically while its effective memory utilisation is below a threshold; a signal pulls one
request of its model from the queue, or two below a lower threshold. The paper's readings that were open:

* A signal is for requests that stand in the queue when it comes; what it does not use lapses with the next.
* Where several endpoints of a model have signalled, the least utilised is served first.
* Section 4 serves a request also "when the SLA deadline for the request is approaching", section 6.2 does not say so:
  one that is about to miss its deadline does not wait for a signal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from serving_gym.baselines.sageserve.config import SageServeRoutingConfig
from serving_gym.envs.routing.state import RoutedRequest

Endpoint = tuple[str, str]  # model and region
_ROUNDING = 1e-9  # of a time that is a whole number of periods


class QueueManager:
    """Signals of endpoints and what they release.

    Args:
        config: Thresholds.
    """

    def __init__(self, config: SageServeRoutingConfig) -> None:
        self.config = config
        self._period = -1
        self._signalled_s = -math.inf
        self._grants: dict[Endpoint, int] = {}

    def signal_due(self, now_s: float) -> bool:
        """Whether a period has begun since endpoints last signalled."""
        return self._number(now_s) > self._period

    def receive(self, now_s: float, utilization: Mapping[Endpoint, float]) -> None:
        """Takes the signals of all endpoints.

        Args:
            now_s: When.
            utilization: Effective memory utilisation of each.
        """
        self._period, self._signalled_s = self._number(now_s), now_s
        ordered = sorted(utilization, key=utilization.__getitem__)
        self._grants = {endpoint: self.requests_for(utilization[endpoint]) for endpoint in ordered}

    def requests_for(self, utilization: float) -> int:
        """Requests that a signal releases."""
        if utilization < self.config.two_below_ratio:
            return 2
        return 1 if utilization < self.config.one_below_ratio else 0

    def release(self, request: RoutedRequest, model: str, regions: set[str]) -> str | None:
        """Region whose signal the request leaves the queue for; None: it stays.

        Args:
            request: It stands in the queue.
            model: Of the request.
            regions: Regions that can take it.
        """
        if not request.held_before or request.arrival_s > self._signalled_s:
            return None
        for endpoint, left in self._grants.items():
            if left and endpoint[0] == model and endpoint[1] in regions:
                self._grants[endpoint] = left - 1
                return endpoint[1]
        return None

    def overdue(self, request: RoutedRequest, now_s: float) -> bool:
        """Whether it is sent without a signal: its deadline, or its class's if that is earlier, approaches."""
        deadline_s = min(request.arrival_s + self.config.deadline_s, request.deadline_s)
        return deadline_s - now_s <= self.config.deadline_margin_s

    def priority(self, request: RoutedRequest, now_s: float) -> int:
        """Priority that its engine is to give it."""
        aged = now_s - request.arrival_s > self.config.aged_s or self.overdue(request, now_s)
        return self.config.aged_priority if aged else self.config.niw_priority

    def _number(self, now_s: float) -> int:
        return math.floor(now_s / self.config.signal_period_s + _ROUNDING)
