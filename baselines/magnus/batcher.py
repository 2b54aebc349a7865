"""Wasted memory access of batches (Magnus, the adaptive batcher)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class Batches(NamedTuple):
    """The batches of P instances.

    Attributes:
        size: (P,) requests.
        tokens: (P,) KV tokens that they come to in the end, as predicted.
        waste: (P,) wasted memory access, tokens read, if the request in question joined them.
    """

    size: NDArray[np.int64]
    tokens: NDArray[np.int64]
    waste: NDArray[np.int64]


@njit(cache=True)
def wasted_memory_access(prompt: int, response: int, longest_prompt: int, longest_response: int) -> int:
    """Tokens that a static batch reads in vain for one of its requests.

    While it is generated, each of its G(p) iterations reads the padding L(B) - L(p); when it is done, each further one
    until the batch is done reads all that it has by then: sum over g from G(p) + 1 to G(B) of g + L(B).

    Args:
        prompt: L(p), its prompt.
        response: G(p), its predicted response.
        longest_prompt: L(B), of the batch.
        longest_response: G(B), of the batch.
    """
    padding = response * (longest_prompt - prompt)
    waiting = (longest_response * (longest_response + 1) - response * (response + 1)) // 2
    return padding + waiting + longest_prompt * (longest_response - response)


@njit(cache=True)
def batches_with(
    in_flight: NDArray[np.void], num_places: int, prompt: int, response: int, final: bool
) -> Batches:
    """Each instance's batch, and what is wasted in it if a request joins: the most of any of its requests.

    A response longer than predicted is as long as it is so far.

    Args:
        in_flight: (M,) IN_FLIGHT_DTYPE.
        num_places: P.
        prompt: Prompt of the request.
        response: Its predicted response.
        final: Whether a batch comes to its requests' whole predicted responses, in place of what they have so far.
    """
    size = np.zeros(num_places, np.int64)
    tokens = np.zeros(num_places, np.int64)
    waste = np.zeros(num_places, np.int64)
    longest_prompt = np.full(num_places, prompt, np.int64)
    longest_response = np.full(num_places, response, np.int64)
    for r in range(len(in_flight)):
        row = in_flight[r]
        length = max(row.predicted_tokens, row.generated_tokens, 1)
        size[row.place] += 1
        tokens[row.place] += row.input_tokens + (length if final else row.generated_tokens)
        longest_prompt[row.place] = max(longest_prompt[row.place], row.input_tokens)
        longest_response[row.place] = max(longest_response[row.place], length)
    for place in range(num_places):
        waste[place] = wasted_memory_access(prompt, response, longest_prompt[place], longest_response[place])
    for r in range(len(in_flight)):
        row = in_flight[r]
        length = max(row.predicted_tokens, row.generated_tokens, 1)
        lost = wasted_memory_access(
            row.input_tokens, length, longest_prompt[row.place], longest_response[row.place]
        )
        waste[row.place] = max(waste[row.place], lost)
    return Batches(size, tokens, waste)
