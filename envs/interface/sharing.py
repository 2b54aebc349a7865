"""Sharing nodes: decision events, rows of nodes, instances and requests, the setting, and commands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class TokenScheduler(StrEnum):
    """Rule for the instance of a node that runs the next iteration.

    An iteration either prefills one waiting request of the instance or decodes one token of all its running ones.
    """

    SHORTEST_HEADROOM = (
        "shortest_headroom"  # of the request with the least headroom, prefill or decode as it needs
    )
    ROUND_ROBIN = "round_robin"  # the next one with work, by slot; in an instance, prefill first
    FCFS = "fcfs"  # of the unfinished request that arrived first; in an instance, prefill first
    EXCLUSIVE = "exclusive"  # the last one until it has no work; then first come, first served
    POLICY = "policy"  # the policy decides if two or more have work


class Event(IntEnum):
    """Event that triggers a decision."""

    PLACEMENT = 0  # `SharingState.offered` is to be placed
    FINISHED = 1  # requests of `instance` have ended (policies that manage memory only, as the next two)
    OPERATION = (
        2  # an operation on `node` is done: a load, a resize or an unload; an idle time-out began the unload
    )
    SHORTAGE = 3  # the KV pool of `instance` cannot hold the next tokens of its running requests
    ITERATION = 4  # the instance of the next iteration of `node` is to be chosen (TokenScheduler.POLICY only)
    END = 5  # the episode is over
    NONE = 6  # no decision: the simulator has reached the requested time


class Retry(IntEnum):
    """When a held request is offered again. Retries are every `retry_s` of the gateway."""

    ALWAYS = 0  # at its next retry
    # At its first retry after an instance of its model has begun or lost a request, or a node has lost its last one.
    AFTER_RELEASE = 1
    NEVER = 2  # never: only `Reschedule` can place it


class InstanceStatus(IntEnum):
    """Status of an instance slot."""

    EMPTY = 0
    LOADING = 1  # accepts requests, runs none yet
    SERVING = 2
    RESIZING = 3  # its KV cache is copied; accepts requests, runs none meanwhile
    UNLOADING = 4  # accepts no requests; its memory is held until it is done


class RequestPhase(IntEnum):
    """Phase of a request in the system."""

    HELD = 0  # has no instance: waits at the gateway
    WAITING = (
        1  # in its instance's queue, to be prefilled (again, with what it has generated, after an eviction)
    )
    RUNNING = 2  # its KV cache is in its instance's pool


# One row per node.
NODE_DTYPE = np.dtype(
    [
        ("kind", np.int32),  # index into SharingSetting.kinds
        ("num_instances", np.int32),  # slots that are not EMPTY
        ("memory_bytes", np.int64),  # memory for weights and KV caches
        # Memory in use: an operation counts with the larger of the instance's memory before and after it.
        ("held_bytes", np.int64),
        ("at_work", np.int32),  # slot whose iteration runs; -1: idle
        ("prefilling", np.int32),  # row of the workload that this iteration prefills; -1: it decodes
        ("due_s", np.float64),  # end of the iteration; now_s if idle
        ("busy_s", np.float64),  # in iterations, since the episode began
        ("used_s", np.float64),  # with an instance on it, since the episode began
    ],
    align=True,
)


# One row a slot. Slot i belongs to node i // SharingSetting.slots_per_node; a new instance takes the node's first EMPTY
# one.
INSTANCE_DTYPE = np.dtype(
    [
        ("status", np.int32),  # InstanceStatus
        ("model", np.int32),  # index into SharingSetting.models; -1 where empty, as the next
        ("node", np.int32),
        ("num_running", np.int32),  # RUNNING
        ("num_waiting", np.int32),  # WAITING
        ("weights_bytes", np.int64),
        ("kv_bytes", np.int64),  # its KV pool; during a resize, the old size
        ("kv_target_bytes", np.int64),  # its KV pool after the present operation
        ("kv_used_tokens", np.int64),  # input and generated tokens of its running requests
        ("operation_due_s", np.float64),  # end of the present operation; now_s without one
        ("idle_s", np.float64),  # time without a request; 0 if it has one
    ],
    align=True,
)


# One row per request in the system, without its true output length.
REQUEST_DTYPE = np.dtype(
    [
        ("index", np.int32),  # row of the workload; rows come in this order
        ("model", np.int32),
        ("instance", np.int32),  # slot; -1 where HELD
        ("phase", np.int32),  # RequestPhase
        ("input_tokens", np.int32),
        ("generated_tokens", np.int32),
        ("max_output_tokens", np.int32),  # declared by its client
        ("evictions", np.int32),  # times its KV cache was evicted
        ("arrival_s", np.float64),
        ("first_token_s", np.float64),  # -1 until it came
        ("ttft_slo_s", np.float64),  # max(2, input / 512) by default
        ("tpot_slo_s", np.float64),
    ],
    align=True,
)


# One row per request that has finished since the last decision.
FINISHED_DTYPE = np.dtype(
    [
        ("index", np.int32),
        ("model", np.int32),
        ("instance", np.int32),
        ("input_tokens", np.int32),
        ("output_tokens", np.int32),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class SharedModel:
    """Memory of a model.

    Attributes:
        name: Its name among the workload's models.
        size: Index into SharingSetting.sizes; models of one size differ in name only.
        weights_bytes: Weights.
        kv_bytes_per_token: KV cache of one token, C of equation 2.
        max_tokens: Longest sequence, input and output.
    """

    name: str
    size: int
    weights_bytes: int
    kv_bytes_per_token: int
    max_tokens: int


@dataclass(frozen=True, eq=False)
class SharingSetting:
    """Setting known before an episode.

    Attributes:
        kinds: Names of the kinds of node, "cpu" and "gpu".
        node_kinds: (N,), kind of each node, an index into `kinds`.
        memory_bytes: (N,), memory of a node for weights and KV caches.
        slots_per_node: Most instances on a node.
        sizes: Architectures, by name in `calibration.models`.
        models: Models that requests name.
        prefill_s: (kinds, sizes, max_tokens + 1), profiled time of prefilling one request by its length; entry 0 is 0.
        decode_s: (kinds, sizes, max_num_seqs + 1), profiled time of a decode iteration by its batch, without the
            context's share.
        context_s: (kinds, sizes), what each token of context of the batch adds to a decode iteration.
        max_num_seqs: Most running requests of an instance.
        block_tokens: Tokens of a KV block: a pool holds whole blocks.
        mean_output_tokens: Mean of the training split, as initial history.
        keep_alive_s: After which an idle instance is unloaded.
        load_s: (kinds, sizes), how long a load takes.
        unload_s: How long an unload takes.
        resize_s_per_byte: (kinds, 2), how long a resize of a KV pool takes, s for each byte that is kept and added.
    """

    decision: ClassVar[str] = "how models share nodes"

    kinds: tuple[str, ...]
    node_kinds: NDArray[np.int32]
    memory_bytes: NDArray[np.int64]
    slots_per_node: int
    sizes: tuple[str, ...]
    models: tuple[SharedModel, ...]
    prefill_s: FloatArray
    decode_s: FloatArray
    context_s: FloatArray
    max_num_seqs: int
    block_tokens: int
    mean_output_tokens: float
    keep_alive_s: float
    load_s: FloatArray
    unload_s: float
    resize_s_per_byte: FloatArray

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.node_kinds)

    @property
    def num_slots(self) -> int:
        """S, rows of SharingState.instances."""
        return self.num_nodes * self.slots_per_node

    def iteration_s(self, kind: int, size: int, batch: int, mean_tokens: float) -> float:
        """Profiled time of a decode iteration, seconds.

        Args:
            kind: Of the node.
            size: Of the model.
            batch: Running requests, at least 1.
            mean_tokens: Their mean length so far.
        """
        return float(
            self.decode_s[kind, size, batch] + self.context_s[kind, size] * round(batch * mean_tokens)
        )

    def resize_s(self, node: int, old_bytes: int, new_bytes: int) -> float:
        """Time of a KV pool's resize on a node, seconds, during which its instance runs nothing."""
        kept_s, added_s = self.resize_s_per_byte[self.node_kinds[node]].tolist()
        return float(min(old_bytes, new_bytes) * kept_s + max(new_bytes - old_bytes, 0) * added_s)


@dataclass(frozen=True, slots=True)
class NewInstance:
    """A new instance of the request's model on a node, with a KV pool of `kv_bytes`."""

    node: int
    kv_bytes: int


Place = int | NewInstance  # a slot, or a new instance


@dataclass(frozen=True, slots=True)
class Configure:
    """Changes settings; None leaves a setting unchanged.

    Attributes:
        token_scheduler: Of all nodes.
        manages_memory: Whether the policy manages memory: it then decides at FINISHED, OPERATION and SHORTAGE events,
            and the environment's memory manager is off.
        keep_alive_s: After which an idle instance is unloaded.
    """

    token_scheduler: TokenScheduler | None = None
    manages_memory: bool | None = None
    keep_alive_s: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Loads an instance without a request."""

    model: int
    node: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Unload:
    """Unloads an instance, which must have no request."""

    instance: int


@dataclass(frozen=True, slots=True)
class ResizeKV:
    """Resizes the KV pool of an instance. It must be SERVING, and the used blocks must fit.

    The instance runs nothing meanwhile. If the node lacks the memory now, the instance is killed.
    """

    instance: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Reschedule:
    """Takes a request out of its instance; its KV cache is lost and recomputed at its target.

    If its iteration is running, the result of that iteration is lost.

    Attributes:
        request: Row of the workload.
        to: Target instance; None: the gateway, which offers it at once.
    """

    request: int
    to: Place | None = None


SharingCommand = Configure | Load | Unload | ResizeKV | Reschedule
