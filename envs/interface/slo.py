"""SLOs of request classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SLO:
    """Latency SLO of a request class.

    Attributes:
        ttft_s: Longest time to the first token, s.
        tpot_s: Longest mean time of a token after the first, s.
    """

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"slo.{name} must be positive, got {getattr(self, name)}")

    def ttft_limits_s(self, input_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """TTFT SLOs of requests by prompt length, (N,) seconds."""
        return np.full(len(input_tokens), self.ttft_s)


@dataclass(frozen=True)
class LengthSLO(SLO):
    """Latency SLO whose TTFT grows with the prompt: max(ttft_s, ttft_s_per_token * input).

    Attributes:
        ttft_s_per_token: Time for each token of the prompt, s.
    """

    ttft_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ttft_s_per_token < float("inf"):
            raise ValueError(
                f"slo.ttft_s_per_token must be finite and not negative, got {self.ttft_s_per_token}"
            )

    def ttft_limits_s(self, input_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """TTFT SLOs of requests by prompt length, (N,) seconds."""
        return np.maximum(self.ttft_s, self.ttft_s_per_token * input_tokens)


def promises(slos: Mapping[str, SLO], classes: Sequence[str]) -> tuple[SLO, ...]:
    """SLOs in the order of the workload's classes.

    Raises:
        ValueError: a class has no SLO.
    """
    missing = [name for name in classes if name not in slos]
    if missing:
        raise ValueError(f"slos has no entry for class {missing[0]!r}; it has {', '.join(slos) or 'none'}")
    return tuple(slos[name] for name in classes)
