"""Specification of a cluster that can be divided into replicas: GPUs, model, and costs of a switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serving_gym.calibration.engines import NEWEST_ENGINE
from serving_gym.calibration.fields import check_at_least, check_not_negative
from serving_gym.calibration.models import get_model
from serving_gym.calibration.transitions import STORAGE_BYTES_PER_S
from serving_gym.envs.interface.fleet import ReplicaSpec
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind, replica_kinds
from serving_gym.envs.machines.kv_migration import CHUNK_BYTES, DRAIN_BELOW_TOKENS

# Communicators, KV pools and captured graphs of the new replicas, s. Source: OServe, section 6.3: a switch of a 70B
# model takes "around 10 seconds for any case", of which the bytes take less than one on 400 GB/s of NVLink.
REINIT_S = 9.0
DRAIN_LIMIT_S = 10.0  # source: ours
_SCHEDULING = (
    "order",
    "dpa_expired_s",
    "dpa_urgent_s",
    "chunked_prefill",
    "reserve_full_prompt",
    "long_prefill_token_threshold",
    "scheduler",
    "preemption",
    "swap_gib",
)


@dataclass(frozen=True)
class DeploymentSpec:
    """A cluster serving one model, with the scheduling settings of its engines.

    Args:
        model: Name of a model in `calibration.models`.
        gpu: Name of a GPU in `calibration.hardware`.
        engine: Serving engine in `calibration.engines` that gives replicas latency, scheduling and front end, at any
            width; empty: the profile of the model on the GPU from kernel tables alone, at the widths it was fitted at.
        profile: File of a measured profile, or name of a committed one, that replicas have their latency from, at the
            widths it was fitted at, in place of `engine`.
        front_end: "included" or "none", as in `ClusterSpec`.
        num_machines: Machines.
        gpus_per_machine: GPUs of each. Source: OServe, section 6.1, 8.
        nvlink_bytes_per_s: Bandwidth of a GPU to the others of its machine, each way, bytes/s. Source: section 6.1.
        network_bytes_per_s: Bandwidth of a machine to the others, each way, bytes/s. Source: section 6.1.
        max_pp: Longest pipeline. Source: ours.
        disaggregation: Whether prefill and decode workers are allowed, in addition to mixed replicas.
        storage_bytes_per_s: Rate at which a replica that is reloaded reads its weights, bytes/s.
        reinit_s: Time to start engines after their weights have arrived, s, reloaded or not.
        drain_below_tokens: At an ad hoc switch, decoding requests with less context are drained, others migrate.
        drain_limit_s: Longest time of this drain, s; requests still running then are recomputed elsewhere.
        chunk_bytes: Most bytes of a chunk of KV.
        request_timeout_s: Time from its arrival after which the server ends a request, whatever it has of it, and its
            client gets an error, s; None: never (vLLM's own behaviour; gateways before it usually have a limit).
        order: Queue order of the engines: fcfs, priority, edf or dpa.
        scheduler: As in `ClusterSpec`, and so are the next two.
        preemption: "recompute" or "swap".
        swap_gib: Host memory for KV that is swapped out, GiB a GPU.
        max_num_seqs: Most running requests of a replica.
        max_num_batched_tokens: Token budget of an iteration.
        block_size: Tokens per KV block.
        memory_utilization: Share of GPU memory that weights and KV may use.
        kv_blocks: KV blocks of a replica per GPU; None: what fits
            the memory.
        max_model_len: Longest request, prompt and answer, tokens; None: the model's context. A request is also bounded
            by the KV blocks.
    """

    model: str = "llama-2-70b"
    gpu: str = "H100"
    engine: str = NEWEST_ENGINE
    profile: str | None = None
    front_end: str = "included"
    num_machines: int = 2
    gpus_per_machine: int = 8
    nvlink_bytes_per_s: float = 400e9
    network_bytes_per_s: float = 200e9
    max_pp: int = 4
    disaggregation: bool = False
    storage_bytes_per_s: float = STORAGE_BYTES_PER_S["safetensors"]
    reinit_s: float = REINIT_S
    drain_below_tokens: int = DRAIN_BELOW_TOKENS
    drain_limit_s: float = DRAIN_LIMIT_S
    chunk_bytes: float = CHUNK_BYTES
    order: str = "fcfs"
    dpa_expired_s: float = 5.0
    dpa_urgent_s: float = 1.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16
    memory_utilization: float = 0.9
    kv_blocks: int | None = None
    max_model_len: int | None = None
    chunked_prefill: bool | None = None
    reserve_full_prompt: bool = True
    long_prefill_token_threshold: int = 0
    request_timeout_s: float | None = None
    scheduler: str | None = None
    preemption: str = "recompute"
    swap_gib: float = 4.0

    def __post_init__(self) -> None:
        get_model(self.model)
        _ = self.cluster, self.replica  # they check their own fields
        check_at_least(self, 1, "storage_bytes_per_s", "chunk_bytes", "max_pp", prefix="cluster.")
        check_not_negative(
            self, "reinit_s", "drain_limit_s", "drain_below_tokens", prefix="cluster.", finite=True
        )

    @property
    def router(self) -> str:
        """Requests follow the assignment."""
        return "weighted"

    @property
    def prefix_caching(self) -> bool:
        """Prefixes are not cached: requests are routed by type, not by prefix."""
        return False

    @property
    def cluster(self) -> Cluster:
        """Machines and links."""
        return Cluster(
            self.num_machines,
            self.gpus_per_machine,
            self.gpu,
            self.nvlink_bytes_per_s,
            self.network_bytes_per_s,
        )

    @property
    def num_gpus(self) -> int:
        """GPUs of all machines."""
        return self.num_machines * self.gpus_per_machine

    @property
    def replica(self) -> ReplicaSpec:
        """A replica on one GPU; kinds change its degrees and role."""
        return ReplicaSpec(
            model=self.model,
            gpu=self.gpu,
            engine=self.engine,
            profile=self.profile,
            kv_blocks=self.kv_blocks,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            memory_utilization=self.memory_utilization,
        )

    @property
    def scheduling(self) -> dict[str, Any]:
        """How its engines schedule, as fields of `FleetSpec`: what a replica is profiled with."""
        return {name: getattr(self, name) for name in _SCHEDULING}

    @property
    def kinds(self) -> tuple[ReplicaKind, ...]:
        """Kinds that architecture and machines allow, of every role; some may not fit the memory."""
        mixed = replica_kinds(get_model(self.model), self.cluster, self.max_pp)
        if not self.disaggregation:
            return mixed
        roles = ("mixed", "prefill", "decode")
        return tuple(ReplicaKind(kind.tp, kind.pp, role) for role in roles for kind in mixed)
