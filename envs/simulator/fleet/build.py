"""From a `FleetSpec` to what the kernel needs: places, endpoints, block pools and latency tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.engines import NEWEST_ENGINE, Frontend
from serving_gym.calibration.latency import LatencyModel, LatencyTables
from serving_gym.calibration.memory import num_blocks
from serving_gym.calibration.models import ModelSpec, get_model
from serving_gym.calibration.pipeline import LINK_LATENCY_S, pipelined
from serving_gym.calibration.profile import Profile, load_profile, named_profile
from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.kernel.state import CLASS_DTYPE, KIND_DTYPE, V1, Tables, rows_of
from serving_gym.envs.simulator.scheduling import (
    check_scheduling,
    front_rows,
    scheduler_of,
    schedules_async,
    to_ps,
)


@dataclass(frozen=True)
class Fleet:
    """The constants of a fleet. Engine slot i is place i; places of one endpoint are neighbours.

    Args:
        spec: The specification.
        places: (places,) group of each place.
        group_numbers: (places,) its number in `spec.groups`.
        running: Places with a replica at the start.
        endpoints: (endpoints,) model and region of each, in the order of their places.
        first_place: (endpoints + 1,) first place of each endpoint, and the number of places.
        kinds: Rows of the tables: a replica and a slow-down.
        tables: What replicas cost and allow.
        blocks: (places,) KV blocks of a replica there.
    """

    spec: FleetSpec
    places: tuple[GroupSpec, ...]
    group_numbers: tuple[int, ...]
    running: tuple[int, ...]
    endpoints: tuple[tuple[str, str], ...]
    first_place: tuple[int, ...]
    kinds: tuple[tuple[ReplicaSpec, float], ...]
    tables: Tables
    blocks: tuple[int, ...]

    def kind(self, place: int, factor: float = 1.0) -> int:
        """Row of the tables for a place whose iterations take `factor` times as long."""
        return self.kinds.index((self.places[place].replica, factor))

    def endpoint_of(self, place: int) -> int:
        """Endpoint a place belongs to."""
        group = self.places[place]
        return self.endpoints.index((group.replica.model, group.region))

    def decodes_from(self, endpoint: int) -> int:
        """First place of an endpoint that decodes for others; the one behind its last if there is none."""
        first, last = self.first_place[endpoint : endpoint + 2]
        return next((p for p in range(first, last) if self.places[p].replica.role == "decode"), last)

    def blocks_for(self, place: int, tokens: int) -> int:
        """KV blocks that hold `tokens` tokens there."""
        return -(-tokens // self.places[place].replica.block_size)

    def _prefills_whole(self, place: int) -> bool:
        """Whether a place computes prompts in one iteration each."""
        return self.spec.chunked_prefill is False or self.tables.kinds["scheduler"][self.kind(place)] != V1

    @property
    def disaggregated(self) -> bool:
        """Whether some replicas only prefill."""
        return any(group.replica.role == "prefill" for group in self.places)

    def max_request_tokens(self, endpoint: int, blocks: Sequence[int] | NDArray[np.int64]) -> int:
        """Longest request of an endpoint, prompt and answer: its `max_model_len`, or less if no place could hold that.

        With disaggregated prefill a place of each role is to hold it.

        Args:
            endpoint: Which.
            blocks: (places,) KV blocks of each place.
        """
        first, last, decodes = *self.first_place[endpoint : endpoint + 2], self.decodes_from(endpoint)
        places = range(first, last)
        capacity = [int(blocks[place]) * self.places[place].replica.block_size for place in places]
        most = max(capacity[: decodes - first])
        if decodes < last:
            most = min(most, max(capacity[decodes - first :]))
        whole = [place for place in places if self._prefills_whole(place)]
        most = min([most, *(self.places[place].replica.max_num_batched_tokens for place in whole)])
        return min(most, context_tokens(self.places[first].replica))


@lru_cache(maxsize=64)
def _model_profile(model: str, gpu: str) -> Profile:
    """Profile of a model on a GPU; one that is a roofline estimate says so once."""
    return load_profile(model, gpu)


@lru_cache(maxsize=64)
def _own_profile(file: str) -> Profile:
    """Profile of a file."""
    return named_profile(file)


@lru_cache(maxsize=256)
def _engine_profile(deployment: Deployment) -> tuple[Profile, Frontend]:
    """Profile and front end of a deployment under a named engine."""
    return find_profile(deployment)


def profile_of(replica: ReplicaSpec) -> Profile:
    """Profile that a replica's iteration times come from."""
    if replica.profile is not None:
        return _own_profile(replica.profile)
    if replica.engine == "":
        return _model_profile(replica.model, replica.gpu)
    return _engine_profile(_deployment(replica))[0]


def front_end_of(replica: ReplicaSpec) -> Frontend:
    """What lies between a replica's clients and its engine, as far as its profile says."""
    if replica.profile is None and replica.engine != "":
        return _engine_profile(_deployment(replica))[1]
    return profile_of(replica).frontends.get(replica.tp_size, Frontend())


def _deployment(replica: ReplicaSpec) -> Deployment:
    engine = NEWEST_ENGINE if replica.engine is None else replica.engine
    return Deployment(replica.model, replica.gpu, replica.tp_size, engine, pp=replica.pp_size)


def model_of(replica: ReplicaSpec) -> ModelSpec:
    """What a replica serves."""
    return get_model(replica.model) if replica.profile is None else profile_of(replica).model


def context_tokens(replica: ReplicaSpec) -> int:
    """Its `max_model_len`: the model's context unless set, tokens."""
    return replica.max_model_len or model_of(replica).max_model_len


def lone_start_s(spec: FleetSpec, replica: ReplicaSpec) -> float:
    """What a start takes if nothing else uses the links, s: as measured, else from storage by the weights' size."""
    measured_s = profile_of(replica).transitions.get("start_s")
    if measured_s is not None:
        return measured_s
    slowest = min(spec.storage_bytes_per_s, spec.link_bytes_per_s)
    return spec.start_fixed_s + model_of(replica).weight_bytes / slowest


@lru_cache(maxsize=16)
def build_fleet(spec: FleetSpec, slos: tuple[SLO, ...], factors: tuple[float, ...] = ()) -> Fleet:
    """Works out a fleet's constants.

    Args:
        spec: The fleet.
        slos: SLO of each request class.
        factors: Factors on iteration times that replicas may have beside 1.

    Raises:
        ValueError: the spec names something unknown, or a model does not fit its GPUs.
    """
    check_scheduling(spec, "fleet")
    if spec.host_kv_gib > 0 and any(group.replica.role != "mixed" for group in spec.groups):
        raise ValueError("fleet.host_kv_gib must be 0 where replicas have the role prefill or decode")
    groups = tuple(replace(group, replica=spec.limited(group.replica)) for group in spec.groups)
    endpoints = tuple(dict.fromkeys((group.replica.model, group.region) for group in groups))
    by_endpoint = [_members(groups, endpoint) for endpoint in endpoints]
    numbered = [
        (group, number) for groups in by_endpoint for group in groups for number in range(group.num_places)
    ]
    places = tuple(group for group, _ in numbered)
    sizes = [sum(group.num_places for group in groups) for groups in by_endpoint]
    replicas = tuple(dict.fromkeys(group.replica for group in groups))
    kinds = tuple((replica, factor) for factor in dict.fromkeys((1.0, *factors)) for replica in replicas)
    return Fleet(
        spec=spec,
        places=places,
        group_numbers=tuple(
            next(number for number, own in enumerate(groups) if own is group) for group in places
        ),
        running=tuple(place for place, (group, number) in enumerate(numbered) if number < group.count),
        endpoints=endpoints,
        first_place=tuple(int(place) for place in np.cumsum([0, *sizes])),
        kinds=kinds,
        tables=stack_tables(
            kinds, slos, spec, spec.link_bytes_per_s, spec.async_scheduling, spec.host_bytes_per_s
        ),
        blocks=tuple(blocks_of(group.replica) for group in places),
    )


def _members(groups: Sequence[GroupSpec], endpoint: tuple[str, str]) -> list[GroupSpec]:
    """Groups of an endpoint, those that decode for others last."""
    members = [group for group in groups if (group.replica.model, group.region) == endpoint]
    longest = sorted({context_tokens(group.replica) for group in members})
    if len(longest) > 1:
        raise ValueError(
            f"fleet.groups for {endpoint[0]} in {endpoint[1]} must have one max_model_len, got "
            f"{', '.join(map(str, longest))}"
        )
    roles = {group.replica.role for group in members}
    if len(roles & {"prefill", "decode"}) == 1:
        raise ValueError(
            f"fleet.groups for {endpoint[0]} in {endpoint[1]} must have replicas of role prefill and of role decode, "
            f"or of neither; got {', '.join(sorted(roles))}"
        )
    return sorted(members, key=lambda group: group.replica.role == "decode")


@lru_cache(maxsize=64)
def most_blocks(replica: ReplicaSpec) -> int:
    """KV blocks that fit beside the weights. Layers on other stages leave room for more of those that are here."""
    profile = profile_of(replica)
    return num_blocks(
        profile.model, profile.gpu, replica.num_gpus, replica.block_size, replica.memory_utilization
    )


@lru_cache(maxsize=64)
def blocks_of(replica: ReplicaSpec) -> int:
    """KV blocks of a replica when it first starts."""
    available = most_blocks(replica)
    if replica.kv_blocks is None:
        return available
    if replica.kv_blocks > available:
        raise ValueError(
            f"replica.kv_blocks must be at most {available} for {replica.model} on {replica.num_gpus} x "
            f"{replica.gpu}, got {replica.kv_blocks}"
        )
    return replica.kv_blocks


def kv_tokens(replica: ReplicaSpec) -> int:
    """Tokens of KV that a replica holds; 0 where the weights do not fit."""
    try:
        return max(0, blocks_of(replica) * replica.block_size)
    except ValueError:
        return 0


@lru_cache(maxsize=64)
def tables_of(replica: ReplicaSpec) -> LatencyTables:
    """Iteration times of a replica."""
    profile = profile_of(replica)
    model = LatencyModel(
        profile.model, profile.gpu, replica.tp_size, profile.coefficients_at(replica.tp_size)
    )
    tables = model.tables(replica.max_num_seqs, replica.max_num_batched_tokens)
    return pipelined(tables, replica.pp_size, profile.model, profile.gpu.nvlink_bandwidth / 2)


def _kv_bytes(replica: ReplicaSpec) -> float:
    """KV of one token, bytes."""
    return float(model_of(replica).kv_bytes_per_token)


def _load_s(replica: ReplicaSpec, host_bytes_per_s: float | None) -> float:
    """Time to load a block of KV from the host, s; each GPU loads its share."""
    bandwidth = host_bytes_per_s or profile_of(replica).gpu.pcie_bandwidth
    return _kv_bytes(replica) * replica.block_size / (replica.num_gpus * bandwidth)


def host_blocks(replica: ReplicaSpec, host_kv_gib: float) -> int:
    """KV blocks that a replica's host memory holds."""
    return int(host_kv_gib * 2**30 / (_kv_bytes(replica) * replica.block_size))


def _scheduler_of(spec: FleetSpec | DeploymentSpec, replica: ReplicaSpec) -> int:
    """The kernel's scheduler of a replica."""
    return scheduler_of(spec, profile_of(replica), replica.max_num_seqs, replica.max_num_batched_tokens)


def _padded(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Rows of different lengths as one array; what lies behind a row's end is never read."""
    longest = max(len(row) for row in rows)
    return np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows])


def _scaled(values: NDArray[np.int64] | int, factor: float) -> NDArray[np.int64]:
    return np.asarray(np.rint(np.asarray(values) * factor), np.int64)


def stack_tables(
    kinds: Sequence[tuple[ReplicaSpec, float]],
    slos: tuple[SLO, ...],
    spec: FleetSpec | DeploymentSpec,
    link_bytes_per_s: float,
    async_scheduling: bool | None,
    host_bytes_per_s: float | None = None,
) -> Tables:
    """Tables of some kinds of replicas, a row each.

    Args:
        kinds: Replicas and slow-downs.
        slos: SLO of each request class.
        spec: The cluster, for how its engines schedule.
        link_bytes_per_s: Bandwidth that prefilled KV goes to decode workers with, bytes/s.
        async_scheduling: As in `ClusterSpec`.
        host_bytes_per_s: Bandwidth of loading KV from the host, bytes/s a GPU; None: that of the GPU's link.
    """
    parts = [(tables_of(replica), factor) for replica, factor in kinds]
    replicas = [replica for replica, _ in kinds]
    schedulers = [_scheduler_of(spec, replica) for replica in replicas]
    full = np.array([table.mixed_ps[-1] / (len(table.mixed_ps) - 1) for table, _ in parts])
    block_size = np.array([replica.block_size for replica in replicas], np.int64)
    return Tables(
        decode_ps=_padded([_scaled(table.decode_ps, factor) for table, factor in parts]),
        mixed_ps=_padded([_scaled(table.mixed_ps, factor) for table, factor in parts]),
        kinds=rows_of(
            KIND_DTYPE,
            sequence_ps=np.array([_scaled(table.sequence_ps, factor) for table, factor in parts], np.int64),
            kv_ps=np.array([_scaled(table.kv_ps, factor) for table, factor in parts], np.int64),
            attn_fs=np.array([_scaled(table.attn_fs, factor) for table, factor in parts], np.int64),
            stages=[replica.pp_size for replica in replicas],
            block_size=block_size,
            block_rank=np.unique(block_size, return_inverse=True)[1].astype(np.int64),
            max_num_seqs=np.array([replica.max_num_seqs for replica in replicas], np.int64),
            max_batched_tokens=np.array([replica.max_num_batched_tokens for replica in replicas], np.int64),
            transfer_ps=np.array(
                [to_ps(_kv_bytes(replica) / link_bytes_per_s) for replica in replicas], np.int64
            ),
            transfer_fixed_ps=np.full(len(kinds), to_ps(LINK_LATENCY_S), np.int64),
            load_ps=np.array([to_ps(_load_s(replica, host_bytes_per_s)) for replica in replicas], np.int64),
            async_scheduling=[
                int(scheduler == V1 and schedules_async(async_scheduling, spec.order, profile_of(replica)))
                for scheduler, replica in zip(schedulers, replicas, strict=True)
            ],
            scheduler=schedulers,
            swap_blocks=[host_blocks(replica, spec.swap_gib * replica.num_gpus) for replica in replicas],
            speed=full[0] / full,
        ),
        classes=rows_of(
            CLASS_DTYPE,
            ttft_slo_ps=np.array([to_ps(slo.ttft_s) for slo in slos], np.int64),
            tpot_slo_ps=np.array([to_ps(slo.tpot_s) for slo in slos], np.int64),
        ),
        fronts=front_rows(spec, [front_end_of(replica) for replica in replicas]),
    )
