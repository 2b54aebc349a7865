"""Specification of shared nodes: kinds of node, and times of memory operations."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.calibration.cpu import CPU_NAMES
from serving_gym.calibration.engines import FRONT_ENDS, NEWEST_ENGINE
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.lookup import check_choice
from serving_gym.calibration.transitions import (
    KV_COPY_S_PER_BYTE,
    KV_CREATE_S_PER_BYTE,
    STORAGE_BYTES_PER_S,
)

FIGURE_8, MEMORY = KV_RESIZES = ("figure_8", "memory")
_BANDWIDTH_REACHED = 0.7  # share of a memory's bandwidth; source: as `calibration.cpu` has it


@dataclass(frozen=True)
class NodeSpec:
    """Nodes of one kind.

    Attributes:
        kind: Name of the kind, "cpu" and "gpu" by default.
        hardware: Name of a GPU, or of a CPU, in `calibration.hardware`; one per node.
        count: Number of nodes.
        memory_gb: Memory of a node for weights and KV caches, GB; None: `memory_utilization` of the hardware's.
        time_factor: Factor on profiled iteration times; policies do not observe it.
        kv_resize: How fast KV pools are resized: "figure_8", as an A100 (LLM-Mesh, section 6.2; measured "on GPU"), or
            "memory", at the hardware's memory bandwidth. Source of the latter: ours, as the roofline's.
    """

    kind: str
    hardware: str
    count: int
    memory_gb: float | None = None
    time_factor: float = 1.0
    kv_resize: str = FIGURE_8

    def __post_init__(self) -> None:
        get_gpu(self.hardware)
        check_at_least(self, 1, "count", prefix="cluster.nodes.")
        check_positive(self, "memory_gb", prefix="cluster.nodes.")
        check_positive(self, "time_factor", prefix="cluster.nodes.", finite=True)
        check_choice("cluster.nodes.kv_resize", self.kv_resize, KV_RESIZES)

    @property
    def is_cpu(self) -> bool:
        """Whether it computes on CPUs, whose iteration times are a roofline."""
        return self.hardware in CPU_NAMES


TESTBED = (NodeSpec("cpu", "Xeon-32c-AMX", 4), NodeSpec("gpu", "A100-80GB", 4))


@dataclass(frozen=True)
class SharingSpec:
    """Nodes shared by instances of many models.

    Attributes:
        nodes: Kinds of node. Source: LLM-Mesh, section 8.1.
        engine: Serving engine in `calibration.engines` that gives instances their latency and front end; LLM-Mesh was
            measured on vLLM 0.5.2, of which vllm-0.6 is the closest.
        front_end: "included" or "none", as in `envs.interface.cluster.ClusterSpec`.
        slots_per_node: Most instances of a node. Source: ours; the paper reports two to four.
        max_num_seqs: Most running requests of an instance. Source: vLLM's default.
        block_tokens: Tokens of a KV block. Source: vLLM's default.
        memory_utilization: Share of a node's memory that weights and KV caches may take. Source: vLLM's default.
        max_tokens: Longest sequence; a shorter limit of a model applies. Source: section 5.2.
        load_bytes_per_s: Rate at which weights are loaded from host memory. Source: ServerlessLLM's format as measured
            (from NVMe to an H100, which the link bounds); on CPU nodes ours, the same.
        load_fixed_s: Fixed time of a load. Source: ours; the loader keeps processes and pools ready.
        unload_s: Time of an unload. Source: ours.
        keep_alive_s: After which an idle instance is unloaded. Source: section 8.1.
        profile_error: How far measured iteration times may be off: half-width w of a factor exp(u), u in [-w, w].
            Policies and observations have the measured ones (`envs.simulator.sharing.profiling`), the nodes run by the
            true ones. 0: they are the same.
        profile_seed: Seed of these errors; the profile is the same in all episodes.
        on_oom: Outcome of the requests of an instance killed by an allocation: "fail", or "restart" at the
            gateway.
    """

    nodes: tuple[NodeSpec, ...] = TESTBED
    engine: str = NEWEST_ENGINE
    front_end: str = "included"
    slots_per_node: int = 12
    max_num_seqs: int = 256
    block_tokens: int = 16
    memory_utilization: float = 0.9
    max_tokens: int = 4096
    load_bytes_per_s: float = STORAGE_BYTES_PER_S["serverlessllm"]
    load_fixed_s: float = 0.2
    unload_s: float = 0.1
    keep_alive_s: float = 1.0
    profile_error: float = 0.0
    profile_seed: int = 0
    on_oom: str = "fail"

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("cluster.nodes must name at least one kind of node")
        kinds = [node.kind for node in self.nodes]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"cluster.nodes must differ in kind, got {', '.join(kinds)}")
        check_at_least(
            self, 1, "slots_per_node", "max_num_seqs", "block_tokens", "max_tokens", prefix="cluster."
        )
        check_within(self, "(0, 1]", "memory_utilization", prefix="cluster.")
        check_within(self, "[0, 1]", "profile_error", prefix="cluster.")
        check_at_least(self, 0, "profile_seed", prefix="cluster.")
        check_positive(self, "load_bytes_per_s", prefix="cluster.", finite=True)
        check_not_negative(self, "load_fixed_s", "unload_s", "keep_alive_s", prefix="cluster.", finite=True)
        check_choice("cluster.front_end", self.front_end, FRONT_ENDS)
        if self.on_oom not in ("fail", "restart"):
            raise ValueError(f"cluster.on_oom must be 'fail' or 'restart', got {self.on_oom!r}")

    @property
    def num_nodes(self) -> int:
        """Nodes of all kinds."""
        return sum(node.count for node in self.nodes)

    def resize_s_per_byte(self, node: NodeSpec) -> tuple[float, float]:
        """How long a resize of a KV pool takes for each byte that is kept (copied), and that is added, s."""
        if node.kv_resize == FIGURE_8:
            return KV_COPY_S_PER_BYTE, KV_CREATE_S_PER_BYTE
        written_s = 1.0 / (_BANDWIDTH_REACHED * get_gpu(node.hardware).bandwidth)
        return 2.0 * written_s, written_s  # a copy reads and writes

    def memory_bytes(self, node: NodeSpec) -> int:
        """Memory of a node for weights and KV caches."""
        if node.memory_gb is not None:
            return round(node.memory_gb * 1e9)
        return round(self.memory_utilization * get_gpu(node.hardware).memory_bytes)
