"""Reads a replica's `/metrics` page into the names of `runners.serving.scaling_view`.

The first name of a row that the page has counts. A value that is no finite number of at least 0 is no reading.

Sources: vLLM `vllm/v1/metrics/loggers.py` (0.6 to 0.32; llm-d's simulator has the same names) and SGLang
`python/sglang/srt/metrics/collector.py` (0.5).
"""

from __future__ import annotations

import math
import re

SUMMED = {  # over engines of one server, models and reasons to finish
    "num_running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "num_waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "input_tokens_total": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "output_tokens_total": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "first_tokens_total": (
        "vllm:time_to_first_token_seconds_count",
        "sglang:time_to_first_token_seconds_count",
    ),
    "ttft_seconds_total": ("vllm:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_sum"),
    "answers_total": ("vllm:request_time_per_output_token_seconds_count",),
    "tpot_seconds_total": ("vllm:request_time_per_output_token_seconds_sum",),
    "ended_total": ("vllm:request_success_total", "sglang:num_requests_total"),
}
AVERAGED = {
    "kv_usage_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
}
STARTED = "process_start_time_seconds"  # Unix time
_ALL = {**SUMMED, **AVERAGED, STARTED: (STARTED,)}
_LINES = re.compile(
    rf"^(?:{'|'.join(re.escape(name) for names in _ALL.values() for name in names)})[{{ ].*$", re.MULTILINE
)


def read_page(text: str) -> dict[str, float]:
    """Values of a page, by name; those that it lacks or has no number for are left out.

    Args:
        text: The page.

    Raises:
        ValueError: It is cut off, or has a line that cannot be read.
    """
    from prometheus_client.parser import text_string_to_metric_families

    if not text.endswith("\n"):
        raise ValueError(f"the page is cut off after {len(text)} characters")
    samples: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(_LINES.findall(text)) + "\n"):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(float(sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise ValueError(f"the page has a line that is no metric: {error}") from None
    found = {}
    for name, choices in _ALL.items():
        values = next((samples[choice] for choice in choices if choice in samples), None)
        if values and all(math.isfinite(value) and value >= 0 for value in values):
            found[name] = sum(values) / (len(values) if name in AVERAGED else 1)
    return found
