"""Reactive scaling (sections 4 and 7.1): what SageServe is compared with.

Above 70 % of effective memory utilisation an instance is added, below 30 % one is donated, with 15 s between two events
at an endpoint. Unified: one pool of instances for all requests. Siloed: interactive and non-interactive requests have
instances of their own, each pool scaled by itself. Decisions are "made per request"; here, when the environment asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from serving_gym.baselines.common.autoscaler import Autoscaler
from serving_gym.baselines.policy import Configured
from serving_gym.baselines.sageserve.autoscaling_config import ReactiveConfig
from serving_gym.baselines.sageserve.spot import Stock, bring_in, give_away
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint, Pool, ScaleChange


def reaction(utilization: float, config: ReactiveConfig) -> int:
    """Change of the number of instances, -1, 0 or 1.

    Args:
        utilization: Effective memory utilisation.
        config: Thresholds.
    """
    if utilization > config.out_above_ratio:
        return 1
    return -1 if utilization < config.in_below_ratio else 0


class ReactivePolicy(Autoscaler, Configured[ReactiveConfig]):
    """Reactive scaling by effective memory utilisation.

    Each pool keeps within the setting's fewest and most instances. Where none of its instances runs yet there is no
    utilisation to react to.
    """

    name = "sageserve_reactive"

    @property
    def period_s(self) -> float:
        """Time between decisions."""
        return self.config.period_s

    def begin(self) -> None:
        """Forgets when it acted."""
        self._acted_s: dict[tuple[Endpoint, Pool], float] = {}

    def decide(self, state: AutoscalingState) -> Iterable[ScaleChange]:
        """Reacts at every endpoint and pool whose cooldown is over."""
        stock = Stock.of(state)
        pools = (Pool.INTERACTIVE, Pool.BATCH) if self.config.siloed else (Pool.MIXED,)
        for endpoint in state.endpoints:
            for pool in pools:
                key = (endpoint.endpoint, pool)
                if state.now_s - self._acted_s.get(key, -math.inf) < self.config.cooldown_s:
                    continue
                changes = tuple(self._react(stock, endpoint, pool))
                if changes:
                    self._acted_s[key] = state.now_s
                yield from changes
            if self.config.siloed:
                yield from self._dissolve(endpoint)

    def _dissolve(self, endpoint: EndpointState) -> Iterable[ScaleChange]:
        """Gives away what belongs to neither pool, as at the start, once both pools have their fewest instances."""
        pools = endpoint.running["pool"]
        fewest = max(self.spec.min_instances, 1)
        if all((pools == pool).sum() >= fewest for pool in (Pool.INTERACTIVE, Pool.BATCH)):
            rows = endpoint.running[pools == Pool.MIXED]
            yield from give_away(endpoint, len(rows), rows)

    def _react(self, stock: Stock, endpoint: EndpointState, pool: Pool) -> Iterable[ScaleChange]:
        of_pool = endpoint.present["pool"] == pool
        rows = endpoint.present[of_pool] if self.config.siloed else endpoint.present
        utilization = endpoint.utilization(pool if self.config.siloed else None)
        change = reaction(utilization, self.config)
        if len(rows) < self.spec.min_instances:
            yield from bring_in(
                self.spec, stock, endpoint.endpoint, self.spec.min_instances - len(rows), pool=pool
            )
        elif change > 0 and len(rows) < self.spec.max_instances and math.isfinite(utilization):
            yield from bring_in(self.spec, stock, endpoint.endpoint, 1, pool=pool)
        elif change < 0 and len(rows) > self.spec.min_instances:
            yield from give_away(endpoint, 1, rows)
