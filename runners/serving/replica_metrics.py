"""Reads a replica's metrics page into the names of `runners.serving.scaling_view`.

The first name of a row that the page has counts. A value that is no finite number of at least 0 is no reading.

Names: `envs.live.metric_names`, and of latencies and ended requests vLLM's `vllm/v1/metrics/loggers.py` (0.6 to 0.32;
llm-d's simulator has the same) and SGLang's `srt/observability/metrics_collector.py` (0.5).
"""

from __future__ import annotations

import math
import re

from serving_gym.envs.live import metric_names as named


def _names(quantity: str) -> tuple[str, ...]:
    """Names of a quantity, of all kinds of server."""
    return tuple(name for family in named.FAMILIES for name in family.names.get(quantity, ()))


_SWAPPED = "swapped"
SUMMED = {  # over engines of one server, models and reasons to finish
    "num_running": _names(named.RUNNING),
    "num_waiting": _names(named.WAITING),
    _SWAPPED: _names(named.SWAPPED),
    "input_tokens_total": _names(named.PROMPT_TOKENS),
    "output_tokens_total": _names(named.GENERATION_TOKENS),
    "first_tokens_total": (
        "vllm:time_to_first_token_seconds_count",
        "sglang:time_to_first_token_seconds_count",
    ),
    "ttft_seconds_total": ("vllm:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_sum"),
    "answers_total": ("vllm:request_time_per_output_token_seconds_count",),
    "tpot_seconds_total": ("vllm:request_time_per_output_token_seconds_sum",),
    "ended_total": ("vllm:request_success_total", "sglang:num_requests_total"),
}
AVERAGED = {"kv_usage_ratio": _names(named.KV_USAGE)}
STARTED = "process_start_time_seconds"  # Unix time
PATHS = tuple(dict.fromkeys(family.path for family in named.FAMILIES))
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
    if "num_waiting" in found:
        found["num_waiting"] += found.pop(_SWAPPED, 0.0)  # swapped requests of vLLM's V0 wait
    return found
