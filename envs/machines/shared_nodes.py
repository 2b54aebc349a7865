"""What a cluster is whose nodes are shared: kinds of node, and what operations on their memory take."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.calibration.cpu import CPU_NAMES
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.transitions import STORAGE_BYTES_PER_S


@dataclass(frozen=True)
class NodeSpec:
    """Nodes of one kind.

    Attributes:
        kind: What they are called: "cpu" and "gpu" by default.
        hardware: Name of a GPU, or of a CPU that serves, in `calibration.hardware`; one a node.
        count: Nodes.
        memory_gb: What weights and KV caches of a node may take, GB; None: `memory_utilization` of the hardware's.
        time_factor: How many times as long as profiled an iteration takes; policies do not know.
    """

    kind: str
    hardware: str
    count: int
    memory_gb: float | None = None
    time_factor: float = 1.0

    def __post_init__(self) -> None:
        get_gpu(self.hardware)
        if self.count < 1:
            raise ValueError(f"cluster.nodes.count must be at least 1, got {self.count}")
        if self.memory_gb is not None and not self.memory_gb > 0:
            raise ValueError(f"cluster.nodes.memory_gb must be positive, got {self.memory_gb}")
        if not 0 < self.time_factor < float("inf"):
            raise ValueError(f"cluster.nodes.time_factor must be positive and finite, got {self.time_factor}")

    @property
    def is_cpu(self) -> bool:
        """Whether it computes on CPUs, whose iteration times are a roofline."""
        return self.hardware in CPU_NAMES


TESTBED = (NodeSpec("cpu", "Xeon-32c-AMX", 4), NodeSpec("gpu", "A100-80GB", 4))


@dataclass(frozen=True)
class SharingSpec:
    """Nodes that instances of many models share.

    Attributes:
        nodes: Kinds of node. Source: LLM-Mesh, section 8.1.
        engine: Serving engine in `calibration.engines` whose latency GPUs have. Source: the release next to the paper's
            vLLM 0.5.2.
        slots_per_node: Most instances of a node. Source: ours; the paper sees two to four.
        max_num_seqs: Most running requests of an instance. Source: vLLM's default.
        block_tokens: Tokens of a KV block. Source: vLLM's default.
        memory_utilization: Share of a node's memory that weights and KV caches may take. Source: vLLM's default.
        max_tokens: Longest sequence; a shorter limit of a model stands. Source: section 5.2.
        load_bytes_per_s: Rate at which weights are loaded from host memory. Source: ServerlessLLM's format as measured
            (from NVMe to an H100, which the link bounds); on CPU nodes ours, the same.
        load_fixed_s: What a load takes besides. Source: ours; the loader keeps processes and pools ready.
        unload_s: What an unload takes. Source: ours.
        keep_alive_s: After which an idle instance is unloaded. Source: section 8.1.
        on_oom: What becomes of the requests of an instance that dies of an allocation: they "fail", or "restart" at the
            gateway.
    """

    nodes: tuple[NodeSpec, ...] = TESTBED
    engine: str = "vllm-0.6"
    slots_per_node: int = 12
    max_num_seqs: int = 256
    block_tokens: int = 16
    memory_utilization: float = 0.9
    max_tokens: int = 4096
    load_bytes_per_s: float = STORAGE_BYTES_PER_S["serverlessllm"]
    load_fixed_s: float = 0.2
    unload_s: float = 0.1
    keep_alive_s: float = 1.0
    on_oom: str = "fail"

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("cluster.nodes must name at least one kind of node")
        kinds = [node.kind for node in self.nodes]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"cluster.nodes must differ in kind, got {', '.join(kinds)}")
        for name in ("slots_per_node", "max_num_seqs", "block_tokens", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"cluster.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.memory_utilization <= 1:
            raise ValueError(f"cluster.memory_utilization must lie in (0, 1], got {self.memory_utilization}")
        if not 0 < self.load_bytes_per_s < float("inf"):
            raise ValueError(f"cluster.load_bytes_per_s must be positive, got {self.load_bytes_per_s}")
        for name in ("load_fixed_s", "unload_s", "keep_alive_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"cluster.{name} must be finite and not negative, got {getattr(self, name)}")
        if self.on_oom not in ("fail", "restart"):
            raise ValueError(f"cluster.on_oom must be 'fail' or 'restart', got {self.on_oom!r}")

    @property
    def num_nodes(self) -> int:
        """Nodes of all kinds."""
        return sum(node.count for node in self.nodes)

    def memory_bytes(self, node: NodeSpec) -> int:
        """What weights and KV caches of a node may take."""
        if node.memory_gb is not None:
            return round(node.memory_gb * 1e9)
        return round(self.memory_utilization * get_gpu(node.hardware).memory_bytes)
