"""Weights of the reward terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Objective:
    """Weights of the reward terms. Every term is reported whatever its weight.

    Attributes:
        latency: Weight of minus the sum over requests of TTFT / SLO + TPOT / SLO, accrued while they are in the system
            (Little's law), so that the cost of a decision is charged in the interval in which it arises.
        ttft_attainment: Weight of minus the number of requests that miss their TTFT SLO.
        tpot_attainment: Weight of minus the number of requests that miss their TPOT SLO.
        goodput: Weight of the number of requests finished within both SLOs.
        switch: Weight of minus the number of base engines that begin a reconfiguration.
        abandoned: Weight of minus the number of requests refused, failed or unfinished at the end. With the two
            SLO misses, giving up a request costs more than serving it late.
        gpu_usd: Weight of minus the price of machines whose instances serve, start or drain, USD (autoscaling).
        startup_usd: Weight of minus the part of `gpu_usd` during which instances start, in addition.
        backlog_usd: Weight of minus the price of the machine time of non-interactive requests that are queued when
            an episode ends, at the benchmarked capacity, USD.
        spot_rent_usd: Weight of minus the price of machines that are leased to others as spot instances. 0: a sunk
            cost.
        spot_revenue_usd: Weight of the revenue of spot instances, USD.
        scale: Factor on the whole reward.
    """

    latency: float = 1.0
    ttft_attainment: float = 1.0
    tpot_attainment: float = 1.0
    goodput: float = 0.0
    switch: float = 0.02
    abandoned: float = 100.0
    gpu_usd: float = 0.0
    startup_usd: float = 0.0
    backlog_usd: float = 0.0
    spot_rent_usd: float = 0.0
    spot_revenue_usd: float = 0.0
    scale: float = 0.1

    def __post_init__(self) -> None:
        for item in fields(self):
            if not 0 <= getattr(self, item.name) < math.inf:
                raise ValueError(
                    f"objective.{item.name} must be finite and not negative, got {getattr(self, item.name)}"
                )
