"""The exact linear programs of the lower level, compiled: some ten microseconds each.

A search solves one for every deployment that it looks at, and a general solver needs a millisecond for a program of a
dozen rows. Both programs have the zero assignment as a feasible corner, so that a primal simplex needs no first phase.
Variables are shares y_kj of the span that the replicas of a group k spend on type j. Solutions are checked against
SciPy's HiGHS in the tests.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_TOLERANCE = 1e-10  # of reduced costs and of pivots; the tableau is scaled to about one
_PATIENCE = 64  # pivots by steepest cost before Bland's rule, which cannot cycle


@njit(cache=True)
def _pivot(tableau: FloatArray, basis: NDArray[np.int64], row: int, column: int) -> None:
    """Brings a column into the basis in place of a row's."""
    tableau[row] /= tableau[row, column]
    for i in range(tableau.shape[0]):
        if i != row and tableau[i, column] != 0.0:
            tableau[i] -= tableau[i, column] * tableau[row]
    basis[row] = column


@njit(cache=True)
def _entering(tableau: FloatArray, bland: bool) -> int:
    """Column that improves the objective, the last row; -1 at the optimum."""
    costs = tableau[-1]
    best, most = -1, -_TOLERANCE
    for j in range(tableau.shape[1] - 1):
        if costs[j] < most:
            best, most = j, costs[j]
            if bland:
                return best
    return best


@njit(cache=True)
def _leaving(tableau: FloatArray, basis: NDArray[np.int64], column: int) -> int:
    """Row whose variable reaches zero first, of equals the one of the lowest variable; -1 if none does."""
    row, least = -1, np.inf
    for i in range(tableau.shape[0] - 1):
        entry = tableau[i, column]
        if entry > _TOLERANCE:
            ratio = tableau[i, -1] / entry
            if ratio < least - 1e-14 or (ratio <= least + 1e-14 and row >= 0 and basis[i] < basis[row]):
                row, least = i, ratio
    return row


@njit(cache=True)
def _maximise(tableau: FloatArray, basis: NDArray[np.int64]) -> None:
    """Primal simplex from a feasible corner. Every program here is bounded."""
    pivots = 0
    while True:
        column = _entering(tableau, pivots > _PATIENCE)
        if column < 0:
            return
        row = _leaving(tableau, basis, column)
        if row < 0:
            return
        _pivot(tableau, basis, row, column)
        pivots += 1


@njit(cache=True)
def _program(capacity: FloatArray, demand: FloatArray, common: bool) -> tuple[float, FloatArray]:
    """One of the two programs in shares y_kj; the value and (K, J) shares.

    common=False: maximise the requests served, sum n y, with sum_k n_kj y_kj <= demand_j and sum_j y_kj <= 1.
    common=True: maximise theta such that theta demand_j <= sum_k n_kj y_kj with sum_j y_kj <= 1.
    """
    K, J = capacity.shape
    variables = K * J + (1 if common else 0)
    rows = J + K
    tableau = np.zeros((rows + 1, variables + rows + 1))
    basis = np.arange(variables, variables + rows)
    for k in range(K):
        for j in range(J):
            if capacity[k, j] > 0.0:
                tableau[j, k * J + j] = -capacity[k, j] if common else capacity[k, j]
                tableau[J + k, k * J + j] = 1.0
                if not common:
                    tableau[rows, k * J + j] = -capacity[k, j]
        tableau[J + k, -1] = 1.0
    for j in range(J):
        if common:
            tableau[j, K * J] = demand[j]
        else:
            tableau[j, -1] = demand[j]
    if common:
        tableau[rows, K * J] = -1.0
    for i in range(rows):
        tableau[i, variables + i] = 1.0
    _maximise(tableau, basis)
    shares = np.zeros((K, J))
    for i in range(rows):
        if basis[i] < K * J:
            shares[basis[i] // J, basis[i] % J] = tableau[i, -1]
    return tableau[rows, -1], shares


@njit(cache=True)
def most_served(capacity: FloatArray, demand: FloatArray) -> tuple[float, FloatArray]:
    """Most requests that can be served within C1 and C3.

    Args:
        capacity: (K, J), requests a span that group k serves of type j alone; 0 where it cannot.
        demand: (J,), requests a span.

    Returns:
        Their number, and (K, J) shares of the span that each group spends on each type.
    """
    scale = demand.sum()
    if scale <= 0.0:
        return 0.0, np.zeros(capacity.shape)
    value, shares = _program(capacity / scale, demand / scale, False)
    return value * scale, shares


@njit(cache=True)
def most_times(capacity: FloatArray, demand: FloatArray) -> tuple[float, FloatArray]:
    """How many times the whole demand could be served in a span, in its own mix; infinite without demand.

    Args:
        capacity: (K, J), requests a span; 0 where a group cannot serve a type.
        demand: (J,), requests a span.

    Returns:
        That number, theta, and (K, J) shares of the span that each group spends on each type to do so.
    """
    scale = demand.sum()
    if scale <= 0.0:
        return np.inf, np.zeros(capacity.shape)
    return _program(capacity / scale, demand / scale, True)


@njit(cache=True)
def max_requests(capacity: FloatArray, demand: FloatArray, by_time: bool) -> float:
    """What a search maximises: requests a span.

    As long as not all demand can be served, the most that can be (`most_served`); from there on the demand times
    `most_times`, that is the rate at which the same mix could be served. With `by_time` always the latter.
    """
    total = demand.sum()
    if total <= 0.0:
        return 0.0
    times, _ = most_times(capacity, demand)
    if by_time or times >= 1.0:
        return times * total
    return min(most_served(capacity, demand)[0], total)
