"""Predicts measured runs with the simulator."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.engines import Frontend, scheduler_of
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.memory import kv_capacity_tokens
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import Profile
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.runners.validation.runs import ServingRun, Stage

BUSY, SATURATED = 0.7, 0.95  # load, ratio; the first is where queues begin to show
KV_BLOCK_TOKENS = 16
NO_PROMISE = (SLO(ttft_s=1e6, tpot_s=1e6),)


def kv_tokens(run: ServingRun) -> int:
    """Tokens that the KV cache of a run's engine holds, all attention ranks together."""
    d = run.deployment
    model, gpu = get_model(d.model), get_gpu(d.gpu)
    return kv_capacity_tokens(model, gpu, d.tp, run.memory_utilization, attention_ranks=d.attention_ranks)


def cluster_of(run: ServingRun) -> ClusterSpec:
    """One engine as a cluster; the ranks of data-parallel attention, in step with one another, are one engine."""
    deployment, ranks = run.deployment, run.deployment.attention_ranks
    blocks = kv_tokens(run) // KV_BLOCK_TOKENS - 1 if ranks > 1 else None  # one is vLLM's null block
    return ClusterSpec(
        model=deployment.model,
        gpu=deployment.gpu,
        num_gpus=deployment.tp,
        base_width=deployment.tp,
        max_group=1,
        router="round_robin",
        order="fcfs",
        max_num_seqs=run.max_num_seqs * ranks,
        max_num_batched_tokens=run.max_num_batched_tokens * ranks,
        long_prefill_token_threshold=run.max_num_batched_tokens if ranks > 1 else 0,
        block_size=KV_BLOCK_TOKENS,
        kv_blocks_override=blocks,
        chunked_prefill=run.chunked_prefill,
        scheduler="v1" if run.chunked_prefill else scheduler_of(deployment.engine),
        memory_utilization=run.memory_utilization,
        prefix_caching=run.prefix_caching,
        front_end="none",  # a fit adds it to what it has simulated
    )


def with_frontend(records: RequestRecords, frontend: Frontend) -> RequestRecords:
    """Adds what happens to a request outside the iterations that compute it.

    A constant before the engine's queue shifts every arrival alike, so that adding it afterwards is the same;
    iterations that were already decided last as long as the request's own decode steps.
    """
    steps = (records.finish_s - records.first_token_s) / (records.output_tokens - 1.0).clip(1.0)
    delay = frontend.fixed_s + frontend.token_s * records.input_tokens
    delay = delay + frontend.pipeline_iterations * steps
    if frontend.request_s:
        delay = delay + frontend.request_s * decoding_beside(records)
    return replace(records, first_token_s=records.first_token_s + delay, finish_s=records.finish_s + delay)


def decoding_beside(records: RequestRecords) -> NDArray[np.int64]:
    """(N,) other requests that decode in the iteration of a request's first token; 0 if it has none."""
    beside = np.zeros(len(records), np.int64)
    for engine in np.unique(records.engine):
        there = np.flatnonzero((records.engine == engine) & ~np.isnan(records.first_token_s))
        first_s = records.first_token_s[there]
        begun = np.searchsorted(np.sort(first_s), first_s)
        over = np.searchsorted(np.sort(records.finish_s[there]), first_s)  # NaN, not over, comes last
        beside[there] = begun - over
    return beside


def slots(run: ServingRun) -> float:
    """Requests that the engine of a run can decode at once: sequences of an iteration, or contexts in the KV cache.

    Prefixes that requests share are counted for each of them.
    """
    sequences = float(run.max_num_seqs * run.deployment.attention_ranks)
    return max(1.0, min(sequences, kv_tokens(run) / run.context_tokens))


def capacity_rps(run: ServingRun, profile: Profile) -> float:
    """Requests a second that an engine finishes with every slot taken: decoding and prefill of each."""
    model, sequences = profile.latency_model(run.deployment.tp), int(slots(run))
    context = sequences * run.context_tokens
    step_s = model.iteration_s(sequences, context)
    prefill = [(0, round(run.prefill_tokens))] if run.prefill_tokens else []
    prefill_s = model.iteration_s(sequences, context, prefill) - step_s
    return 1.0 / (run.output_tokens * step_s / sequences + prefill_s)


def load(run: ServingRun, stage: Stage, profile: Profile) -> float:
    """Demand of a stage over what the engine can take, ratio; a run is saturated from `SATURATED` on.

    An open loop demands its arrival rate of `capacity_rps`, a closed loop one of the `slots` for each of its clients.
    """
    if run.clients:
        return run.clients / slots(run)
    return stage.rate_rps / capacity_rps(run, profile)


def simulate(run: ServingRun, profile: Profile) -> RequestRecords:
    """Serves a run's requests in the simulator, nothing but the engine around them."""
    simulator = Simulator(cluster_of(run), NO_PROMISE, profile=profile)
    simulator.reset(run.workload())
    simulator.run_to_completion()
    return simulator.results()


def predict(run: ServingRun, profile: Profile, frontend: Frontend) -> list[dict[str, float]]:
    """Predicted figures of every stage of a run, s.

    Raises:
        ValueError: The model does not fit its GPUs.
    """
    records = with_frontend(simulate(run, profile), frontend)
    return [run.condense(records, stage) for stage in run.stages]
