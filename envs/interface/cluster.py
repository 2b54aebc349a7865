"""A node of GPUs, and its faults."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving_gym.calibration.engines import NEWEST_ENGINE
from serving_gym.envs.interface.layout import Layout


@dataclass(frozen=True)
class ClusterSpec:
    """A node of GPUs serving one model.

    Attributes:
        model: Name of a model in `calibration.specs`.
        gpu: Name of a GPU there.
        num_gpus: GPUs of the node.
        base_width: GPUs of one base engine; the node has num_gpus / base_width of them.
        max_group: Most base engines in a group; None: all of them.
        layout: Layout at the start; None: every base engine on its own.
        weights: "whole" (each base engine holds the model and can be merged live) or "sharded".
        router: Built-in router: round_robin, least_requests, jsq (tokens over speed), affinity (urgent requests to the
            widest engines, the others to the narrower ones, jsq among them) or hold.
        order: Queue order of the engines: fcfs, priority (vLLM's), edf (earliest deadline first) or dpa (deadline and
            priority aware); a deadline is the arrival plus the class's TTFT SLO (SageServe, section 6.5).
        dpa_expired_s: Under dpa, requests this long after their deadline come first (source: ours, the paper gives no
            value).
        dpa_urgent_s: Under dpa, requests with at most this time left come before others (source: ours).
        prefix_caching: Whether engines cache KV blocks of shared prompt prefixes (workloads with `hash_ids`).
        block_size: Tokens per KV block in a base engine; a group of p of them fits p times as many.
        max_num_seqs: Most running requests of an engine.
        max_num_batched_tokens: Token budget of an iteration.
        chunked_prefill: Whether prompts are computed in chunks, beside decoding requests; None: as the engine does by
            default, which before V1 computes them whole and by themselves.
        reserve_full_prompt: Whether a request is admitted only where KV for its whole prompt is free; False: for its
            next chunk (vLLM's `scheduler_reserve_full_isl`).
        long_prefill_token_threshold: Longest prefill chunk; 0 for none.
        request_timeout_s: Time from its arrival after which the server ends a request, whatever it has of it, and its
            client gets an error, s; None: never (vLLM's own behaviour; gateways before it usually have a limit).
        async_scheduling: Whether an iteration is scheduled while the one before it runs, so that an arrival waits
            for one more (vLLM's default on GPUs); None: as the engine of the profile.
        scheduler: "v1" (vLLM's), "v0" (vLLM's before: prompts first, whole and by themselves) or None: that of the
            engine, and v1 with `chunked_prefill=True` (prompts and decoding requests then share iterations under both).
            v0 is vLLM 0.6.0's default mode: order fcfs, no prefix caching, no asynchronous scheduling.
        preemption: "recompute", or "swap" (v0 only): KV of a request that gives way goes to host memory.
        swap_gib: Host memory for that, GiB a GPU (vLLM's --swap-space). A request that finds no room there fails.
        memory_utilization: Share of GPU memory that weights and KV may use.
        kv_blocks_override: KV blocks of a base engine; None: what fits its memory (vLLM's --num-gpu-blocks-override,
            which counts one block more, kept back as padding).
        max_model_len: Longest request, prompt and answer, tokens; None: the model's context. A request is also bounded
            by the KV blocks of the widest engine. More than the context is for positions that are extended, as vLLM
            allows with VLLM_ALLOW_LONG_MAX_MODEL_LEN.
        engine: Serving engine in `calibration.engines` that gives the engines their latency, scheduling and front end
            (`calibration.deployments.find_profile`); empty: the profile of the model on the GPU from kernel tables.
        profile: File of a measured profile, or name of a committed one, which then takes the place of `model`, `gpu`
            and `engine`.
        front_end: "included": clients see tokens after HTTP, tokenisation and streaming, as measured with the profile;
            "none": as engines compute them.
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
    chunked_prefill: bool | None = None
    reserve_full_prompt: bool = True
    long_prefill_token_threshold: int = 0
    request_timeout_s: float | None = None
    async_scheduling: bool | None = None
    scheduler: str | None = None
    preemption: str = "recompute"
    swap_gib: float = 4.0
    memory_utilization: float = 0.8
    kv_blocks_override: int | None = None
    max_model_len: int | None = None
    engine: str = NEWEST_ENGINE
    profile: str | None = None
    front_end: str = "included"
    switch_s: float | None = None
    cold_start_s: dict[int, float] | None = field(default=None, hash=False)

    @property
    def num_base(self) -> int:
        """Base engines of the node."""
        return self.num_gpus // self.base_width


@dataclass(frozen=True)
class Fault:
    """A GPU fails at `time_s`; its engine is back after a cold start."""

    time_s: float
    gpu: int
