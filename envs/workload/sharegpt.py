"""ShareGPT as PreServe measures it (section 3.1.2) under Poisson arrivals (section 5.4).

The paper gives the 5th, 50th and 95th percentile of prompt and response lengths. Between and beyond them the logarithm
of a length is taken to be normal, with a spread of its own below the median and above it: the one curve through three
given points that a log-normal distribution comes to. Source of the shape, of the longest lengths and of the
independence of prompt and response: ours (in 10,000 conversations of ShareGPT their correlation is 0.03).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from serving_gym.calibration.fields import check_at_least, check_positive
from serving_gym.envs.workload.schema import FloatArray, TokenArray, Workload

Quantiles = tuple[float, float, float]

TAIL = 0.05  # the outer quantiles are this far from the ends


@dataclass(frozen=True)
class ShareGPTTraffic:
    """Poisson arrivals of ShareGPT-like conversations, each of one turn.

    Attributes:
        arrival_rate_rps: arrival rate, requests per second. Source: ours; the workload's ``rate_rps`` scales it.
        input_tokens: 5th, 50th and 95th percentile of prompt lengths, tokens. Paper: 7, 52, 911 (section 3.1.2).
        output_tokens: the same of response lengths, tokens. Paper: 5, 87, 632 (section 3.1.2).
        longest_input_tokens: longest prompt; longer draws are cut to it. Source: ours: Llama-2's context of 4096 tokens
            less the longest response.
        longest_output_tokens: longest response, and what every request declares. Source: ours.
        name: what its workloads are called.
        num_requests: default length of an episode, requests.
    """

    arrival_rate_rps: float = 10.0
    input_tokens: Quantiles = (7.0, 52.0, 911.0)
    output_tokens: Quantiles = (5.0, 87.0, 632.0)
    longest_input_tokens: int = 3072
    longest_output_tokens: int = 1024
    name: str = "sharegpt_poisson"
    num_requests: int = 4000

    def __post_init__(self) -> None:
        check_positive(self, "arrival_rate_rps", finite=True)
        for field_name in ("input_tokens", "output_tokens"):
            self._check_quantiles(field_name)
        check_at_least(self, 1, "num_requests")

    @property
    def rate_rps(self) -> float:
        """Mean arrival rate, requests per second."""
        return self.arrival_rate_rps

    @property
    def classes(self) -> tuple[str, ...]:
        """One class."""
        return ("standard",)

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt in tokens."""
        return self.longest_input_tokens

    @property
    def max_output_tokens(self) -> int:
        """Longest output in tokens."""
        return self.longest_output_tokens

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload; a longer one drawn from the same stream begins with the shorter one."""
        arrivals, inputs, outputs = rng.spawn(3)
        return Workload(
            arrival_s=np.cumsum(arrivals.standard_exponential(num_requests)) / self.arrival_rate_rps,
            input_tokens=_lengths(
                self.input_tokens, self.longest_input_tokens, inputs.standard_normal(num_requests)
            ),
            output_tokens=_lengths(
                self.output_tokens, self.longest_output_tokens, outputs.standard_normal(num_requests)
            ),
            max_output_tokens=np.full(num_requests, self.longest_output_tokens, dtype=np.int32),
            name=self.name,
            provenance="synthetic; quantiles of ShareGPT from PreServe, section 3.1.2; the rest is ours",
        )

    def _check_quantiles(self, field_name: str) -> None:
        given = getattr(self, field_name)
        longest = getattr(self, f"longest_{field_name}")
        try:
            low, middle, high = (float(value) for value in given)
        except (TypeError, ValueError):
            raise ValueError(
                f"{field_name} must be three quantiles [5 %, 50 %, 95 %], got {given!r}"
            ) from None
        if not 1 <= low < middle < high <= longest:
            raise ValueError(
                f"{field_name} must rise from at least 1 to at most longest_{field_name} = {longest}, got {given!r}"
            )
        object.__setattr__(self, field_name, (low, middle, high))


def _lengths(quantiles: Quantiles, longest: int, noise: FloatArray) -> TokenArray:
    """Lengths (n,), tokens, from standard normal noise."""
    low, middle, high = np.log(quantiles)
    reach = -float(ndtri(TAIL))
    spread = np.where(noise < 0, middle - low, high - middle) / reach
    drawn = np.rint(np.exp(middle + spread * noise))
    return np.clip(drawn, 1, longest).astype(np.int32)


def sharegpt_poisson(**changes: object) -> ShareGPTTraffic:
    """PreServe's requests, section 5.4."""
    return ShareGPTTraffic(**changes)  # type: ignore[arg-type]
