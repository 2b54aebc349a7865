"""The load anticipator of one instance, as section 4.3.1 keeps it: a map that events change.

At the end of an engine iteration come, in this order, `prefill_complete` and `done` of the requests that ended their
prefill or their answer in it, and `iteration`, which drops the iteration from the map. Iteration 0 of a request is the
one that completes its prefill and yields its first token, so that after `iteration` a request that has generated g
tokens is about to hold the KV of its prompt and of these g: entry i = g of the text's P + i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

EXTENSION_RATIO = 0.2  # section 4.3.1


@njit(cache=True)
def extended(length: int, extension_ratio: float) -> int:
    """Response length, tokens, that is reckoned with once a request has outlived the one before.

    Whole tokens are rounded up, so that an extension is at least one. Source of the rounding: ours.
    """
    return length + max(1, math.ceil(extension_ratio * length))


@dataclass(slots=True)
class _Request:
    prompt_tokens: int
    response_tokens: int  # predicted, extensions included
    generated_tokens: int = -1  # before its prefill is complete


class LoadAnticipator:
    """The load-look-ahead map of an instance: KV tokens over the next iterations by what is predicted of its requests.

    Args:
        capacity_tokens: KV tokens that the instance holds, M.
        length: Iterations that the map covers, L: the most output tokens of the LLM.
        extension_ratio: Share of the present response length by which a late request is extended, section 4.3.1.
            The text writes 0.2 of the true length, which nobody knows before the end: the present one is meant.
    """

    def __init__(
        self, capacity_tokens: int, length: int = 4096, extension_ratio: float = EXTENSION_RATIO
    ) -> None:
        self.capacity_tokens = capacity_tokens
        self.extension_ratio = extension_ratio
        self._tokens = np.zeros(length, np.int64)  # a ring: entry i is of the i-th iteration from `_next` on
        self._next = 0
        self._requests: dict[int, _Request] = {}

    def sent(self, request: int, prompt_tokens: int, predicted_tokens: int) -> None:
        """A request has been sent to the instance: the map does not know it before its prefill is complete.

        Raises:
            ValueError: its predicted response is longer than any the map is made for.
        """
        if predicted_tokens > len(self._tokens):
            raise ValueError(
                f"predicted_tokens must be at most the map's length {len(self._tokens)}, got {predicted_tokens}"
            )
        self._requests[request] = _Request(prompt_tokens, max(predicted_tokens, 1))

    def prefill_complete(self, request: int) -> None:
        """The present iteration has completed its prefill: adds P + i for i in [0, D)."""
        row = self._requests[request]
        row.generated_tokens = 0
        self._add(row.prompt_tokens, row.response_tokens)

    def done(self, request: int) -> None:
        """The present iteration has given its last token: subtracts what was predicted to follow."""
        row = self._requests.pop(request)
        after = row.generated_tokens + 1
        self._add(row.prompt_tokens + after, row.response_tokens - after, offset=1, sign=-1)

    def iteration(self) -> None:
        """The present iteration ends with one more token for every request in its decode phase.

        One that was predicted to end with it and has not is extended, from the next iteration on.
        """
        for row in self._requests.values():
            if row.generated_tokens < 0:
                continue
            row.generated_tokens += 1
            if row.generated_tokens == row.response_tokens:
                row.response_tokens = extended(row.response_tokens, self.extension_ratio)
                rest = row.response_tokens - row.generated_tokens
                self._add(row.prompt_tokens + row.generated_tokens, rest, offset=1)
        self._tokens[self._next] = 0
        self._next = (self._next + 1) % len(self._tokens)

    def tokens(self, lookahead: int, prompt_tokens: int = 0, predicted_tokens: int = 0) -> NDArray[np.int64]:
        """KV tokens over the next iterations, (lookahead,), with a request virtually added.

        Args:
            lookahead: l, iterations.
            prompt_tokens: Prompt of a request whose prefill is taken to be complete with the next iteration.
            predicted_tokens: Its predicted response; 0: none is added.
        """
        places = (self._next + np.arange(lookahead)) % len(self._tokens)
        ahead = self._tokens[places]
        reach = min(predicted_tokens, lookahead)
        ahead[:reach] += prompt_tokens + np.arange(reach)
        return ahead

    def usage(self, lookahead: int, prompt_tokens: int = 0, predicted_tokens: int = 0) -> NDArray[np.float64]:
        """The same as a share of the capacity, U, (lookahead,)."""
        usage: NDArray[np.float64] = (
            self.tokens(lookahead, prompt_tokens, predicted_tokens) / self.capacity_tokens
        )
        return usage

    @property
    def queued_prompt_tokens(self) -> int:
        """Prompt tokens of requests whose prefill is not complete."""
        return sum(row.prompt_tokens for row in self._requests.values() if row.generated_tokens < 0)

    @property
    def remaining_tokens(self) -> int:
        """Tokens yet to be generated, as predicted, of all its requests."""
        return sum(row.response_tokens - max(row.generated_tokens, 0) for row in self._requests.values())

    def _add(self, first_tokens: int, iterations: int, offset: int = 0, sign: int = 1) -> None:
        """Adds `first_tokens` and one more each iteration from the `offset`-th of the map on."""
        steps = np.arange(max(iterations, 0))
        places = (self._next + offset + steps) % len(self._tokens)
        self._tokens[places] += sign * (first_tokens + steps)
