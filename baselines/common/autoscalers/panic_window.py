"""Knative's pod autoscaler (KPA): requests inside, averaged over a stable and over a panic window.

As its autoscaler computes: of each window's mean the replicas that are wanted, within the rates at which scaling out
and in may go; where the panic window wants a multiple of what is ready, panic begins, in which the number only grows;
it ends when for a stable window there has been no reason for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive, check_within
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint


@dataclass(frozen=True)
class PanicWindowConfig(Constants):
    """Constants of `PanicWindowPolicy`.

    Attributes:
        concurrency: Requests inside that an instance can take. Source: ours; Knative's default is 100.
        utilization: Share of them that is aimed at. Source: Knative (70 %).
        stable_s: Stable window. Source: Knative (60 s).
        panic_s: Panic window. Source: Knative (10 % of it, 6 s).
        panic_threshold: Wanted over ready replicas from which there is panic. Source: Knative (200 %).
        max_out_rate: Most times the ready replicas that may be wanted. Source: Knative (1000).
        max_in_rate: The ready replicas may at most be divided by this at once. Source: Knative (2).
        tick_s: Between two decisions. Source: Knative (`tick-interval`, 2 s).
    """

    concurrency: float = tunable(64.0, 1.0, 512.0, log=True)
    utilization: float = 0.7
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_threshold: float = tunable(2.0, 1.1, 10.0, log=True)
    max_out_rate: float = 1000.0
    max_in_rate: float = tunable(2.0, 1.1, 10.0, log=True)
    tick_s: float = 2.0

    def __post_init__(self) -> None:
        check_positive(self, "concurrency", "tick_s")
        check_within(self, "(0, 1]", "utilization")
        if not 0 < self.panic_s <= self.stable_s:
            raise ValueError(f"panic_s must lie between 0 and stable_s ({self.stable_s}), got {self.panic_s}")
        for name in ("panic_threshold", "max_out_rate", "max_in_rate"):
            if not getattr(self, name) > 1:
                raise ValueError(f"{name} must be above 1, got {getattr(self, name)}")


@dataclass
class Panic:
    """Whether there is panic at an endpoint.

    Attributes:
        since_s: When there was a reason for it last; None: there is none.
        most: Most replicas that were wanted in it.
    """

    since_s: float | None = None
    most: int = 0


def replicas(
    now_s: float, ready: int, stable: float, burst: float, panic: Panic, config: PanicWindowConfig
) -> int:
    """Replicas that are wanted; `panic` is brought up to date.

    Args:
        now_s: When.
        ready: Instances that serve.
        stable: Mean number of requests inside over the stable window.
        burst: Over the panic window.
        panic: Of the endpoint.
        config: Constants.
    """
    each = config.concurrency * config.utilization
    serving = max(ready, 1)
    lowest, highest = math.floor(ready / config.max_in_rate), math.ceil(config.max_out_rate * serving)
    by_panic = math.ceil(burst / each)
    wanted = min(max(math.ceil(stable / each), lowest), highest)
    wanted_in_panic = min(max(by_panic, lowest), highest)
    over = by_panic / serving >= config.panic_threshold
    if over:
        panic.since_s = now_s
    elif panic.since_s is not None and panic.since_s + config.stable_s < now_s:
        panic.since_s, panic.most = None, 0
    if panic.since_s is None:
        return wanted
    panic.most = max(panic.most, wanted, wanted_in_panic)
    return panic.most


class PanicWindowPolicy(EndpointAutoscaler, Configured[PanicWindowConfig]):
    """The KPA, by the mean number of requests inside (waiting ones included) that the gateway counted."""

    name = "kpa"

    @property
    def period_s(self) -> float:
        """Time between decisions."""
        return self.config.tick_s

    def begin(self) -> None:
        """There is no panic."""
        self._panics: dict[Endpoint, Panic] = {}

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """Replicas by both windows; what there is, before anything was counted."""
        recent = endpoint.recent
        if not len(recent):
            return len(endpoint.present)
        stable, burst = (
            float(recent.last(seconds)["mean_concurrency"].mean())
            for seconds in (self.config.stable_s, self.config.panic_s)
        )
        panic = self._panics.setdefault(endpoint.endpoint, Panic())
        return replicas(state.now_s, len(endpoint.running), stable, burst, panic, self.config)
