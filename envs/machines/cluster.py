"""A cluster of GPUs, its possible replicas, and their placement."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from serving_gym.calibration.fields import check_at_least, check_positive
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.models import ModelSpec
from serving_gym.envs.interface.fleet import ROLES, ReplicaSpec


@dataclass(frozen=True)
class Cluster:
    """Machines of equal GPUs.

    Attributes:
        num_machines: Machines.
        gpus_per_machine: GPUs of each. Source: section 6.1, 8.
        gpu: Name of the GPU. Source: section 6.1.
        nvlink_bytes_per_s: Bandwidth of a GPU to the others of its machine, each way, bytes/s. Source: section 6.1.
        network_bytes_per_s: Bandwidth of a machine to the others, each way, shared by its GPUs, bytes/s. Source:
            section 6.1 ("servers are connected via InfiniBand with a bandwidth of 200GB/s"); section 5.2 has 10 to 200.
    """

    num_machines: int
    gpus_per_machine: int = 8
    gpu: str = "H100"
    nvlink_bytes_per_s: float = 400e9
    network_bytes_per_s: float = 200e9

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_machines", "gpus_per_machine", prefix="cluster.")
        check_positive(self, "nvlink_bytes_per_s", "network_bytes_per_s", prefix="cluster.")
        get_gpu(self.gpu)

    @property
    def num_gpus(self) -> int:
        """GPUs of all machines, D."""
        return self.num_machines * self.gpus_per_machine

    def machine_of(self, gpu: int) -> int:
        """Machine that a GPU is in; GPUs are numbered machine by machine."""
        return gpu // self.gpus_per_machine


@dataclass(frozen=True, order=True)
class ReplicaKind:
    """Parallelism of a replica, s_r: it has d_r = tp x pp GPUs.

    Attributes:
        tp: Tensor-parallel degree.
        pp: Pipeline-parallel degree.
        role: mixed (both), prefill or decode; OServe deploys only mixed replicas.
    """

    tp: int
    pp: int = 1
    role: str = "mixed"

    def __post_init__(self) -> None:
        check_at_least(self, 1, "tp", "pp", prefix="kind.")
        if self.role not in ROLES:
            raise ValueError(f"kind.role must be one of {', '.join(ROLES)}, got {self.role!r}")

    @property
    def num_gpus(self) -> int:
        """GPUs of a replica, d_r."""
        return self.tp * self.pp

    def __str__(self) -> str:
        """As in Table 3: (TP=2, PP=2), (TP=2), (PP=4)."""
        parts = [
            f"{name}={degree}"
            for name, degree in (("TP", self.tp), ("PP", self.pp))
            if degree > 1 or (name == "TP" and self.pp == 1)
        ]
        return f"({', '.join(parts)}{'' if self.role == 'mixed' else f', {self.role}'})"


@dataclass(frozen=True)
class Replica:
    """A placed replica.

    Attributes:
        kind: Its parallelism.
        gpus: (tp x pp,) GPUs, stage by stage, in the order of their ranks. A stage lies in one machine.
    """

    kind: ReplicaKind
    gpus: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.gpus)) != self.kind.num_gpus:
            raise ValueError(
                f"replica.gpus of {self.kind} must be {self.kind.num_gpus} different GPUs, got {self.gpus}"
            )

    def stage(self, number: int) -> tuple[int, ...]:
        """GPUs of one pipeline stage, by rank."""
        return self.gpus[number * self.kind.tp : (number + 1) * self.kind.tp]


@dataclass(frozen=True)
class Deployment:
    """Placed replicas; a GPU without a replica is idle.

    Attributes:
        cluster: The cluster.
        replicas: Replicas, disjoint.
    """

    cluster: Cluster
    replicas: tuple[Replica, ...] = field(default=())

    def __post_init__(self) -> None:
        used = [gpu for replica in self.replicas for gpu in replica.gpus]
        if len(set(used)) != len(used) or not set(used) <= set(range(self.cluster.num_gpus)):
            raise ValueError(
                f"replicas must be disjoint and within GPUs 0 to {self.cluster.num_gpus - 1}, got {used}"
            )
        for replica in self.replicas:
            for number in range(replica.kind.pp):
                machines = {self.cluster.machine_of(gpu) for gpu in replica.stage(number)}
                if len(machines) > 1:
                    raise ValueError(
                        f"stage {number} of {replica.kind} lies in machines {sorted(machines)}; it must lie in one"
                    )

    @property
    def kinds(self) -> Counter[ReplicaKind]:
        """Number of replicas of each kind."""
        return Counter(replica.kind for replica in self.replicas)

    def __str__(self) -> str:
        """As in Table 3: (TP=3, PP=2), (TP=2)×3."""
        counts = sorted(self.kinds.items(), key=lambda item: (-item[0].num_gpus, item[0]))
        return ", ".join(f"{kind}×{count}" if count > 1 else str(kind) for kind, count in counts)


# Largest share by which a stage may have more layers than the mean; source: ours. The latency model takes stages to be
# equal, so what is left out is at most this.
STAGE_IMBALANCE = 0.05


def replica_kinds(model: ModelSpec, cluster: Cluster, max_pp: int = 8) -> tuple[ReplicaKind, ...]:
    """Every kind that architecture and machines allow; the profile checks whether it fits the memory.

    A tensor-parallel degree divides the query heads and the inner width, and shares or repeats key/value heads evenly;
    it stays in a machine. A pipeline degree spreads the layers within `STAGE_IMBALANCE`.

    Args:
        model: The model.
        cluster: The cluster.
        max_pp: Longest pipeline. Source: ours; the paper shows up to 4.
    """
    widths = [tp for tp in range(1, cluster.gpus_per_machine + 1) if _divides(model, tp)]
    depths = [
        pp
        for pp in range(1, min(max_pp, model.num_layers) + 1)
        if -(-model.num_layers // pp) * pp <= model.num_layers * (1 + STAGE_IMBALANCE)
    ]
    kinds = (ReplicaKind(tp, pp) for tp in widths for pp in depths if tp * pp <= cluster.num_gpus)
    return tuple(sorted(kinds, key=lambda kind: (kind.num_gpus, kind.pp)))


def _divides(model: ModelSpec, tp: int) -> bool:
    most, least = max(model.num_kv_heads, tp), min(model.num_kv_heads, tp)
    width = model.intermediate or model.expert_intermediate
    return model.num_heads % tp == 0 and most % least == 0 and width % tp == 0


def replica_spec(kind: ReplicaKind, engine: ReplicaSpec) -> ReplicaSpec:
    """Replica specification of a kind; other fields come from the engine's, given for one GPU."""
    blocks = None if engine.kv_blocks is None else engine.kv_blocks * kind.num_gpus
    return replace(engine, tp_size=kind.tp, pp_size=kind.pp, role=kind.role, kv_blocks=blocks)
