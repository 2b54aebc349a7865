"""Overload: requests of three tiers, more than can be served, in bursts.

Lengths are those of Azure's chat service of 2023, from the generator fitted to it. Tiers and their names are those of
inference-sim (BLIS) and of llm-d's objectives; loads, shares and bursts are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.fields import check_at_least, check_positive
from serving_gym.envs.workload.generators import load_fitted
from serving_gym.envs.workload.schema import FloatArray, Workload

TIERS = ("critical", "standard", "sheddable")  # in the order of their priorities: 0 is served first
_LENGTHS = "azure_conv_fitted"
_PHASES_PER_DRAW = 32


@dataclass(frozen=True)
class OverloadTraffic:
    """Poisson arrivals whose rate switches between quiet and burst; each episode draws its mean load.

    Attributes:
        served_rps: Requests a second that the cluster serves within its SLOs. Default: four H100 with Llama-3.1-8B.
        load: Range of an episode's mean rate over `served_rps`, drawn uniformly.
        shares: Share of the requests by tier (`TIERS`); scaled to sum to 1.
        burst_factor: Rate of a burst over that of a quiet phase.
        quiet_s: Mean length of a quiet phase, seconds (exponential).
        burst_s: Mean length of a burst, seconds (exponential).
        num_requests: Default length of an episode, requests.
    """

    served_rps: float = 100.0
    load: tuple[float, float] = (1.1, 2.0)
    shares: Mapping[str, float] = field(
        default_factory=lambda: dict(zip(TIERS, (0.3, 0.3, 0.4), strict=True))
    )
    burst_factor: float = 2.0
    quiet_s: float = 4.0
    burst_s: float = 2.0
    num_requests: int = 4000

    name: ClassVar[str] = "overload_tiers"

    def __post_init__(self) -> None:
        check_positive(self, "served_rps", "quiet_s", "burst_s", finite=True)
        check_at_least(self, 1, "burst_factor", finite=True)
        check_at_least(self, 1, "num_requests")
        if len(self.load) != 2 or not 0 < self.load[0] <= self.load[1] < np.inf:
            raise ValueError(f"load must be a range of positive numbers, got {list(self.load)}")
        if tuple(sorted(self.shares)) != tuple(sorted(TIERS)):
            raise ValueError(
                f"shares must name each of {', '.join(TIERS)} once, got {', '.join(self.shares)}"
            )
        if (
            not all(0 <= share < np.inf for share in self.shares.values())
            or not sum(self.shares.values()) > 0
        ):
            raise ValueError(f"shares must not be negative and not all 0, got {dict(self.shares)}")

    @property
    def classes(self) -> tuple[str, ...]:
        """The tiers."""
        return TIERS

    @property
    def rate_rps(self) -> float:
        """Long-run mean arrival rate over episodes, requests per second."""
        return self.served_rps * float(np.mean(self.load))

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt in tokens."""
        return load_fitted(_LENGTHS).max_input_tokens

    @property
    def max_output_tokens(self) -> int:
        """Longest output in tokens."""
        return load_fitted(_LENGTHS).max_output_tokens

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload that begins with a quiet phase."""
        load, phases, arrivals, first, second, tiers = rng.spawn(6)
        rate_rps = self.served_rps * float(load.uniform(*self.load))
        inputs, outputs = load_fitted(_LENGTHS).lengths(num_requests, first, second)
        shares = np.array([self.shares[name] for name in TIERS], float)
        tier = np.searchsorted(np.cumsum(shares) / shares.sum(), tiers.random(num_requests), side="right")
        tier_id: NDArray[np.int32] = np.minimum(tier, len(TIERS) - 1).astype(np.int32)
        return Workload(
            arrival_s=self._arrivals(num_requests, rate_rps, phases, arrivals),
            input_tokens=inputs,
            output_tokens=outputs,
            max_output_tokens=np.full(num_requests, self.max_output_tokens, np.int32),
            priority=tier_id,
            class_id=tier_id.copy(),
            classes=TIERS,
            name=self.name,
            provenance="generated; lengths fitted to Azure's chat service of 2023, the rest is ours",
        )

    def _arrivals(
        self, number: int, rate_rps: float, phases: np.random.Generator, arrivals: np.random.Generator
    ) -> FloatArray:
        """Arrival times, (number,) seconds: unit-rate Poisson times through the inverse of the cumulative rate."""
        expected = np.cumsum(arrivals.standard_exponential(number))
        times, cumulative = np.zeros(1), np.zeros(1)
        while cumulative[-1] < expected[-1]:
            durations, rates = self._phases(rate_rps, phases)
            times = np.concatenate([times, times[-1] + np.cumsum(durations)])
            cumulative = np.concatenate([cumulative, cumulative[-1] + np.cumsum(durations * rates)])
        arrival_s: FloatArray = np.interp(expected, cumulative, times)
        return arrival_s - arrival_s[0]

    def _phases(self, rate_rps: float, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Durations in seconds and rates in requests per second of the next phases, quiet and burst in turn."""
        mean = (self.quiet_s + self.burst_factor * self.burst_s) / (self.quiet_s + self.burst_s)
        quiet_rps = rate_rps / mean
        durations = rng.standard_exponential((_PHASES_PER_DRAW, 2)) * (self.quiet_s, self.burst_s)
        rates = np.tile((quiet_rps, self.burst_factor * quiet_rps), _PHASES_PER_DRAW)
        return durations.ravel(), rates
