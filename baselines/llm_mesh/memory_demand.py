"""Output lengths that the KV demand of an instance is reckoned with (LLM-Mesh, section 6.1, equation 2).

    M_require = C * max(sum_r (I_r + max(O_r, mean O)), L_min)

Output lengths are not known beforehand: each is taken to be the mean of those that have finished, or what has been
generated where that is more already. The node's memory manager adds them up (`envs.simulator.sharing.manager`).
"""

from __future__ import annotations

from collections import defaultdict


class OutputLengths:
    """Running mean of the output lengths of each model.

    Before a model's first request is done its mean is that of all models, and before any is done the given one: the
    paper's historical logs are older than a run.

    Args:
        initial_tokens: Mean while nothing is known.
    """

    def __init__(self, initial_tokens: float) -> None:
        if not initial_tokens >= 1:
            raise ValueError(f"initial_tokens must be at least 1, got {initial_tokens}")
        self._initial = initial_tokens
        self._tokens: dict[int, float] = defaultdict(float)
        self._requests: dict[int, int] = defaultdict(int)
        self._all_tokens, self._all_requests = 0.0, 0

    def note(self, model: int, output_tokens: int) -> None:
        """A request of a model is done."""
        self._tokens[model] += output_tokens
        self._requests[model] += 1
        self._all_tokens += output_tokens
        self._all_requests += 1

    def mean(self, model: int) -> float:
        """Mean output length of a model, tokens."""
        if self._requests[model]:
            return self._tokens[model] / self._requests[model]
        return self._all_tokens / self._all_requests if self._all_requests else self._initial
