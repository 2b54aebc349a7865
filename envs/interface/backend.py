"""What a cluster shows and what it can be told, whichever body it has.

A `Backend` is the calibrated simulator or live vLLM servers. It shows a `ClusterState` and obeys `Command`s; everything
above it, environments, heuristics and learned policies, sees nothing else. A command that cannot be carried out is
refused with a reason and counted, never silently mended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.envs.interface.layout import Group, Layout, groups_of

if TYPE_CHECKING:
    from serving_gym.envs.interface.metrics import RequestRecords
    from serving_gym.envs.workload.schema import Workload


class SwitchMode(IntEnum):
    """How a live switch treats the requests that are running (Flying Serving, section 5.2)."""

    SEQUENTIAL = 0  # wait for the stragglers
    SOFT = 1  # meanwhile idle members run waiting requests in DP; these are recomputed after the switch
    HARD = 2  # running DP requests stand still with their KV resident; requests of a split TP group are recomputed


class EngineStatus(IntEnum):
    """What an engine slot is doing."""

    INACTIVE = 0  # a group that is not part of the layout
    ACTIVE = 1
    DRAINING = 2  # finishes what it runs, takes nothing new
    SPECULATIVE = 3  # drained early in a soft switch and serving in DP until the others are done
    PAUSED = 4  # stands still, KV resident
    DOWN = 5  # failed or starting


# One row an engine slot. Everything here can be read off a real engine or its router.
ENGINE_STATE_DTYPE = np.dtype(
    [
        ("status", np.int32),  # EngineStatus
        ("first_gpu", np.int32),
        ("width", np.int32),  # GPUs: the engine's TP degree
        ("num_running", np.int32),
        ("num_prefilling", np.int32),  # of the running ones
        ("num_waiting", np.int32),
        ("pending_prefill_tokens", np.int64),
        ("context_tokens", np.int64),  # KV tokens of decoding requests
        ("kv_used_blocks", np.int64),
        ("kv_capacity_blocks", np.int64),  # what is left of the pool after paused requests of other groups
        ("kv_capacity_tokens", np.int64),
        ("preemptions", np.int64),  # since the episode began, as the next three
        ("generated_tokens", np.int64),
        ("prefilled_tokens", np.int64),
        ("busy_s", np.float64),
    ],
    align=True,
)

# Columns of ClusterState.totals, one row a request class, counted since the episode began.
TOTALS = (
    "arrived",
    "arrived_tokens",  # prompt tokens
    "refused",
    "failed",
    "first_tokens",
    "ttft_met",
    "ttft_sum_s",
    "finished",
    "tpot_met",
    "tpot_sum_s",
    "good",  # finished within both SLOs
    "generated_tokens",  # of finished requests
)


@dataclass(frozen=True, slots=True)
class Transition:
    """A reconfiguration in flight."""

    region: Group  # base engines concerned
    target: tuple[Group, ...]
    mode: SwitchMode | None  # None: a cold restart
    started_s: float
    due_s: float | None  # None: still waiting for requests to drain


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What a policy may know at a decision."""

    now_s: float
    engines: NDArray[np.void]  # (num_slots,) ENGINE_STATE_DTYPE
    layout: Layout  # groups that serve or are being drained, left to right
    target_layout: Layout  # what the layout will be when every transition is done
    transitions: tuple[Transition, ...]
    num_pooled: int  # requests that no engine could take yet
    pooled_tokens: int  # their tokens to prefill
    totals: NDArray[np.float64]  # (num_classes, len(TOTALS))
    waiting: tuple[WaitingRequest, ...]  # requests whose arrival asked for this decision, oldest first
    stale: tuple[
        int, ...
    ] = ()  # engine slots whose gauges are too old to be trusted; in simulation none ever is

    @property
    def active(self) -> NDArray[np.void]:
        """Rows of the engines that take requests."""
        status = self.engines["status"]
        return self.engines[(status == EngineStatus.ACTIVE) | (status == EngineStatus.SPECULATIVE)]


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """What a router sees of a request that has not begun: never its true output length."""

    index: int
    arrival_s: float
    input_tokens: int
    max_output_tokens: int
    priority: int
    class_id: int

    @classmethod
    def of(cls, workload: Workload, row: int) -> WaitingRequest:
        """A row of a workload as a router sees it."""
        return cls(
            index=row,
            arrival_s=float(workload.arrival_s[row]),
            input_tokens=int(workload.input_tokens[row]),
            max_output_tokens=int(workload.max_output_tokens[row]),
            priority=int(workload.priority[row]),
            class_id=int(workload.class_id[row]),
        )


@dataclass(frozen=True, slots=True)
class SetLayout:
    """Switch live to `layout`; regions that differ switch independently. Needs engines that hold whole weights.

    At time zero it is the choice of the first layout and costs nothing.
    """

    layout: Layout
    mode: SwitchMode = SwitchMode.SEQUENTIAL

    def __post_init__(self) -> None:
        groups_of(self.layout)


@dataclass(frozen=True, slots=True)
class Redeploy:
    """Stop every engine and start `layout` from cold; at time zero it is the initial deployment and costs nothing.

    `weights="sharded"` gives each engine only its own shard (more room for KV, no live switching afterwards).
    `execution="shift"` runs wide batches sequence-parallel (Shift Parallelism), narrow ones tensor-parallel.
    """

    layout: Layout
    execution: str = "tp"
    weights: str = "sharded"

    def __post_init__(self) -> None:
        groups_of(self.layout)
        if self.execution not in ("tp", "shift"):
            raise ValueError(f"execution must be 'tp' or 'shift', got {self.execution!r}")
        if self.weights not in ("sharded", "whole"):
            raise ValueError(f"weights must be 'sharded' or 'whole', got {self.weights!r}")


Command = SetLayout | Redeploy


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a command."""

    accepted: bool
    reason: str = ""  # why it was refused


@dataclass(frozen=True)
class Fault:
    """A GPU fails at `time_s`; its engine is back after a cold start."""

    time_s: float
    gpu: int


@dataclass(frozen=True)
class SLO:
    """Latency promise to a request class, seconds."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        check_positive(self, "ttft_s", "tpot_s", prefix="slo.")

    def ttft_limits_s(self, input_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """TTFT promise to requests of some prompt lengths, (N,)."""
        return np.full(len(input_tokens), self.ttft_s)


@dataclass(frozen=True)
class LengthSLO(SLO):
    """Latency promise whose time to first token grows with the prompt: max(ttft_s, ttft_s_per_token * input)."""

    ttft_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "ttft_s_per_token", prefix="slo.", finite=True)

    def ttft_limits_s(self, input_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """TTFT promise to requests of some prompt lengths, (N,)."""
        return np.maximum(self.ttft_s, self.ttft_s_per_token * input_tokens)


def promises(slos: Mapping[str, SLO], classes: Sequence[str]) -> tuple[SLO, ...]:
    """Promises in the order of the workload's classes.

    Raises:
        ValueError: a class without one.
    """
    missing = [name for name in classes if name not in slos]
    if missing:
        raise ValueError(f"slos has no entry for class {missing[0]!r}; it has {', '.join(slos) or 'none'}")
    return tuple(slos[name] for name in classes)


@dataclass(frozen=True)
class ClusterSpec:
    """A node of GPUs serving one model.

    Attributes:
        model: Name of a model in `calibration.specs`.
        gpu: Name of a GPU there.
        num_gpus: GPUs of the node.
        base_width: GPUs of one base engine; the node has num_gpus / base_width of them.
        max_group: Most base engines that may be merged; None: all of them.
        layout: Layout at the start; None: every base engine on its own.
        weights: "whole" (each base engine holds the model and can be merged live) or "sharded".
        router: Built-in router: round_robin, least_requests, jsq (tokens over speed), affinity (urgent requests to the
            widest engines, the others to the narrower ones, jsq among them) or hold.
        order: Queue order of the engines: fcfs, priority (vLLM's), edf (earliest deadline first) or dpa (deadline and
            priority aware); a deadline is the arrival plus the class's TTFT promise (SageServe, section 6.5).
        dpa_expired_s: Under dpa, requests this long after their deadline come first (source: ours, the paper gives no
            value).
        dpa_urgent_s: Under dpa, requests with no more than this left come before others (source: ours).
        prefix_caching: Whether engines keep KV blocks of prompts that begin alike (workloads with `hash_ids`).
        block_size: Tokens a KV block holds in a base engine; a group of p of them fits p times as many.
        max_num_seqs: Most running requests of an engine.
        max_num_batched_tokens: Token budget of an iteration.
        long_prefill_token_threshold: Longest prefill chunk; 0 for none.
        async_scheduling: Whether an iteration is put together while the one before it runs, so that an arrival waits
            for one more (vLLM's default on GPUs); None: as the engine did that the profile was measured on.
        memory_utilization: Share of GPU memory that weights and KV may use.
        kv_blocks_override: KV blocks of a base engine; None: what fits its memory (vLLM's --num-gpu-blocks-override,
            which counts one block more, kept back as padding).
        profile: File of a measured profile, or name of a committed one, which then says what model and GPU are; None:
            the committed one of `model` on `gpu`.
        switch_s: Duration of a live switch once the engines are ready for it; None: the profile's.
        cold_start_s: Duration of a cold start by engine width in GPUs; None: the profile's.
    """

    model: str = "gpt-oss-120b"
    gpu: str = "H200"
    num_gpus: int = 8
    base_width: int = 1
    max_group: int | None = None
    layout: Layout | None = None
    weights: str = "whole"
    router: str = "affinity"
    order: str = "priority"
    dpa_expired_s: float = 5.0
    dpa_urgent_s: float = 1.0
    prefix_caching: bool = False
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    chunked_prefill: bool = True
    reserve_full_prompt: bool = True
    long_prefill_token_threshold: int = 0
    async_scheduling: bool | None = None
    memory_utilization: float = 0.8
    kv_blocks_override: int | None = None
    profile: str | None = None
    switch_s: float | None = None
    cold_start_s: dict[int, float] | None = field(default=None, hash=False)

    @property
    def num_base(self) -> int:
        """Base engines of the node."""
        return self.num_gpus // self.base_width


class Backend(Protocol):
    """One cluster, simulated or real."""

    spec: ClusterSpec

    def reset(self, workload: Workload, faults: tuple[Fault, ...] = ()) -> ClusterState:
        """Empties the cluster and prepares to serve `workload` from time zero."""
        ...

    def observe(self) -> ClusterState:
        """What the cluster shows now."""
        ...

    def apply(self, command: Command) -> Receipt:
        """Begins to carry out a command, or refuses it."""
        ...

    def advance(self, until_s: float) -> bool:
        """Lets time pass to `until_s`. Returns True if it stopped early because a request asks for a decision."""
        ...

    def results(self) -> RequestRecords:
        """What happened to every request that has arrived."""
        ...
