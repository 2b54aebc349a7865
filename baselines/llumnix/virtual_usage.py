"""Virtual usages and freeness of instances (Llumnix, algorithm 1).

* A running request uses what it holds physically, and a headroom if it is of high priority: what keeps the instance's
  load at the target, divided among the high-priority requests that run there.
* Of the queue, only the head-of-line request counts, with its demand: an instance that cannot admit it seems fuller
  than it is, so that requests are moved away until it fits (de-fragmentation).
* On an instance that is being taken out of service a fake request of infinite usage runs.

Freeness F = (M - sum V) / B is the number of iterations the batch can still run for; an instance without requests is
infinitely free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class Usage(NamedTuple):
    """What P instances hold.

    Attributes:
        physical_tokens: (P,) KV tokens of running requests, in whole blocks.
        batch_size: (P,) running requests.
        high_priority: (P,) running requests of high priority.
        head_tokens: (P,) demand of the head-of-line request; 0: no queue.
    """

    physical_tokens: NDArray[np.int64]
    batch_size: NDArray[np.int64]
    high_priority: NDArray[np.int64]
    head_tokens: NDArray[np.int64]


def queue_order(in_flight: NDArray[np.void], by_priority: bool) -> NDArray[np.int64]:
    """Rows of the requests whose first token has not come, in the order in which engines admit them.

    Args:
        in_flight: (M,) IN_FLIGHT_DTYPE.
        by_priority: Whether the engines put the lower priority value first, as opposed to the earlier arrival.
    """
    waiting = np.flatnonzero(in_flight["first_token_s"] < 0.0)
    rows = in_flight[waiting]
    keys = (rows["index"], rows["arrival_s"])
    order: NDArray[np.int64] = waiting[np.lexsort((*keys, rows["priority"]) if by_priority else keys)]
    return order


@njit(cache=True)
def usage_of(
    in_flight: NDArray[np.void],
    waiting: NDArray[np.int64],
    high_priority: NDArray[np.bool_],
    capacity_tokens: NDArray[np.int64],
    block_size: NDArray[np.int64],
    max_num_seqs: NDArray[np.int64],
) -> Usage:
    """What each instance holds and what stands first in its queue, by what the router knows.

    Which of the requests without a first token are in prefill and which are queued cannot be seen from outside: they
    are taken to be admitted in the queue's order as vLLM does it, while their prompts fit.

    Args:
        in_flight: (M,) IN_FLIGHT_DTYPE.
        waiting: Rows without a first token, in the queue's order.
        high_priority: (C,) whether a class is of high priority.
        capacity_tokens: (P,) M.
        block_size: (P,) tokens of a block.
        max_num_seqs: (P,) most running requests.
    """
    num_places = len(capacity_tokens)
    physical = np.zeros(num_places, np.int64)
    batch = np.zeros(num_places, np.int64)
    high = np.zeros(num_places, np.int64)
    head = np.zeros(num_places, np.int64)
    for r in range(len(in_flight)):
        row = in_flight[r]
        if row.first_token_s < 0.0:
            continue
        block = block_size[row.place]
        physical[row.place] += -(-(row.input_tokens + row.generated_tokens) // block) * block
        batch[row.place] += 1
        high[row.place] += high_priority[row.class_id]
    for r in waiting:
        row = in_flight[r]
        place = row.place
        block = block_size[place]
        demand = -(-max(row.input_tokens, 1) // block) * block
        if head[place] > 0:
            continue
        if batch[place] < max_num_seqs[place] and physical[place] + demand <= capacity_tokens[place]:
            physical[place] += demand
            batch[place] += 1
            high[place] += high_priority[row.class_id]
        else:
            head[place] = demand
    return Usage(physical, batch, high, head)


def freeness(
    usage: Usage,
    capacity_tokens: NDArray[np.int64],
    target_tokens: float,
    terminating: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """F of each instance, iterations, (P,).

    B counts the head-of-line request with the running ones, as the public implementation does.

    Args:
        usage: What they hold.
        capacity_tokens: (P,) M.
        target_tokens: Load that an instance with high-priority requests is to keep to: its headroom is the rest of M.
        terminating: (P,) whether it is being taken out of service.
    """
    headroom = np.where(usage.high_priority > 0, np.maximum(capacity_tokens - target_tokens, 0.0), 0.0)
    free_tokens = capacity_tokens - (usage.physical_tokens + usage.head_tokens + headroom)
    batch = usage.batch_size + (usage.head_tokens > 0)
    iterations = np.where(batch > 0, free_tokens / np.maximum(batch, 1), np.inf)
    return np.where(terminating, -np.inf, iterations)
