"""The serving capability of an instance, by what it was seen to do (section 4.1, Algorithm 1, lines 6 to 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Capability:
    """Most tokens/s of an instance in a window without a violated promise.

    Attributes:
        mu_p: Prompt tokens/s.
        mu_d: Response tokens/s.
        mu_t: Both together.
    """

    mu_p: float = 0.0
    mu_d: float = 0.0
    mu_t: float = 0.0

    def instances_for(self, prompt_tps: float, response_tps: float) -> int:
        """N, instances that a load needs (Algorithm 2, line 5), rounded up.

        A capability of zero has not been seen yet and sets no limit.

        Args:
            prompt_tps: Prompt tokens/s.
            response_tps: Response tokens/s.
        """
        loads = (prompt_tps, self.mu_p), (response_tps, self.mu_d), (prompt_tps + response_tps, self.mu_t)
        return max((math.ceil(load / most) for load, most in loads if most > 0), default=0)


def profile(
    prompt_tokens: ArrayLike,
    response_tokens: ArrayLike,
    violations: ArrayLike,
    instances: ArrayLike,
    window_s: float,
    before: Capability | None = None,
) -> Capability:
    """Updates a capability with what windows showed.

    The text profiles "the maximum throughput ... of all historical time windows for each instance": tokens of a window
    are divided by the instances that served them.

    Args:
        prompt_tokens: (T,) by window.
        response_tokens: (T,).
        violations: (T,) requests that missed a promise; only windows without any count.
        instances: (T,) instances that served, on average; windows without any do not count.
        window_s: Length of a window, seconds.
        before: What is known already; None: nothing.
    """
    p, d, n = (np.asarray(values, np.float64) for values in (prompt_tokens, response_tokens, instances))
    counts = (np.asarray(violations) == 0) & (n > 0)
    known = before or Capability()
    if not counts.any():
        return known
    seconds = n[counts] * window_s
    p, d = p[counts] / seconds, d[counts] / seconds
    return Capability(
        max(known.mu_p, float(p.max())),
        max(known.mu_d, float(d.max())),
        max(known.mu_t, float((p + d).max())),
    )
