"""Placement of a deployment's replicas. Source: ours; the paper gives the number of GPUs of a replica, not which.

A pipeline stage lies in one machine, as tensor parallelism needs NVLink; stages of one replica may lie in several. So
replicas fit a cluster exactly when their stages can be packed into its machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from serving_gym.envs.machines.cluster import Cluster, Deployment, Replica, ReplicaKind

Widths = tuple[tuple[int, int], ...]  # (width of a stage, number of stages), wide ones first


def stage_widths(kinds: Mapping[ReplicaKind, int]) -> Widths:
    """Stages of some replicas by width.

    Args:
        kinds: Number of replicas of each kind.
    """
    stages: Counter[int] = Counter()
    for kind, count in kinds.items():
        stages[kind.tp] += kind.pp * count
    return tuple(sorted(((width, count) for width, count in stages.items() if count), reverse=True))


def packable(cluster: Cluster, widths: Widths) -> bool:
    """Whether stages fit into the machines of an empty cluster."""
    return _pack(widths, (cluster.gpus_per_machine,) * cluster.num_machines) is not None


@lru_cache(maxsize=65536)
def _pack(widths: Widths, room: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """Exact bin packing, widest stages first; (width, free GPUs of its machine before) of those wider than 1, or None.

    Args:
        widths: Widths to pack.
        room: Free GPUs of each machine, fewest first; machines with equally many are equivalent.
    """
    if not widths:
        return ()
    if sum(width * count for width, count in widths) > sum(room):
        return None
    (width, count), rest = widths[0], widths[1:]
    if width == 1:  # stages of width 1 fit wherever there is room
        return ()
    left = (((width, count - 1),) if count > 1 else ()) + rest
    for free in sorted({free for free in room if free >= width}):
        machine = room.index(free)
        after = tuple(sorted((*room[:machine], free - width, *room[machine + 1 :])))
        packed = _pack(left, after)
        if packed is not None:
            return ((width, free), *packed)
    return None


def place(
    cluster: Cluster, kinds: Mapping[ReplicaKind, int], previous: Deployment | None = None
) -> Deployment:
    """Places replicas. Those that a previous deployment has too keep their GPUs, if the others then fit.

    Args:
        cluster: The cluster.
        kinds: Number of replicas of each kind.
        previous: The deployment that is replaced.

    Raises:
        ValueError: They do not fit.
    """
    wanted = Counter({kind: count for kind, count in kinds.items() if count > 0})
    stay = _staying(wanted, previous) if previous is not None else []
    while True:
        placed = _place_beside(cluster, wanted, stay)
        if placed is not None:
            return Deployment(cluster, placed)
        if not stay:
            break
        stay.pop()  # one fewer stays, the narrowest first
    described = ", ".join(f"{kind}×{count}" for kind, count in sorted(wanted.items()))
    raise ValueError(
        f"{described} do not fit {cluster.num_machines} machines of {cluster.gpus_per_machine} GPUs"
    )


def _staying(wanted: Counter[ReplicaKind], previous: Deployment) -> list[Replica]:
    """Replicas that both deployments have, wide ones first."""
    left, stay = wanted.copy(), []
    for replica in sorted(previous.replicas, key=lambda r: (-r.kind.num_gpus, r.gpus)):
        if left[replica.kind] > 0:
            left[replica.kind] -= 1
            stay.append(replica)
    return stay


def _place_beside(
    cluster: Cluster, wanted: Counter[ReplicaKind], stay: Sequence[Replica]
) -> tuple[Replica, ...] | None:
    """Places replicas while some keep their GPUs, or None if the others do not fit."""
    used = {gpu for replica in stay for gpu in replica.gpus}
    free = [
        [g for g in range(m * cluster.gpus_per_machine, (m + 1) * cluster.gpus_per_machine) if g not in used]
        for m in range(cluster.num_machines)
    ]
    new = wanted - Counter(replica.kind for replica in stay)
    widths = stage_widths(new)
    packed = _pack(widths, tuple(sorted(len(gpus) for gpus in free)))
    if packed is None:
        return None
    stages = _stages(packed, widths, free)
    replicas = list(stay)
    replicas += [
        Replica(kind, tuple(gpu for _ in range(kind.pp) for gpu in stages[kind.tp].pop(0)))
        for kind in sorted(new.elements(), key=lambda kind: (-kind.num_gpus, kind))
    ]
    return tuple(sorted(replicas, key=lambda replica: (-replica.kind.num_gpus, replica.kind, replica.gpus)))


def _stages(
    packed: tuple[tuple[int, int], ...], widths: Widths, free: list[list[int]]
) -> dict[int, list[tuple[int, ...]]]:
    """GPUs of every stage by width, in the order of their machines."""
    stages: dict[int, list[tuple[int, ...]]] = {width: [] for width, _ in widths}
    for width, room in packed:
        gpus = next(gpus for gpus in free if len(gpus) == room)
        stages[width].append(tuple(gpus[:width]))
        del gpus[:width]
    singles: list[tuple[int, ...]] = [(gpu,) for gpus in free for gpu in gpus]
    stages[1] = singles[: dict(widths).get(1, 0)]
    return {width: sorted(of) for width, of in stages.items()}
