"""Names of the metrics that servers expose, by server and version.

| server | versions | source |
|---|---|---|
| vLLM | V0 0.6, V1 0.8 to 0.32 | `vllm/engine/metrics.py`, `vllm/v1/metrics/loggers.py`; V0 and V1 until 0.10 say \
`gpu_cache_usage_perc`, V0 alone has `num_requests_swapped` |
| llm-d-inference-sim | 0.5 to 0.7 | `pkg/llm-d-inference-sim/metrics.go`, `docs/metrics.md`: vLLM's names, without \
preemptions, the older ones without tokens |
| SGLang | 0.4 to 0.5 | `srt/observability/metrics_collector.py`, `docs/references/production_metrics.md`; only with \
`--enable-metrics` |
| TensorRT-LLM | 1.2 | `tensorrt_llm/metrics/collector.py`, `examples/serve/prometheus_metrics.py`; trtllm-serve shows \
them under `/prometheus/metrics`; 1.0 and 1.1 have no gauges |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RUNNING, WAITING, SWAPPED = "running", "waiting", "swapped"
KV_USAGE, PREEMPTIONS = "KV usage", "preemptions"
PROMPT_TOKENS, GENERATION_TOKENS = "prompt tokens", "generated tokens"
# Quantities that are read; SWAPPED is had by V0 of vLLM alone and counts as waiting.
QUANTITIES = (RUNNING, WAITING, KV_USAGE, PREEMPTIONS, PROMPT_TOKENS, GENERATION_TOKENS)


@dataclass(frozen=True)
class Family:
    """The metrics of one kind of server.

    Attributes:
        server: Its name.
        prefix: Of all its metrics.
        path: Page that shows them.
        names: Names of each quantity, the newest first.
        blocks: Metric whose labels `num_gpu_blocks` and `block_size` are the size of the KV cache.
        kv_tokens: Gauge of the size of the KV cache, tokens.
        kv_blocks: Gauges of the number of KV blocks, and of the tokens of one.
    """

    server: str
    prefix: str
    path: str
    names: Mapping[str, tuple[str, ...]]
    blocks: str = ""
    kv_tokens: str = ""
    kv_blocks: tuple[str, str] | None = None


VLLM = Family(
    server="vLLM",
    prefix="vllm:",
    path="/metrics",
    names={
        RUNNING: ("vllm:num_requests_running",),
        WAITING: ("vllm:num_requests_waiting",),
        SWAPPED: ("vllm:num_requests_swapped",),
        KV_USAGE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        PREEMPTIONS: ("vllm:num_preemptions_total", "vllm:num_preemptions"),
        PROMPT_TOKENS: ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
        GENERATION_TOKENS: ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    },
    blocks="vllm:cache_config_info",
)
SGLANG = Family(
    server="SGLang",
    prefix="sglang:",
    path="/metrics",
    names={
        RUNNING: ("sglang:num_running_reqs",),
        WAITING: ("sglang:num_queue_reqs",),
        KV_USAGE: ("sglang:token_usage",),
        PREEMPTIONS: ("sglang:num_retracted_requests_total",),
        PROMPT_TOKENS: ("sglang:prompt_tokens_total",),
        GENERATION_TOKENS: ("sglang:generation_tokens_total",),
    },
    kv_tokens="sglang:max_total_num_tokens",
)
TENSORRT_LLM = Family(
    server="TensorRT-LLM",
    prefix="trtllm_",
    path="/prometheus/metrics",
    names={
        RUNNING: ("trtllm_num_requests_running",),
        WAITING: ("trtllm_num_requests_waiting",),
        KV_USAGE: ("trtllm_kv_cache_utilization",),
        PREEMPTIONS: (),
        PROMPT_TOKENS: ("trtllm_prompt_tokens_total",),
        GENERATION_TOKENS: ("trtllm_generation_tokens_total",),
    },
    kv_blocks=("trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block"),
)
FAMILIES = (VLLM, SGLANG, TENSORRT_LLM)


def family_of(server: str) -> Family:
    """The metrics of a kind of server, by its name."""
    return next(family for family in FAMILIES if family.server == server)


def usual_names(family: Family) -> dict[str, str]:
    """The newest name of each quantity that a kind of server tells."""
    return {quantity: family.names[quantity][0] for quantity in QUANTITIES if family.names[quantity]}
