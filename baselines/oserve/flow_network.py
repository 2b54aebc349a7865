"""The flow network of section 4.2, solved by preflow-push.

    S -> w_j            lambda_j      arriving requests of a type
    w_j -> i_kj -> c_k^in   e_kj      of a type to a replica; here n_kj
    c_k^in -> c_k^out   M_k           the least common multiple of the replica's n_kj: a request takes M_k / n_kj units
    c_k^out -> T        enough

A network conserves flow: what leaves w_j as requests cannot arrive at c_k^in as M_k / n_kj units, and these differ from
replica to replica, so that no choice of units makes a maximum flow equal the constraints C1 to C3, which
`envs.deployment.assignment.assign` solves exactly. Two readings of the network:

flow_requests: every edge in requests, M_k as it is: the network as the text draws it. M_k is at least every n_kj, so
    that the edge out of a replica that serves several types binds late or never, and C3 is violated.
flow_units: every edge in units, one weight u_j a type. M_k is first multiplied by the a_k that makes a type weigh as
    nearly the same on all replicas as it can (least squares of logarithms; source: ours). Exact where n_kj is a speed
    of the replica over a size of the type (then M_k / n_kj is the same on all of them) and all demand can be served.
    Where it cannot, the flow carries most units, not most requests.

Preflow-push works on whole numbers: capacities and demand are rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import networkx as nx
import numpy as np
from networkx.algorithms.flow import preflow_push
from numpy.typing import ArrayLike, NDArray

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.deployment.assignment import Assignment, checked

FloatArray = NDArray[np.float64]

READINGS = ("flow_units", "flow_requests")
_RESOLUTION = 10**6  # edges are whole numbers: the smallest weight of a type becomes this many


@dataclass(frozen=True, eq=False)
class Flow:
    """A maximum flow.

    Attributes:
        requests: (K, J), requests a span that it sends to each replica; with some readings more than a span's work.
        assignment: The same, cut back in proportion where a replica has more than a span's work.
    """

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


def maximum_flow(capacity: ArrayLike, demand: ArrayLike, reading: str) -> Flow:
    """Maximum flow by preflow-push.

    Args:
        capacity: (K, J), n_kj: requests a span that a replica serves of a type alone; 0 where it cannot.
        demand: (J,), lambda_j: requests a span.
        reading: "flow_units" or "flow_requests".

    Raises:
        ValueError: The reading is unknown, shapes differ, or a value is negative or not finite.
    """
    check_choice("reading", reading, READINGS)
    n, arriving = checked(capacity, demand)
    whole = np.floor(n)
    if reading == "flow_units":
        sizes, weights = _common_units(whole)
    else:
        sizes, weights = [normalised_capacity(row)[0] for row in whole], [1] * n.shape[1]
    network = flow_network(whole, np.floor(arriving), sizes, weights)
    _, flow = nx.maximum_flow(network, "S", "T", flow_func=preflow_push)
    requests = np.zeros(n.shape)
    for k, j in zip(*np.nonzero(whole > 0), strict=True):
        requests[k, j] = flow[f"w{j}"][f"i{k},{j}"] / weights[j]
    over = np.maximum(Assignment(requests, n, arriving).utilisation, 1.0)
    return Flow(requests, Assignment(requests / over[:, None], n, arriving))


def flow_network(
    capacity: FloatArray, demand: FloatArray, sizes: list[int], weights: list[int]
) -> nx.DiGraph[str]:
    """The network, all capacities whole.

    Args:
        capacity: (K, J), n_kj; there is no path for a type that a replica cannot serve.
        demand: (J,), lambda_j.
        sizes: (K,), capacity of the edge through each replica.
        weights: (J,), what a request of each type counts on every edge.
    """
    network: nx.DiGraph[str] = nx.DiGraph()
    network.add_nodes_from(("S", "T"))
    for j, weight in enumerate(weights):
        network.add_edge("S", f"w{j}", capacity=int(demand[j]) * weight)
    for k, size in enumerate(sizes):
        for j in np.flatnonzero(capacity[k] > 0).tolist():
            carried = int(capacity[k, j]) * weights[j]
            network.add_edge(f"w{j}", f"i{k},{j}", capacity=carried)
            network.add_edge(f"i{k},{j}", f"in{k}", capacity=carried)
        network.add_edge(f"in{k}", f"out{k}", capacity=size)
        network.add_edge(f"out{k}", "T", capacity=size)
    return network


def _common_units(n: FloatArray) -> tuple[list[int], list[int]]:
    """Capacity of each replica, (K,), and weight of each type, (J,), in common units.

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
