"""The flow network of section 4.2, solved by preflow-push, beside the exact program of `assignment.py`.

    S -> w_j            lambda_j      arriving requests of a type
    w_j -> i_kj -> c_k^in   e_kj      of a type to a replica
    c_k^in -> c_k^out   M_k           the least common multiple of the replica's n_kj: a request takes M_k / n_kj units
    c_k^out -> T        enough

A network conserves flow: what leaves w_j as requests cannot arrive at c_k^in as M_k / n_kj units, and these differ from
replica to replica, so that no choice of units makes a plain maximum flow equal C1 to C3. Two readings are offered, and
`assignment.assign` is the default everywhere because it is exact and faster.

requests: every edge in requests, M_k as it is, literally as drawn. M_k is at least every n_kj, so that the edge into T
    of a replica with several types binds late or never: the flow is at least the exact optimum, and often far above.
units: every edge in units, one weight u_j a type. M_k is first multiplied by the a_k that makes a type weigh as nearly
    the same on all replicas as it can (least squares of logarithms; source: ours). Exact where n_kj is a speed of the
    replica over a size of the type (then M_k / n_kj is the same on all of them) and all demand can be served. Where it
    cannot, this flow has as many units as can be, not requests: it does not mind serving few that are large.

In either, what a replica was given beyond its span is cut back in proportion before it counts as an assignment. On 100
deployments that Algorithm 1 finds for OPT-66B on 16 GPUs and random mixes, the assignments of `units` serve 2 % less
than the optimum in the median and 14 % at most where all can be served, 9 % and 25 % less under overload; those of
`requests` 37 to 44 % less in the median, while the flow claims up to 11 % more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import networkx as nx
import numpy as np
from networkx.algorithms.flow import preflow_push
from numpy.typing import ArrayLike, NDArray

from serving_gym.envs.deployment.assignment import Assignment, checked

FloatArray = NDArray[np.float64]

READINGS = ("units", "requests")
_RESOLUTION = 10**6  # edges are whole numbers: the smallest weight of a type becomes this many


@dataclass(frozen=True, eq=False)
class Flow:
    """A maximum flow.

    Attributes:
        throughput: Requests that the flow claims to serve.
        requests: (K, J), where it sends them; replicas may be given more than their span.
        assignment: The same, cut back to what replicas can do.
    """

    throughput: float
    requests: FloatArray
    assignment: Assignment


def normalised_capacity(capacity: ArrayLike) -> tuple[int, tuple[int, ...]]:
    """M_k of one replica and the units M_k / n_kj that a request of each type takes.

    The text's example: 80 and 50 requests make 400, of which a request takes 5 or 8.

    Args:
        capacity: (J,), n_kj in whole requests; a type that the replica cannot serve has 0 and takes 0 units.
    """
    whole = [int(n) for n in np.asarray(capacity)]
    able = [n for n in whole if n > 0]
    M = lcm(*able) if able else 0
    return M, tuple(M // n if n > 0 else 0 for n in whole)


def maximum_flow(
    capacity: ArrayLike, demand: ArrayLike, edges: ArrayLike | None = None, reading: str = "units"
) -> Flow:
    """Maximum flow by preflow-push.

    Args:
        capacity: (K, J), n_kj; rounded down to whole requests.
        demand: (J,), lambda_j; rounded down.
        edges: (K, J), e_kj; None: n_kj.
        reading: "units" or "requests".

    Raises:
        ValueError: the reading is unknown, shapes differ, or a value is negative or not finite.
    """
    if reading not in READINGS:
        raise ValueError(f"reading={reading!r} is not allowed; choose one of {', '.join(READINGS)}")
    n, arriving = checked(capacity, demand)
    n, arriving = np.floor(n), np.floor(arriving)
    most = n if edges is None else np.floor(checked(edges, demand)[0])
    sizes, weights = _units(n) if reading == "units" else (_multiples(n), [1] * n.shape[1])
    network = flow_network(n, arriving, most, sizes, weights)
    _, flow = nx.maximum_flow(network, "S", "T", flow_func=preflow_push)
    requests = np.zeros(n.shape)
    for k, j in zip(*np.nonzero(n > 0), strict=True):
        requests[k, j] = flow[f"w{j}"][f"i{k},{j}"] / weights[j]
    return Flow(float(requests.sum()), requests, _cut_back(requests, n, arriving))


def flow_network(
    n: FloatArray, arriving: FloatArray, edges: FloatArray, sizes: list[int], weights: list[int]
) -> nx.DiGraph:
    """The network, all capacities whole.

    Args:
        n: (K, J), capacities; there is no path for a type that a replica cannot serve.
        arriving: (J,), demand.
        edges: (K, J), edge capacities.
        sizes: (K,), capacity of the edge through each replica.
        weights: (J,), what a request of each type counts on every edge.
    """
    network = nx.DiGraph()
    network.add_nodes_from(("S", "T"))
    for j, weight in enumerate(weights):
        network.add_edge("S", f"w{j}", capacity=int(arriving[j]) * weight)
    for k, size in enumerate(sizes):
        for j in np.flatnonzero(n[k] > 0).tolist():
            carried = int(edges[k, j]) * weights[j]
            network.add_edge(f"w{j}", f"i{k},{j}", capacity=carried)
            network.add_edge(f"i{k},{j}", f"in{k}", capacity=carried)
        network.add_edge(f"in{k}", f"out{k}", capacity=size)
        network.add_edge(f"out{k}", "T", capacity=size)
    return network


def _multiples(n: FloatArray) -> list[int]:
    return [normalised_capacity(row)[0] for row in n]


def _units(n: FloatArray) -> tuple[list[int], list[int]]:
    """Capacity of each replica and weight of each type, in common units.

    M_k, the units of a request and the a_k that brings them together are fitted in logarithms, where M_k cancels: what
    is fitted is 1 / n_kj = u_j / (a_k M_k).
    """
    ks, js = np.nonzero(n > 0)
    K, J = n.shape
    design = np.zeros((len(ks) + 1, K + J))
    design[np.arange(len(ks)), ks] = 1.0
    design[np.arange(len(ks)), K + js] = -1.0
    design[-1, K:] = 1.0  # weights are only relative: their geometric mean is 1
    fitted = np.linalg.lstsq(design, np.append(np.log(n[ks, js]), 0.0), rcond=None)[0]
    sizes, weights = np.exp(fitted[:K]), np.exp(fitted[K:])
    scale = _RESOLUTION / weights.min(initial=1.0)
    sizes = np.where(n.sum(axis=1) > 0, sizes, 0.0)
    return [round(size * scale) for size in sizes.tolist()], [
        round(weight * scale) for weight in weights.tolist()
    ]


def _cut_back(requests: FloatArray, n: FloatArray, arriving: FloatArray) -> Assignment:
    """What of a flow replicas can do within their span."""
    given = Assignment(requests, n, arriving)
    over = np.maximum(given.utilisation, 1.0)
    return Assignment(requests / over[:, None], n, arriving)
