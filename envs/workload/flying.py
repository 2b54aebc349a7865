"""Synthetic workloads of Flying Serving (sections 6.1.3, 6.3 and 6.5).

The paper gives the arrival rates and the number of requests. It does not give (or its text has lost) the
ranges of the lengths, how long a phase lasts, the share of priority requests and the share of long ones:
those defaults are ours and are marked so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.calibration.fields import check_at_least
from serving_gym.envs.workload.schema import FloatArray, Workload

Range = tuple[float, float]

# Ours: GPT-OSS-120B's context of 131,072 tokens (section 6.5) less the longest answer, so that the request
# can be served.
LONG_INPUT_TOKENS = 131072 - 512
PRIORITY_SHARE = 0.2
LONG_SHARE = 0.02

_CYCLES_PER_DRAW = 16


@dataclass(frozen=True)
class FlyingTraffic:
    """Poisson arrivals whose rate is redrawn phase by phase; uniform lengths.

    Low phases and bursts alternate, beginning with a low one; without bursts every phase is a low one. Each
    phase draws its duration and its rate uniformly.

    Attributes:
        name: name of its workloads.
        low_rate_rps: range of the rate of a low phase, requests per second. Paper: 2 to 5 (section 6.1.3).
        low_duration_s: range of the length of a low phase, seconds. Source: ours.
        burst_rate_rps: range of the rate of a burst, requests per second; None for no bursts. Paper: 10 to
            30.
        burst_duration_s: range of the length of a burst, seconds. Source: ours.
        input_tokens: range of the prompt length, tokens, both ends included. Paper: uniform; source of the
            range: ours.
        output_tokens: range of the output length, tokens, both ends included. Paper: uniform; source of the
            range: ours.
        num_requests: default length of an episode, requests. Paper: 4000.
    """

    name: str = "flying_bursty"
    low_rate_rps: Range = (2.0, 5.0)
    low_duration_s: Range = (40.0, 80.0)
    burst_rate_rps: Range | None = (10.0, 30.0)
    burst_duration_s: Range = (15.0, 40.0)
    input_tokens: tuple[int, int] = (512, 4096)
    output_tokens: tuple[int, int] = (64, 512)
    num_requests: int = 4000

    def __post_init__(self) -> None:
        for field_name in ("low_rate_rps", "low_duration_s", "burst_rate_rps", "burst_duration_s"):
            self._check_range(field_name, least=1e-9)
        for field_name in ("input_tokens", "output_tokens"):
            self._check_range(field_name, least=1)
            if any(int(bound) != bound for bound in getattr(self, field_name)):
                raise ValueError(
                    f"{field_name} must be a range of whole numbers, got {getattr(self, field_name)!r}"
                )
        check_at_least(self, 1, "num_requests")

    @property
    def classes(self) -> tuple[str, ...]:
        """One class."""
        return ("standard",)

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt in tokens."""
        return int(self.input_tokens[1])

    @property
    def max_output_tokens(self) -> int:
        """Longest output in tokens."""
        return int(self.output_tokens[1])

    @property
    def rate_rps(self) -> float:
        """Long-run mean rate: mean requests of a cycle over its mean duration, requests per second."""
        phases = [(self.low_rate_rps, self.low_duration_s)]
        phases += [] if self.burst_rate_rps is None else [(self.burst_rate_rps, self.burst_duration_s)]
        requests = sum(float(np.mean(rate)) * float(np.mean(duration)) for rate, duration in phases)
        return requests / sum(float(np.mean(duration)) for _, duration in phases)

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload that starts with a low phase."""
        phases, arrivals, inputs, outputs = rng.spawn(4)
        return Workload(
            arrival_s=self._arrivals(num_requests, phases, arrivals),
            input_tokens=inputs.integers(
                *self.input_tokens, size=num_requests, dtype=np.int32, endpoint=True
            ),
            output_tokens=outputs.integers(
                *self.output_tokens, size=num_requests, dtype=np.int32, endpoint=True
            ),
            max_output_tokens=np.full(num_requests, self.max_output_tokens, dtype=np.int32),
            name=self.name,
            provenance="synthetic; Flying Serving, section 6; what the paper does not state is ours",
        )

    def phase_edges_s(self, num_requests: int, rng: np.random.Generator) -> FloatArray:
        """Where the phases of a workload begin and end, (phases + 1,) seconds; the first is a low one.

        Args:
            num_requests: as given to `sample`.
            rng: a generator in the state in which `sample` was given one.
        """
        phases, arrivals, *_ = rng.spawn(4)
        durations, _ = self._phases(float(arrivals.standard_exponential(num_requests).sum()), phases)
        edges: FloatArray = np.concatenate([[0.0], np.cumsum(durations)])
        return edges

    def _arrivals(self, n: int, phases: np.random.Generator, arrivals: np.random.Generator) -> FloatArray:
        """Arrival times (n,): unit-rate Poisson times mapped through the inverse of the cumulative rate."""
        expected = np.cumsum(arrivals.standard_exponential(n))
        durations, rates = self._phases(float(expected[-1]), phases)
        times = np.concatenate([[0.0], np.cumsum(durations)])
        cumulative = np.concatenate([[0.0], np.cumsum(durations * rates)])
        arrival_s: FloatArray = np.interp(expected, cumulative, times)
        return arrival_s

    def _phases(self, requests: float, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Durations in seconds and rates in requests per second of enough phases for so many expected requests."""
        durations, rates = np.empty(0), np.empty(0)
        while durations @ rates < requests:
            more_durations, more_rates = self._draw_phases(rng)
            durations = np.concatenate([durations, more_durations])
            rates = np.concatenate([rates, more_rates])
        return durations, rates

    def _draw_phases(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Durations in seconds and rates in requests per second of the next phases."""
        low_phase = (self.low_duration_s, self.low_rate_rps)
        other = low_phase if self.burst_rate_rps is None else (self.burst_duration_s, self.burst_rate_rps)
        ranges = np.array([low_phase, other])
        share = rng.random((_CYCLES_PER_DRAW, 2, 2))
        drawn = ranges[..., 0] + share * (ranges[..., 1] - ranges[..., 0])
        return drawn[..., 0].ravel(), drawn[..., 1].ravel()

    def _check_range(self, field_name: str, least: float) -> None:
        given = getattr(self, field_name)
        if given is None and field_name == "burst_rate_rps":
            return
        try:
            low, high = (float(bound) for bound in given)
        except (TypeError, ValueError):
            raise ValueError(
                f"{field_name} must be a range of two numbers [low, high], got {given!r}"
            ) from None
        if not least <= low <= high < np.inf:
            raise ValueError(f"{field_name} must be a range with {least:g} <= low <= high, got {given!r}")
        object.__setattr__(self, field_name, tuple(given))


def bursty(**changes: object) -> FlyingTraffic:
    """Section 6.1.3: low load of 2 to 5 requests per second alternates with bursts of 10 to 30."""
    return FlyingTraffic(**{"name": "flying_bursty", **changes})  # type: ignore[arg-type]


def priority(**changes: object) -> FlyingTraffic:
    """Section 6.3: 3 to 5 requests per second, redrawn every 20 to 40 s (ours); priorities are mixed in."""
    defaults = {"name": "flying_priority", "low_rate_rps": (3.0, 5.0), "low_duration_s": (20.0, 40.0)}
    return FlyingTraffic(**{**defaults, "burst_rate_rps": None, **changes})  # type: ignore[arg-type]


def long(**changes: object) -> FlyingTraffic:
    """Section 6.5: low load (2 to 5 requests per second, ours), into which long prompts are mixed."""
    return FlyingTraffic(**{"name": "flying_long", "burst_rate_rps": None, **changes})  # type: ignore[arg-type]
