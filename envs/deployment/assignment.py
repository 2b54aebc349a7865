"""Which replica serves how much of which type: the lower level of the scheduler (section 4.2, C1 to C3).

    maximise   sum_kj x_kj
    C1         sum_k x_kj <= lambda_j                     no more than arrives of a type
    C2         x_kj <= e_kj                               no more than the edge to a replica carries of a type
    C3         sum_j x_kj M_k / n_kj <= M_k               no more than a replica's span

It is solved as the linear program that it is: a maximum flow, for which section 4.2 draws a network, is the same only
where a type weighs the same on every replica (`baselines.oserve.flow_network`).

Readings. The text's maximum flow leaves open which corner is taken where replicas are alike. `assign` has them share
their work evenly; `keep_apart` is a corner, in which each has as few types as can be, as section 6.3 describes what is
deployed (all of types 1 and 2 on one replica, of type 3 on others). A request count need not be whole. e_kj is n_kj, as
section 4.2 profiles both as "the maximum achievable throughput per workload type", so that C3 implies C2. While all
demand can be served, all such assignments have the same flow; of these the one is taken that ends soonest, in the sense
of Appendix C's completion time (source: ours).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.envs.deployment.simplex import most_served, most_times

FloatArray = NDArray[np.float64]

FULL = 1.0 - 1e-9  # utilisation from which a replica operates at full capacity


@dataclass(frozen=True, eq=False)
class Assignment:
    """Requests a span by replica and type.

    Attributes:
        requests: (K, J), x_kj.
        capacity: (K, J), n_kj.
        demand: (J,), lambda_j.
    """

    requests: FloatArray
    capacity: FloatArray
    demand: FloatArray

    @property
    def throughput(self) -> float:
        """Requests served a span."""
        return float(self.requests.sum())

    @property
    def shares(self) -> FloatArray:
        """(K, J), share of its span that a replica spends on a type: M_k / n_kj units of M_k a request."""
        able = self.capacity > 0
        return np.divide(self.requests, self.capacity, out=np.zeros(self.requests.shape), where=able)

    @property
    def utilisation(self) -> FloatArray:
        """(K,), share of its span that a replica is busy."""
        return np.asarray(self.shares.sum(axis=1), np.float64)

    @property
    def completion_time(self) -> float:
        """When the last replica is done with its part, in spans (Appendix C); of what is served only."""
        return float(self.utilisation.max(initial=0.0))

    def routing(self) -> FloatArray:
        """(K, J), probabilities of sending a request of a type to a replica; each type's sum is one.

        What the plan leaves unserved has to go somewhere all the same: with the served part of its type, or, if nothing
        of that type is served, by capacity (source: ours). A type that nobody can serve has zeros.
        """
        weights = np.where(self.requests.sum(axis=0) > 0, self.requests, self.capacity)
        total = weights.sum(axis=0)
        return np.divide(weights, total[None, :], out=np.zeros(weights.shape), where=total[None, :] > 0)


def checked(capacity: ArrayLike, demand: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Capacities (K, J) and demand (J,) as arrays.

    Raises:
        ValueError: shapes differ, or a value is negative or not finite.
    """
    n, arriving = np.ascontiguousarray(capacity, np.float64), np.ascontiguousarray(demand, np.float64)
    if n.ndim != 2 or arriving.shape != n.shape[1:]:
        raise ValueError(
            f"capacity must be (replicas, types) and demand (types,), got {n.shape} and {arriving.shape}"
        )
    for name, values in (("capacity", n), ("demand", arriving)):
        if not np.isfinite(values).all() or (values < 0).any():
            raise ValueError(f"{name} must be finite and not negative, got {values.tolist()}")
    return n, arriving


def assign(capacity: ArrayLike, demand: ArrayLike) -> Assignment:
    """The assignment that serves most, and of those that serve all the one that ends soonest.

    Args:
        capacity: (K, J), n_kj: requests a span that a replica serves of a type alone; 0 where it cannot.
        demand: (J,), lambda_j: requests a span.

    Raises:
        ValueError: shapes differ, or a value is negative or not finite.
    """
    n, arriving = checked(capacity, demand)
    times, shares = most_times(n, arriving)
    if times >= 1.0:
        return Assignment(shares * n / times, n, arriving)
    return Assignment(most_served(n, arriving)[1] * n, n, arriving)


def soonest(capacity: ArrayLike, demand: ArrayLike) -> Assignment:
    """The assignment that serves all demand soonest, however long that takes: the optimum of Appendix C.

    Args:
        capacity: (K, J), n_kj, requests a span (or a second: then completion times are in seconds).
        demand: (J,), requests.

    Raises:
        ValueError: a type cannot be served, shapes differ, or a value is negative or not finite.
    """
    n, arriving = checked(capacity, demand)
    unserved = np.flatnonzero((arriving > 0) & ~(n > 0).any(axis=0))
    if unserved.size:
        raise ValueError(f"no replica can serve types {unserved.tolist()}")
    times, shares = most_times(n, arriving)
    return Assignment(shares * n / times, n, arriving)


def keep_apart(assignment: Assignment, kinds: Sequence[Hashable], order: ArrayLike) -> Assignment:
    """The same work, with types kept apart among replicas that are alike: each is as busy as before, with fewer types.

    The types are poured into the replicas of a kind one after another, each to the brim: long answers are then seldom
    held up by long prompts. The text gives no order (source: ours).

    Args:
        assignment: Of which replicas of one kind have the same.
        kinds: (K,), kind of each replica.
        order: (J,), types, the one to begin with first.
    """
    requests, capacity = assignment.requests.copy(), assignment.capacity
    order = np.asarray(order, np.int64)
    for kind in dict.fromkeys(kinds):
        alike = [k for k, other in enumerate(kinds) if other == kind]
        shares = assignment.shares[alike].sum(axis=0)  # spans of work of each type
        edges = np.concatenate([[0.0], np.cumsum(shares[order])])
        brims = np.linspace(0.0, edges[-1], len(alike) + 1)
        for i, k in enumerate(alike):
            inside = np.minimum(edges[1:], brims[i + 1]) - np.maximum(edges[:-1], brims[i])
            requests[k, order] = np.maximum(inside, 0.0) * capacity[k, order]
    return Assignment(requests, capacity, assignment.demand)
