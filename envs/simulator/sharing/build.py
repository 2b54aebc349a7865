"""From the description of a shared cluster and its models to the tables of its simulator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.cpu import cpu_latency_model
from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.engines import Frontend, get_engine
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.memory import check_fits
from serving_gym.calibration.models import get_model
from serving_gym.calibration.specs import get_gpu
from serving_gym.envs.interface.randomise import EpisodeFactors
from serving_gym.envs.interface.sharing import SharedModel, SharingSetting
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.simulator.sharing.arrays import NEVER, PARAMETERS_DTYPE, PS_PER_S, SharingTables
from serving_gym.envs.simulator.sharing.profiling import profiled
from serving_gym.envs.workload.schema import Workload

MODEL_MARK = "#"  # between the architecture and the number of a model, as in llama-2-7b#12


def size_of(model: str) -> str:
    """Architecture of a model by its name in the workload."""
    return model.split(MODEL_MARK)[0]


def latency_model(node: NodeSpec, size: str, engine: str) -> tuple[LatencyModel, Frontend]:
    """Iteration times of a model on a kind of node, and its front end; on CPUs, that of the engine on GPUs."""
    if node.is_cpu:
        return cpu_latency_model(size, node.hardware), get_engine(
            engine, size
        ).frontend if engine else Frontend()
    profile, front_end = find_profile(Deployment(size, node.hardware, 1, engine))
    return profile.latency_model(1), front_end


@dataclass(frozen=True, eq=False)
class Times:
    """Iteration and load times, picoseconds. K kinds of node, Z sizes."""

    prefill_ps: NDArray[np.int64]  # (K, Z, max_tokens + 1)
    decode_ps: NDArray[np.int64]  # (K, Z, max_num_seqs + 1)
    context_ps: NDArray[np.int64]  # (K, Z)
    load_ps: NDArray[np.int64]  # (K, Z)
    front_ps: NDArray[np.int64]  # (K, Z, 3), as in `SharingTables`
    # The first three as they were profiled
    profiled_prefill_ps: NDArray[np.int64]
    profiled_decode_ps: NDArray[np.int64]
    profiled_context_ps: NDArray[np.int64]


@lru_cache(maxsize=16)
def times_of(spec: SharingSpec, sizes: tuple[str, ...]) -> Times:
    """What iterations and loads take.

    Raises:
        ValueError: a size that is unknown, or that some kind of node cannot hold.
    """
    shape = (len(spec.nodes), len(sizes))
    prefill = np.zeros((*shape, spec.max_tokens + 1), np.int64)
    decode = np.zeros((*shape, spec.max_num_seqs + 1), np.int64)
    context, load, front = (
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros((*shape, 3), np.int64),
    )
    tokens, batches = np.arange(1.0, spec.max_tokens + 1), np.arange(1.0, spec.max_num_seqs + 1)
    for k, node in enumerate(spec.nodes):
        for z, size in enumerate(sizes):
            check_fits(get_model(size), get_gpu(node.hardware), 1, spec.memory_utilization)
            model, front_end = latency_model(node, size, spec.engine)
            attention = model.pair_s * tokens * (tokens + 1) / 2
            prefill[k, z, 1:] = np.rint((model.mixed_s(tokens) + attention) * PS_PER_S)
            decode[k, z, 1:] = np.rint(model.decode_s(batches) * PS_PER_S)
            context[k, z] = round(model.kv_s * PS_PER_S)
            load_s = spec.load_fixed_s + get_model(size).weight_bytes / spec.load_bytes_per_s
            load[k, z] = round(load_s * PS_PER_S)
            if spec.front_end == "included":
                parts = (front_end.fixed_s, front_end.token_s, front_end.request_s)
                front[k, z] = np.rint(np.array(parts) * PS_PER_S)
    known = profiled(prefill, decode, context, spec.profile_error, spec.profile_seed)
    return Times(prefill, decode, context, load, front, *known)


def build_setting(
    spec: SharingSpec, models: tuple[str, ...], mean_output_tokens: float
) -> tuple[SharingSetting, Times]:
    """What is known before an episode, and the simulator's times.

    Args:
        spec: The cluster.
        models: Names of the workload's models: an architecture, or an architecture, # and a number.
        mean_output_tokens: Of the training split.
    """
    sizes = tuple(dict.fromkeys(size_of(model) for model in models))
    times = times_of(spec, sizes)
    shared = []
    for name in models:
        model = get_model(size_of(name))
        shared.append(
            SharedModel(
                name=name,
                size=sizes.index(size_of(name)),
                weights_bytes=round(model.weight_bytes),
                kv_bytes_per_token=round(model.kv_bytes_per_token),
                max_tokens=min(spec.max_tokens, model.max_model_len),
            )
        )
    setting = SharingSetting(
        kinds=tuple(node.kind for node in spec.nodes),
        node_kinds=np.repeat(np.arange(len(spec.nodes)), [node.count for node in spec.nodes]).astype(
            np.int32
        ),
        memory_bytes=np.repeat(
            [spec.memory_bytes(node) for node in spec.nodes], [node.count for node in spec.nodes]
        ).astype(np.int64),
        slots_per_node=spec.slots_per_node,
        sizes=sizes,
        models=tuple(shared),
        prefill_s=times.profiled_prefill_ps / PS_PER_S,
        decode_s=times.profiled_decode_ps / PS_PER_S,
        context_s=times.profiled_context_ps / PS_PER_S,
        max_num_seqs=spec.max_num_seqs,
        block_tokens=spec.block_tokens,
        mean_output_tokens=mean_output_tokens,
        keep_alive_s=spec.keep_alive_s,
        load_s=times.load_ps / PS_PER_S,
        unload_s=spec.unload_s,
        resize_s_per_byte=np.array([spec.resize_s_per_byte(node) for node in spec.nodes]),
    )
    return setting, times


@dataclass(frozen=True)
class ManagerSpec:
    """The environment's own memory manager, and the gateway.

    Attributes:
        watermark: Share by which KV pools are larger than required. Source: ours; the paper leaves w open.
        least_tokens: L_min of equation 2. Source: LLM-Mesh, section 6.1, the longest sequence.
        mean_weight: Finished requests that the training split's mean answer counts for. Source: ours.
        retry_s: After which a held request is offered again. Source: ours.
        patience_s: After which a held request is refused. Source: ours.
        replace_idle: Whether a request may be sent to an idle instance of another model, which is unloaded for it, and
            with it as many others of its node as it takes.
    """

    watermark: float = 0.25
    least_tokens: int = 4096
    mean_weight: float = 8.0
    retry_s: float = 0.25
    patience_s: float = 30.0
    replace_idle: bool = False

    def __post_init__(self) -> None:
        check_not_negative(self, "watermark", "mean_weight", finite=True)
        check_positive(self, "least_tokens", "retry_s", "patience_s", finite=True)


def build_tables(
    spec: SharingSpec,
    manager: ManagerSpec,
    setting: SharingSetting,
    times: Times,
    workload: Workload,
    slos: tuple[SLO, ...],
    factors: EpisodeFactors,
) -> SharingTables:
    """The tables of an episode, for which `factors` were drawn."""
    parameters = np.zeros(1, PARAMETERS_DTYPE)
    parameters["slots_per_node"] = spec.slots_per_node
    parameters["block_tokens"] = spec.block_tokens
    parameters["max_running"] = spec.max_num_seqs
    parameters["unload_ps"] = round(spec.unload_s * PS_PER_S)
    parameters["retry_ps"] = round(manager.retry_s * PS_PER_S)
    parameters["patience_ps"] = min(round(manager.patience_s * PS_PER_S), NEVER // 4)
    parameters["restart_on_oom"] = spec.on_oom == "restart"
    parameters["watermark"] = manager.watermark
    parameters["least_tokens"] = manager.least_tokens
    parameters["mean_output"] = setting.mean_output_tokens
    parameters["mean_weight"] = max(manager.mean_weight, 1e-9)
    parameters["replace_idle"] = manager.replace_idle
    limits = np.array([slo.ttft_limits_s(workload.input_tokens) for slo in slos])  # (C, N)
    ttft_s = limits[workload.class_id, np.arange(len(workload))]
    tpot_s = np.array([slo.tpot_s for slo in slos])[workload.class_id]
    max_tokens = np.array([model.max_tokens for model in setting.models], np.int64)
    room = np.maximum(max_tokens[workload.model_id] - workload.input_tokens, 1)
    return SharingTables(
        arrival_ps=np.rint(workload.arrival_s * PS_PER_S).astype(np.int64),
        input_tokens=workload.input_tokens.astype(np.int64),
        output_tokens=np.minimum(workload.output_tokens, room).astype(np.int64),
        model=workload.model_id.astype(np.int64),
        class_id=workload.class_id.astype(np.int64),
        ttft_ps=np.rint(ttft_s * PS_PER_S).astype(np.int64),
        tpot_ps=np.rint(tpot_s * PS_PER_S).astype(np.int64),
        size=np.array([model.size for model in setting.models], np.int64),
        weights=np.array([model.weights_bytes for model in setting.models], np.int64),
        token_bytes=np.array([model.kv_bytes_per_token for model in setting.models], np.int64),
        max_tokens=max_tokens,
        prefill_ps=times.prefill_ps,
        decode_ps=times.decode_ps,
        context_ps=times.context_ps,
        profiled_prefill_ps=times.profiled_prefill_ps,
        profiled_decode_ps=times.profiled_decode_ps,
        profiled_context_ps=times.profiled_context_ps,
        resize_fs=setting.resize_s_per_byte * 1e15,
        load_ps=times.load_ps,
        front_ps=np.rint(times.front_ps * factors.front_end).astype(np.int64),
        time_factor=np.array(
            [node.time_factor * factors.iteration_of(kind) for kind, node in enumerate(spec.nodes)]
        ),
        parameters=parameters,
    )
