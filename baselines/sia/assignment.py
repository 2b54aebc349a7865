"""The integer linear program of Sia, of requests and places in the batches of instances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array


def assign(
    costs: NDArray[np.float64],
    no_place_cost: float,
    tokens: NDArray[np.int64],
    free_tokens: NDArray[np.int64],
) -> list[int | None]:
    """Instances for requests, together as cheap as can be.

    Minimises the sum over requests r, instances i and slots k of x_rik c_rik + lambda (1 - sum of x_rik), x binary:
    a request has one slot at most and a slot one request, and the prompts on an instance fit what is free there. A
    request that no slot is left for stays in the queue and costs lambda.

    Args:
        costs: (R, P, K) of request r as the k-th further one on instance i, growing with k; infinite: not allowed.
        no_place_cost: lambda, more than any finite cost.
        tokens: (R,) KV tokens that the requests need.
        free_tokens: (P,) KV tokens that are free.
    """
    num_requests, num_places, num_slots = costs.shape
    flat = costs.reshape(num_requests, -1)
    # Of its R best slots one is always left for a request; twice as many leave a choice where memory is short.
    reach = min(2 * num_requests, flat.shape[1])
    best = np.argsort(flat, axis=1, kind="stable")[:, :reach]
    allowed = np.isfinite(np.take_along_axis(flat, best, axis=1))
    request = np.nonzero(allowed)[0]
    slot = best[allowed]
    if len(slot) == 0:
        return [None] * num_requests
    place = slot // num_slots
    columns = np.arange(len(slot))
    once = csr_array((np.ones(len(slot)), (request, columns)), shape=(num_requests, len(slot)))
    slots, slot_row = np.unique(slot, return_inverse=True)
    alone = csr_array((np.ones(len(slot)), (slot_row, columns)), shape=(len(slots), len(slot)))
    fits = csr_array((tokens[request].astype(np.float64), (place, columns)), shape=(num_places, len(slot)))
    found = milp(
        flat[request, slot] - no_place_cost,
        integrality=np.ones(len(slot)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(once, ub=1),
            LinearConstraint(alone, ub=1),
            LinearConstraint(fits, ub=free_tokens),
        ],
    )
    assert found.success, found.message  # to place nobody is always feasible
    places: list[int | None] = [None] * num_requests
    for column in np.flatnonzero(found.x > 0.5):
        places[request[column]] = int(place[column])
    return places
