"""Duration of a switch: transfers that share links max-min fairly, and the naive reload as a comparison.

Every GPU has NVLink to its machine, every machine a network link to the others, both with a capacity each way
(`cluster.Cluster`); a transfer within a machine takes the NVLink of both ends, one between machines the network links
of both machines, and one from storage the storage rate of the target's machine. All begin at once. Transfers from one
GPU to another form one flow. This is `envs.simulator.fleet.links` with links of different capacity.

The text gives the time of a whole switch (about 10 s, section 6.3) and of a reload (more than 50 s) but no parts; what
is computed here is the transfer of bytes. Other costs of an engine (communicators, captured graphs) are charged by the
environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.calibration.models import ModelSpec
from serving_gym.calibration.transitions import COLD_START_RULE, STORAGE_BYTES_PER_S
from serving_gym.envs.machines.cluster import Cluster, Deployment
from serving_gym.envs.machines.switch_plan import STORAGE

FloatArray = NDArray[np.float64]


class Moved(Protocol):
    """Bytes to transfer from one GPU (or STORAGE) to another."""

    @property
    def source(self) -> int:
        """GPU, or STORAGE."""
        ...

    @property
    def target(self) -> int:
        """GPU."""
        ...

    @property
    def size_bytes(self) -> float:
        """Bytes."""
        ...


def link_loads(
    cluster: Cluster, moved: Iterable[Moved], storage_bytes_per_s: float
) -> tuple[FloatArray, NDArray[np.int64], FloatArray]:
    """Flows and their links.

    Args:
        cluster: Links between GPUs and machines.
        moved: The transfers.
        storage_bytes_per_s: Rate at which a machine reads from storage, bytes/s.

    Returns:
        (flows,) bytes; (flows, 2) links of each, of which the second may be the first again; (links,) bytes/s.
    """
    D, M = cluster.num_gpus, cluster.num_machines
    pairs: dict[tuple[int, int], float] = {}
    for part in moved:
        key = (part.source, part.target)
        pairs[key] = pairs.get(key, 0.0) + part.size_bytes
    links = np.zeros((len(pairs), 2), np.int64)
    for i, (source, target) in enumerate(sorted(pairs)):
        there = cluster.machine_of(target)
        if source == STORAGE:
            links[i] = 2 * D + 2 * M + there
        elif cluster.machine_of(source) == there:
            links[i] = source, D + target
        else:
            links[i] = 2 * D + cluster.machine_of(source), 2 * D + M + there
    capacity = np.concatenate(
        [
            np.full(2 * D, cluster.nvlink_bytes_per_s),
            np.full(2 * M, cluster.network_bytes_per_s),
            np.full(M, storage_bytes_per_s),
        ]
    )
    return np.array([pairs[key] for key in sorted(pairs)], np.float64), links, capacity


@njit(cache=True)
def fair_rates(links: NDArray[np.int64], capacity: FloatArray, active: NDArray[np.bool_]) -> FloatArray:
    """Max-min fair rates, filling the fullest link first.

    Args:
        links: (flows, 2), links of each flow; twice the same for one link only.
        capacity: (links,), bytes/s.
        active: (flows,), flows that have not finished.

    Returns:
        (flows,), bytes/s; 0 for those that are not active.
    """
    left = capacity.copy()
    users = np.zeros(len(capacity), np.int64)
    rates = np.zeros(len(links))
    unset = active.copy()
    for i in range(len(links)):
        if unset[i]:
            users[links[i, 0]] += 1
            if links[i, 1] != links[i, 0]:
                users[links[i, 1]] += 1
    while True:
        fullest, share = -1, np.inf
        for link in range(len(capacity)):
            if users[link] > 0 and left[link] / users[link] < share:
                fullest, share = link, left[link] / users[link]
        if fullest < 0:
            return rates
        for i in range(len(links)):
            if unset[i] and (links[i, 0] == fullest or links[i, 1] == fullest):
                rates[i] = share
                unset[i] = False
                for side in range(2):
                    if side == 0 or links[i, 1] != links[i, 0]:
                        left[links[i, side]] = max(left[links[i, side]] - share, 0.0)
                        users[links[i, side]] -= 1


@njit(cache=True)
def _finish_s(sizes: FloatArray, links: NDArray[np.int64], capacity: FloatArray) -> FloatArray:
    """(flows,), arrival of the last byte of each, s."""
    remaining, active = sizes.copy(), sizes > 0.0
    finish = np.zeros(len(sizes))
    now = 0.0
    while active.any():
        rates = fair_rates(links, capacity, active)
        step = np.inf
        for i in range(len(sizes)):
            if active[i]:
                step = min(step, remaining[i] / rates[i])
        now += step
        for i in range(len(sizes)):
            if active[i]:
                remaining[i] -= rates[i] * step
                if remaining[i] <= 1e-9 * sizes[i]:
                    active[i] = False
                    finish[i] = now
    return finish


def transfer_s(
    cluster: Cluster,
    moved: Iterable[Moved],
    storage_bytes_per_s: float = STORAGE_BYTES_PER_S["safetensors"],
) -> float:
    """Time until all transfers have finished, seconds.

    Args:
        cluster: Links between GPUs and machines.
        moved: The transfers.
        storage_bytes_per_s: Rate at which a machine reads from storage, bytes/s. Source: `calibration.transitions`.
    """
    return float(_finish_s(*link_loads(cluster, moved, storage_bytes_per_s)).max(initial=0.0))


def naive_reload_s(
    model: ModelSpec,
    before: Deployment,
    after: Deployment,
    storage_bytes_per_s: float = STORAGE_BYTES_PER_S["safetensors"],
    start_fixed_s: float = COLD_START_RULE.fixed_s,
) -> float:
    """Seconds of the naive switch: every replica that is new or has other GPUs reads the whole model from storage.

    As `envs.interface.fleet.FleetSpec` starts replicas: each at the storage rate, then its fixed part.

    Args:
        model: The model.
        before: Deployment that is replaced; replicas that stay as they are go on.
        after: Deployment that replaces it.
        storage_bytes_per_s: Rate of one replica, bytes/s.
        start_fixed_s: Start of the engine and graph capture, s.
    """
    new = set(after.replicas) - set(before.replicas)
    return model.weight_bytes / storage_bytes_per_s + start_fixed_s if new else 0.0
