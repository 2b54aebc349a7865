"""ServerlessLLM's serving layer as in LLM-Mesh's section 8.1: a node for an instance, scaled by concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving_gym.baselines.common.sharing import SharingPolicy
from serving_gym.baselines.llm_mesh.bin_packing import Packing, instance_order, node_order
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    NewInstance,
    Place,
    Retry,
    TokenScheduler,
)
from serving_gym.envs.sharing.state import Share, SharingState

_TAKES_REQUESTS = (InstanceStatus.LOADING, InstanceStatus.SERVING)
TAILORED_CPU = {"llama-3.2-3b": 59, "llama-2-7b": 15, "llama-2-13b": 6}
TAILORED_GPU = {"llama-3.2-3b": 160, "llama-2-7b": 32, "llama-2-13b": 16}


@dataclass(frozen=True)
class ServerlessLLMConfig(Constants):
    """Constants of `ServerlessLLMPolicy`.

    Attributes:
        use_cpu: Whether CPU nodes are used as well (sllm+cpu). Source: LLM-Mesh, section 8.1.
        concurrency_cpu: Most requests of an instance on a CPU node, by size of model. Source: LLM-Mesh, section 8.1.
        concurrency_gpu: The same on a GPU node.
        default_concurrency: For sizes that are not named. Source: LLM-Mesh, section 8.1 (ServerlessLLM's own default).
        concurrency_factor: On all of these, rounded, at least 1. Source: ours, for tuning; 1 is the paper's.
        keep_alive_s: After which an idle instance is recycled, seconds. Source: LLM-Mesh, section 8.1.
    """

    use_cpu: bool = False
    concurrency_cpu: Mapping[str, int] = field(default_factory=lambda: dict(TAILORED_CPU))
    concurrency_gpu: Mapping[str, int] = field(default_factory=lambda: dict(TAILORED_GPU))
    default_concurrency: int = 2
    concurrency_factor: float = tunable(1.0, 0.1, 4.0, log=True)
    keep_alive_s: float = tunable(1.0, 0.1, 60.0, log=True)

    def __post_init__(self) -> None:
        for name in ("concurrency_cpu", "concurrency_gpu"):
            for size, value in getattr(self, name).items():
                if not value >= 1:
                    raise ValueError(f"{name}.{size} must be at least 1, got {value}")
        check_at_least(self, 1, "default_concurrency")
        check_positive(self, "concurrency_factor", finite=True)
        check_not_negative(self, "keep_alive_s")


class ServerlessLLMPolicy(SharingPolicy, Configured[ServerlessLLMConfig]):
    """Exclusive nodes.

    * A request goes to the least loaded instance of its model ("existing work typically uses a spread strategy", LLM-
      Mesh, section 7.2) with fewer requests than its concurrency, those on CPU nodes first.
    * Where all are full, a new instance gets a whole node, all of whose memory is its own; a CPU node first. As vLLM
      does, it starts only where its KV cache holds the longest sequence of its model.
    * Where no node is free, the request waits at the gateway.

    ServerlessLLM's own subject, fast loading and live migration, is the world's: loads take what its loader takes, in
    all systems alike (LLM-Mesh, section 8.1).
    """

    name = "sllm"

    def begin(self) -> None:
        """Looks up how many requests an instance of each model may have on each node."""
        config, setting = self.config, self.setting
        kinds = [setting.kinds[kind] for kind in setting.node_kinds]
        self._rank = [int(kind != "cpu") for kind in kinds]
        self._usable = [config.use_cpu or kind != "cpu" for kind in kinds]
        tables = [config.concurrency_cpu if kind == "cpu" else config.concurrency_gpu for kind in kinds]
        sizes = [setting.sizes[model.size] for model in setting.models]
        self._concurrency = [
            [
                max(1, round(config.concurrency_factor * table.get(size, config.default_concurrency)))
                for size in sizes
            ]
            for table in tables
        ]
        self._configured = False

    def act(self, observation: Any, state: SharingState) -> Action:
        """Places a request; memory never changes while an instance lives."""
        commands: tuple[Configure, ...] = ()
        if not self._configured:
            self._configured = True
            commands = (Configure(TokenScheduler.EXCLUSIVE, True, self.config.keep_alive_s),)
        if state.event != Event.PLACEMENT:
            return Share(commands=commands)
        model = int(state.requests[state.offered]["model"])
        return Share(self._place(state, model), commands, retry=Retry.AFTER_RELEASE)

    def _place(self, state: SharingState, model: int) -> Place | None:
        slot = self._instance(state, model)
        return self._new(state, model) if slot is None else slot

    def _instance(self, state: SharingState, model: int) -> int | None:
        own = (state.instances["model"] == model).nonzero()[0].tolist()
        width = self.setting.slots_per_node
        found = []
        for slot in own:
            row, node = state.instances[slot], slot // width
            load = int(row["num_running"] + row["num_waiting"])
            if row["status"] in _TAKES_REQUESTS and load < self._concurrency[node][model]:
                found.append((slot, self._rank[node], load))
        order = instance_order(found, Packing.SPREAD)
        return order[0] if order else None

    def _new(self, state: SharingState, model: int) -> NewInstance | None:
        setting, own = self.setting, self.setting.models[model]
        block = own.kv_bytes_per_token * setting.block_tokens
        least = own.weights_bytes + -(-own.max_tokens // setting.block_tokens) * block
        free = [
            (node, self._rank[node], 0.0)
            for node, count in enumerate(state.nodes["num_instances"].tolist())
            if count == 0 and self._usable[node] and setting.memory_bytes[node] >= least
        ]
        order = node_order(free, Packing.SPREAD)
        if not order:
            return None
        room = int(setting.memory_bytes[order[0]]) - own.weights_bytes
        return NewInstance(order[0], room // block * block)
