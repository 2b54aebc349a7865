"""What an environment's reward adds up, in named terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Objective:
    """Weights of the reward terms. Every term is reported whatever its weight.

    Attributes:
        latency: On minus the sum over requests of TTFT / SLO + TPOT / SLO, accrued while requests are in the system
            (Little's law), so that a decision's cost is seen in the interval it arises in.
        ttft_attainment: On minus the number of requests whose first token came later than promised, or never.
        tpot_attainment: On minus the number of requests whose tokens came slower than promised, or never.
        goodput: On the number of requests finished within both promises.
        switch: On minus the number of base engines that begin a reconfiguration.
        abandoned: On minus the number of requests refused, failed or unfinished at the end. With the two misses it
            makes giving up a request dearer than serving it late.
        gpu_usd: On minus the price of machines whose instances serve, start or drain, USD (autoscaling).
        startup_usd: On minus that part of it in which instances start: waste, counted once more.
        backlog_usd: On minus the price of the machine time that non-interactive requests take which stand in line when
            an episode ends, at the benchmarked capacity, USD.
        spot_rent_usd: On minus the price of machines that are leased to others as spot instances. 0: they are a sunk
            cost.
        spot_revenue_usd: On what spot instances earn, USD.
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
