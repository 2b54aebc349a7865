"""Builds the kernel's constants from a `ClusterSpec`: engine slots, block pools and latency tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.deployments import profile_at
from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.latency import LatencyTables
from serving_gym.calibration.memory import block_capacity_tokens, num_blocks
from serving_gym.calibration.profile import Profile, load_profile, named_profile
from serving_gym.calibration.transitions import (
    LIVE_SWITCH_S,
    cold_start_s,
    communicator_pool_s,
)
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import LEAST_MODEL_LEN
from serving_gym.envs.interface.layout import Group, all_groups, groups_of
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.kernel.state import CLASS_DTYPE, KIND_DTYPE, V1, Tables, rows_of
from serving_gym.envs.simulator.scheduling import (
    check_scheduling,
    front_rows,
    scheduler_of,
    schedules_async,
    to_ps,
    with_factors,
)

EXECUTIONS = ("tp", "shift")


@dataclass(frozen=True)
class Cluster:
    """The constants of a cluster. Engine slot i is group i; its kind is its width's place in `widths`."""

    spec: ClusterSpec
    groups: tuple[Group, ...]
    widths: tuple[int, ...]  # GPUs of a group, ascending
    tables: Tables
    blocks_per_base: int  # KV blocks of a base engine with the whole model
    context_tokens: int  # max_model_len: the model's context unless set
    switch_ps: int
    cold_start_ps: tuple[int, ...]  # by width
    communicators_ps: int  # building the pool of communicators that live switching needs
    factors: tuple[float, ...] = (1.0,)  # on iteration times; the tables have all kinds of rows for each

    def slot(self, group: Group) -> int:
        """Engine slot of a group."""
        return self.groups.index(group)

    def kind(self, group: Group, execution: str, factor: float = 1.0) -> int:
        """Row of the tables for a group whose iterations take `factor` times as long."""
        rank = group.length.bit_length() - 1
        number = EXECUTIONS.index(execution) + self.factors.index(factor) * len(EXECUTIONS)
        return rank + number * len(self.widths)

    def blocks(self, group: Group, weights: str) -> int:
        """KV blocks of an engine over `group`, in its own unit of block_size x length tokens."""
        if weights == "whole" or self.spec.kv_blocks_override is not None:
            return self.blocks_per_base
        profile = profile_of(self.spec)
        width = group.length * self.spec.base_width
        block_size = block_capacity_tokens(self.spec.block_size, group.length)
        return num_blocks(profile.model, profile.gpu, width, block_size, self.spec.memory_utilization)

    def max_request_tokens(self, weights: str) -> int:
        """Longest request, prompt and answer: `max_model_len`, or less if no engine of the node could hold that."""
        widest = self.groups[-1]
        block_tokens = block_capacity_tokens(self.spec.block_size, widest.length)
        return min(self.blocks(widest, weights) * block_tokens, self.context_tokens)


def profile_of(spec: ClusterSpec) -> Profile:
    """The profile that a cluster's engines have their latency from."""
    if spec.profile is not None or not spec.engine:
        return _cached_profile(spec.model, spec.gpu, spec.profile)
    lengths = sorted({group.length for group in all_groups(spec.num_base, spec.max_group)})
    return _engine_profile(
        spec.model, spec.gpu, spec.engine, tuple(length * spec.base_width for length in lengths)
    )


@lru_cache(maxsize=32)
def _cached_profile(model: str, gpu: str, file: str | None) -> Profile:
    return load_profile(model, gpu) if file is None else named_profile(file)


@lru_cache(maxsize=32)
def _engine_profile(model: str, gpu: str, engine: str, widths: tuple[int, ...]) -> Profile:
    return profile_at(model, gpu, engine, widths)


def validate(spec: ClusterSpec) -> None:
    """Raises ValueError if a cluster is impossible."""
    check_scheduling(spec, "cluster")
    if spec.weights not in ("whole", "sharded"):
        raise ValueError(f"cluster.weights must be whole or sharded, got {spec.weights!r}")
    for name in ("num_gpus", "base_width", "block_size", "max_num_seqs", "max_num_batched_tokens"):
        if getattr(spec, name) < 1:
            raise ValueError(f"cluster.{name} must be at least 1, got {getattr(spec, name)}")
    if spec.kv_blocks_override is not None and spec.kv_blocks_override < 1:
        raise ValueError(f"cluster.kv_blocks_override must be at least 1, got {spec.kv_blocks_override}")
    if spec.max_model_len is not None and spec.max_model_len < LEAST_MODEL_LEN:
        raise ValueError(
            f"cluster.max_model_len must be at least {LEAST_MODEL_LEN}, got {spec.max_model_len}"
        )
    if not 0 < spec.memory_utilization <= 1:
        raise ValueError(f"cluster.memory_utilization must lie in (0, 1], got {spec.memory_utilization}")
    if spec.num_gpus % spec.base_width:
        raise ValueError(
            f"cluster.num_gpus ({spec.num_gpus}) must be a multiple of cluster.base_width ({spec.base_width})"
        )
    longest = all_groups(spec.num_base, spec.max_group)[-1].length
    if spec.layout is not None:
        groups_of(tuple(spec.layout))
        if sum(spec.layout) != spec.num_base:
            raise ValueError(
                f"cluster.layout {tuple(spec.layout)} must add up to {spec.num_base} base engines"
            )
        if max(spec.layout) > longest:
            raise ValueError(
                f"cluster.layout {tuple(spec.layout)} has a group longer than cluster.max_group ({longest})"
            )


@lru_cache(maxsize=64)
def build_cluster(spec: ClusterSpec, slos: tuple[SLO, ...], factors: tuple[float, ...] = ()) -> Cluster:
    """Computes a cluster's constants with the committed profile of its model and GPU.

    Args:
        spec: The cluster.
        slos: SLO of each request class.
        factors: Factors on iteration times that it may have beside 1.

    Raises:
        ValueError: the spec names something unknown or does not fit its GPUs.
    """
    validate(spec)
    return make_cluster(spec, slos, profile_of(spec), factors)


def make_cluster(
    spec: ClusterSpec, slos: tuple[SLO, ...], profile: Profile, factors: tuple[float, ...] = ()
) -> Cluster:
    """Computes a cluster's constants with a given profile; arguments as of `build_cluster`.

    Raises:
        ValueError: the spec names something unknown or does not fit its GPUs.
    """
    validate(spec)
    blocks_per_base = spec.kv_blocks_override or num_blocks(
        profile.model, profile.gpu, spec.base_width, spec.block_size, spec.memory_utilization
    )
    groups = all_groups(spec.num_base, spec.max_group)
    widths = tuple(sorted({group.length for group in groups}))
    per_kind = [
        _kind_tables(spec, profile, length, execution) for execution in EXECUTIONS for length in widths
    ]
    levels = tuple(dict.fromkeys((1.0, *factors)))
    return Cluster(
        spec=spec,
        groups=groups,
        widths=widths,
        tables=with_factors(_stack(spec, per_kind, widths, slos, profile), levels),
        blocks_per_base=blocks_per_base,
        context_tokens=spec.max_model_len or profile.model.max_model_len,
        switch_ps=to_ps(_switch_s(spec, profile)),
        cold_start_ps=tuple(_cold_start_ps(spec, profile, length) for length in widths),
        communicators_ps=to_ps(communicator_pool_s(len(groups) - spec.num_base)),
        factors=levels,
    )


def _switch_s(spec: ClusterSpec, profile: Profile) -> float:
    """Duration of a live switch: given, else measured with the profile, else as published, s."""
    return profile.transitions.get("switch_s", LIVE_SWITCH_S) if spec.switch_s is None else spec.switch_s


def _cold_start_ps(spec: ClusterSpec, profile: Profile, length: int) -> int:
    width = length * spec.base_width
    if spec.cold_start_s and width in spec.cold_start_s:
        return to_ps(spec.cold_start_s[width])
    return to_ps(cold_start_s(profile.model.weight_bytes, width))


def _kind_tables(spec: ClusterSpec, profile: Profile, length: int, execution: str) -> LatencyTables:
    """Tables of an engine of `length` base engines; a single base engine has nothing to shift."""
    width = length * spec.base_width
    if execution == "shift" and length > 1:
        model = profile.latency_model(width, "shift", base_width=spec.base_width)
    else:
        model = profile.latency_model(width)
    return model.tables(spec.max_num_seqs, spec.max_num_batched_tokens)


def _stack(
    spec: ClusterSpec,
    kinds: list[LatencyTables],
    widths: tuple[int, ...],
    slos: tuple[SLO, ...],
    profile: Profile,
) -> Tables:
    lengths = list(widths) * len(EXECUTIONS)
    front_ends = [profile.frontends.get(length * spec.base_width, Frontend()) for length in lengths]
    scheduler = scheduler_of(spec, profile, spec.max_num_seqs, spec.max_num_batched_tokens)
    asynchronous = scheduler == V1 and schedules_async(spec.async_scheduling, spec.order, profile)
    full = np.array([kind.mixed_ps[-1] for kind in kinds], np.float64)
    block_size = np.array([block_capacity_tokens(spec.block_size, length) for length in lengths], np.int64)
    # KV of a block on each GPU of its engine, bytes
    block_bytes = block_size * profile.model.kv_bytes_per_token / (np.array(lengths) * spec.base_width)
    return Tables(
        decode_ps=np.stack([kind.decode_ps for kind in kinds]),
        mixed_ps=np.stack([kind.mixed_ps for kind in kinds]),
        kinds=rows_of(
            KIND_DTYPE,
            sequence_ps=np.array([kind.sequence_ps for kind in kinds], np.int64),
            kv_ps=np.array([kind.kv_ps for kind in kinds], np.int64),
            attn_fs=np.array([kind.attn_fs for kind in kinds], np.int64),
            stages=1,
            block_size=block_size,
            block_rank=np.unique(block_size, return_inverse=True)[1].astype(np.int64),
            max_num_seqs=np.full(len(kinds), spec.max_num_seqs, np.int64),
            max_batched_tokens=np.full(len(kinds), spec.max_num_batched_tokens, np.int64),
            transfer_ps=np.zeros(len(kinds), np.int64),
            transfer_fixed_ps=np.zeros(len(kinds), np.int64),
            load_ps=_in_ps(block_bytes / profile.gpu.pcie_bandwidth),
            async_scheduling=int(asynchronous),
            scheduler=scheduler,
            swap_blocks=(spec.swap_gib * 2**30 / block_bytes).astype(np.int64),
            speed=full[0] / full,
        ),
        classes=rows_of(
            CLASS_DTYPE,
            ttft_slo_ps=_in_ps([slo.ttft_s for slo in slos]),
            tpot_slo_ps=_in_ps([slo.tpot_s for slo in slos]),
        ),
        fronts=front_rows(spec, front_ends),
    )


def _in_ps(seconds: Iterable[float]) -> NDArray[np.int64]:
    return np.array([to_ps(value) for value in seconds], np.int64)
