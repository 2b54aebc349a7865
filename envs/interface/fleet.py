"""Fleets: replicas of several models, on several kinds of GPUs, in several regions.

A fleet is a list of replica groups. Groups of one model in one region form an endpoint; a request names a model and
comes from a region, and goes to the endpoint of both, unless a policy sends it to another region. Replicas can be
started and stopped; a group has a fixed number of replica slots (places), and an empty slot costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from serving_gym.calibration.engines import NEWEST_ENGINE
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.calibration.transitions import (
    COLD_START_RULE,
    LINK_BYTES_PER_S,
    MIGRATION_STAGE_S,
    STORAGE_BYTES_PER_S,
)

ROLES = ("mixed", "prefill", "decode")
LEAST_MODEL_LEN = 2  # tokens: a prompt of one, and one of its answer


@dataclass(frozen=True)
class ReplicaSpec:
    """One kind of replica.

    Args:
        model: Name of a model in `calibration.models`.
        gpu: Name of a GPU in `calibration.hardware`.
        tp_size: Tensor-parallel degree.
        pp_size: Pipeline-parallel degree; the replica has tp_size x pp_size GPUs.
        role: mixed, or prefill and decode replicas that share a request (disaggregated prefill).
        max_num_seqs: Most running requests.
        max_num_batched_tokens: Token budget of an iteration.
        block_size: Tokens per KV block.
        memory_utilization: Share of GPU memory that weights and KV may use.
        kv_blocks: KV blocks; None: what fits the memory.
        max_model_len: Longest request, prompt and answer, tokens; None: the model's context. A request is also bounded
            by the KV blocks. More than the context is for positions that are extended, as vLLM allows with
            VLLM_ALLOW_LONG_MAX_MODEL_LEN.
        engine: Serving engine in `calibration.engines` that gives it latency, scheduling and front end, at any width
            (`calibration.deployments.find_profile`); empty: the profile of the model on the GPU from kernel tables
            alone, at the widths it was fitted at; None: that of its fleet, and without one the newest.
        profile: File of a measured profile, or name of a committed one, which then takes the place of model, GPU
            and engine.
    """

    model: str
    gpu: str
    tp_size: int = 1
    pp_size: int = 1
    role: str = "mixed"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16
    memory_utilization: float = 0.9
    kv_blocks: int | None = None
    max_model_len: int | None = None
    engine: str | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        check_at_least(
            self,
            1,
            "tp_size",
            "pp_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            prefix="replica.",
        )
        if self.role not in ROLES:
            raise ValueError(f"replica.role must be one of {', '.join(ROLES)}, got {self.role!r}")
        check_within(self, "(0, 1]", "memory_utilization", prefix="replica.")
        check_at_least(self, 1, "kv_blocks", prefix="replica.")
        check_at_least(self, LEAST_MODEL_LEN, "max_model_len", prefix="replica.")

    @property
    def num_gpus(self) -> int:
        """GPUs of a replica."""
        return self.tp_size * self.pp_size


@dataclass(frozen=True)
class GroupSpec:
    """Slots for replicas of one kind in one region.

    Args:
        replica: Kind of replica.
        count: Replicas that run at the start.
        places: Most replicas; None: `count`.
        region: Name of the region.
    """

    replica: ReplicaSpec
    count: int
    places: int | None = None
    region: str = "local"

    def __post_init__(self) -> None:
        check_not_negative(self, "count", prefix="group.")
        if self.num_places < max(self.count, 1):
            raise ValueError(f"group.places must be at least 1 and group.count, got {self.places}")

    @property
    def num_places(self) -> int:
        """Most replicas."""
        return self.count if self.places is None else self.places


@dataclass(frozen=True)
class NetworkLatency:
    """Network latency of a request that is served in another region than its own, in both directions.

    One number stands for the whole round trip, so that the time to the first token is what the client sees; the request
    reaches the engine that much later. The distance does not change the time between later tokens.
    Source of sizes: SageServe, section 7.1, between data centres: below 0.5 s in 90 % of cases, 2.5 s in less than 2 %.

    Args:
        regions: The two regions.
        round_trip_s: Round-trip time, s.
    """

    regions: tuple[str, ...]
    round_trip_s: float

    def __post_init__(self) -> None:
        if len(set(self.regions)) != 2 or len(self.regions) != 2:
            raise ValueError(f"network.regions must be two regions, got {list(self.regions)}")
        check_not_negative(self, "round_trip_s", prefix="network.", finite=True)


@dataclass(frozen=True)
class SlowNode:
    """Iterations of a replica slot take `factor` times as long from `time_s` for `duration_s`; below 1 they are faster.

    The iteration in flight is not affected. Of several at once the largest factor applies; a restart does not end them.
    Routers continue to use the nominal speed.

    Attributes:
        time_s: When it begins, s.
        place: The slot.
        factor: On iteration times.
        duration_s: For how long, s.
    """

    time_s: float
    place: int
    factor: float
    duration_s: float = float("inf")

    def __post_init__(self) -> None:
        check_positive(self, "factor", prefix="slow_node.", finite=True)
        if self.time_s < 0 or not self.duration_s > 0:
            raise ValueError(
                "slow_node.time_s must not be negative and slow_node.duration_s must be positive"
            )


@dataclass(frozen=True)
class Crash:
    """The replica in a slot fails at `time_s` and is restarted.

    Its running requests fail, its waiting requests are routed again. A draining replica is removed;
    a starting one restarts. An empty slot is not affected.

    Attributes:
        time_s: When, s.
        place: The slot.
    """

    time_s: float
    place: int

    def __post_init__(self) -> None:
        check_not_negative(self, "time_s", prefix="crash.")


FleetFault = Crash | SlowNode


@dataclass(frozen=True)
class FleetSpec:
    """A fleet and how its engines schedule; the fields that `ClusterSpec` has too mean the same.

    Args:
        groups: Replica groups; the slots of an endpoint are numbered in their order.
        router: Built-in router within an endpoint: round_robin, least_requests, jsq or hold.
        engine: That of replicas which name none of their own.
        max_model_len: That of replicas which name none of their own.
        order: Queue order of the engines: fcfs, priority, edf or dpa.
        front_end: "included" or "none", as in `ClusterSpec`.
        host_kv_gib: Host memory of a replica for KV that its GPU has no room for, GiB; 0: none. Needs
            `prefix_caching`. As vLLM's offloading connector: least recently used, stores and loads overlap with
            computing, a request is admitted when its KV has been loaded.
        host_bytes_per_s: Bandwidth of loading it, bytes/s a GPU; None: that of the GPU's link to the host
            (`calibration.hardware`).
        weight_source: Source of a starting replica's weights: "storage" (each at `storage_bytes_per_s`) or
            "peer" (from a running replica of the same model in the region, if there is one, over its network link).
        storage_bytes_per_s: Bandwidth of loading from storage, bytes/s; `calibration.transitions.STORAGE_BYTES_PER_S`
            has measured ones, this is vLLM's default format.
        link_bytes_per_s: Bandwidth of a replica's network link, each way, bytes/s, shared max-min fairly by its
            transfers.
        start_fixed_s: Time of a start after its weights are loaded, s: engine start and graph capture, here the
            fixed part of Flying Serving's cold starts (`calibration.transitions.COLD_START_RULE`).
        migration_stage_s: Time of a stage of a live migration in addition to the copy over the link, s
            (`calibration.transitions.MIGRATION_STAGE_S`, after Llumnix).
        network: Latencies between regions; within one there is none.
        default_round_trip_s: Latency between regions that `network` does not name, s; None: they are not connected,
            and sending a request there is refused.
    """

    groups: tuple[GroupSpec, ...]
    engine: str = NEWEST_ENGINE
    router: str = "jsq"
    max_model_len: int | None = None
    order: str = "fcfs"
    dpa_expired_s: float = 5.0
    dpa_urgent_s: float = 1.0
    prefix_caching: bool = False
    chunked_prefill: bool | None = None
    reserve_full_prompt: bool = True
    long_prefill_token_threshold: int = 0
    request_timeout_s: float | None = None
    front_end: str = "included"
    host_kv_gib: float = 0.0
    host_bytes_per_s: float | None = None
    async_scheduling: bool | None = None
    scheduler: str | None = None
    preemption: str = "recompute"
    swap_gib: float = 4.0
    weight_source: str = "storage"
    storage_bytes_per_s: float = STORAGE_BYTES_PER_S["safetensors"]
    link_bytes_per_s: float = LINK_BYTES_PER_S
    start_fixed_s: float = COLD_START_RULE.fixed_s
    migration_stage_s: float = MIGRATION_STAGE_S
    network: tuple[NetworkLatency, ...] = ()
    default_round_trip_s: float | None = None

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("fleet.groups must have at least one group of replicas")
        if self.weight_source not in ("storage", "peer"):
            raise ValueError(f"fleet.weight_source must be storage or peer, got {self.weight_source!r}")
        check_at_least(self, 1, "storage_bytes_per_s", "link_bytes_per_s", prefix="fleet.")
        check_at_least(self, LEAST_MODEL_LEN, "max_model_len", prefix="fleet.")
        check_not_negative(self, "start_fixed_s", "migration_stage_s", prefix="fleet.")
        check_not_negative(self, "host_kv_gib", prefix="fleet.", finite=True)
        check_positive(self, "host_bytes_per_s", prefix="fleet.", finite=True)
        if self.host_kv_gib > 0 and not self.prefix_caching:
            raise ValueError(
                f"fleet.host_kv_gib needs fleet.prefix_caching=true: it keeps cached prefixes, got {self.host_kv_gib}"
            )
        pairs = [tuple(sorted(latency.regions)) for latency in self.network]
        for pair in pairs:
            if pairs.count(pair) > 1:
                raise ValueError(f"fleet.network names {' and '.join(pair)} more than once")
        check_not_negative(self, "default_round_trip_s", prefix="fleet.", finite=True)

    def round_trip_s(self, origin: str, region: str) -> float | None:
        """Network latency of a request from one region that is served in another, s; None: they are not connected."""
        if origin == region:
            return 0.0
        named = (latency.round_trip_s for latency in self.network if {origin, region} == set(latency.regions))
        return next(named, self.default_round_trip_s)

    def limited(self, replica: ReplicaSpec) -> ReplicaSpec:
        """A replica with the fleet's `max_model_len` and `engine` where it has none of its own."""
        longest = self.max_model_len if replica.max_model_len is None else replica.max_model_len
        engine = self.engine if replica.engine is None else replica.engine
        return replace(replica, max_model_len=longest, engine=engine)

    @property
    def num_places(self) -> int:
        """Replica slots of all groups."""
        return sum(group.num_places for group in self.groups)


@dataclass(frozen=True)
class FleetConfig(FleetSpec):
    """A fleet and its faults.

    Attributes:
        crashes: Replicas that fail.
        slow_nodes: Slots that slow down.
    """

    crashes: tuple[Crash, ...] = ()
    slow_nodes: tuple[SlowNode, ...] = ()

    @property
    def faults(self) -> tuple[FleetFault, ...]:
        """All of them."""
        return (*self.crashes, *self.slow_nodes)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a replica in an empty slot."""

    place: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Take a replica out of service: it finishes its requests (`drain`), or they are routed elsewhere at once."""

    place: int
    drain: bool = True


@dataclass(frozen=True, slots=True)
class ResizeKV:
    """Resize a replica's KV pool; after the iteration in flight it runs nothing while blocks are copied.

    What is running must fit the new pool (a smaller one holds for admission at once), and that the GPU memory. The pool
    stays with the place when its replica is started again.
    """

    place: int
    kv_blocks: int

    def __post_init__(self) -> None:
        check_at_least(self, 1, "kv_blocks")


@dataclass(frozen=True, slots=True)
class Route:
    """Send a pooled request to a replica of its model.

    In another region it arrives after the network latency between the two; until then it cannot be sent
    to another replica. If the replica is lost meanwhile, it waits for a decision again.
    """

    request: int  # row of the workload
    place: int


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move a request to another replica of the endpoint, as Llumnix does (OSDI 24, section 4.2).

    A decoding request moves with its KV while it continues decoding (`envs.simulator.fleet.migrating`); one waiting in
    an engine's queue and has no KV moves at once. One whose prompt is being prefilled cannot move.
    """

    request: int  # row of the workload
    place: int


@dataclass(frozen=True, slots=True)
class Underway:
    """An operation in progress, as a policy observes it."""

    kind: str  # starting, stopping, resizing or migrating
    place: int  # its slot; of a migration, the target
    started_s: float
    due_s: float | None  # expected end; None: it waits for requests; of a migration, end of the present step
    request: int | None = None  # of a migration, row of the workload


FleetCommand = Start | Stop | ResizeKV | Route | Migrate

__all__ = [
    "ROLES",
    "Crash",
    "FleetCommand",
    "FleetConfig",
    "FleetFault",
    "FleetSpec",
    "GroupSpec",
    "Migrate",
    "NetworkLatency",
    "ReplicaSpec",
    "ResizeKV",
    "Route",
    "SlowNode",
    "Start",
    "Stop",
    "Underway",
]
