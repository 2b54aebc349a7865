"""Reads a vLLM server's gauges and counters from `/metrics`.

Names change between releases of vLLM, and a renamed metric read as zero makes a router herd. A page that lacks a
metric, or has no number for it, is therefore not read at all, and the error names the metric.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
CACHE_CONFIG = "vllm:cache_config_info"
NEEDED = (RUNNING, WAITING, KV_USAGE, PREEMPTIONS, PROMPT_TOKENS, GENERATION_TOKENS)

_Sample = tuple[Mapping[str, str], float]


class UnreadablePageError(ValueError):
    """A server's `/metrics` cannot be read: it is cut off, or has no number for a metric."""


class MissingMetricError(UnreadablePageError):
    """A server's `/metrics` lacks a metric that the live backend reads."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading of a server; counters count since the server started.

    Attributes:
        num_running: Requests in the batch.
        num_waiting: Requests in the queue.
        kv_usage_ratio: Share of the KV blocks in use.
        preemptions: Preempted requests.
        prompt_tokens: Prompt tokens computed.
        generation_tokens: Generated tokens.
    """

    num_running: int
    num_waiting: int
    kv_usage_ratio: float
    preemptions: int
    prompt_tokens: int
    generation_tokens: int

    @property
    def num_requests(self) -> int:
        """Requests in batch and queue."""
        return self.num_running + self.num_waiting


NOTHING = Gauges(0, 0, 0.0, 0, 0, 0)  # of a server that has never been read


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """A server's KV cache: `num_blocks` for requests, of `block_size` tokens each."""

    num_blocks: int
    block_size: int


def read_gauges(text: str, url: str) -> Gauges:
    """Reads a page of `/metrics`; engines of one server (data parallelism inside vLLM) are added up.

    Args:
        text: the page.
        url: address of the server, for messages.

    Raises:
        MissingMetricError: a metric is not on the page.
        UnreadablePageError: a metric is no finite number, or the page is cut off.
    """
    found = _samples(text, NEEDED, url)
    for name, samples in found.items():
        if not samples:
            raise MissingMetricError(
                f"{url}/metrics has no {name}{_hint(text, name)}: this version of vLLM is not understood"
            )
        for _, value in samples:
            if not (math.isfinite(value) and value >= 0):
                raise UnreadablePageError(
                    f"{url}/metrics has {name} {value}, which is no finite number of at least 0"
                )
    total = {name: sum(value for _, value in samples) for name, samples in found.items()}
    return Gauges(
        num_running=int(total[RUNNING]),
        num_waiting=int(total[WAITING]),
        kv_usage_ratio=total[KV_USAGE] / len(found[KV_USAGE]),
        preemptions=int(total[PREEMPTIONS]),
        prompt_tokens=int(total[PROMPT_TOKENS]),
        generation_tokens=int(total[GENERATION_TOKENS]),
    )


def read_cache_config(text: str, url: str) -> CacheConfig:
    """Reads the KV cache's size from a page of `/metrics`. vLLM reserves one block as padding.

    Raises:
        MissingMetricError: the metric or one of its labels is missing or not a number.
        UnreadablePageError: the page is cut off.
    """
    samples = _samples(text, (CACHE_CONFIG,), url)[CACHE_CONFIG]
    if not samples:
        raise MissingMetricError(f"{url}/metrics has no {CACHE_CONFIG}{_hint(text, CACHE_CONFIG)}")
    return CacheConfig(
        num_blocks=sum(_label(labels, "num_gpu_blocks", url) - 1 for labels, _ in samples),
        block_size=_label(samples[0][0], "block_size", url),
    )


def _label(labels: Mapping[str, str], name: str, url: str) -> int:
    value = labels.get(name, "")
    if not value.isdigit():
        raise MissingMetricError(f"{url}/metrics: {CACHE_CONFIG} has {name}={value!r}, which is not a number")
    return int(value)


def _samples(text: str, names: tuple[str, ...], url: str) -> dict[str, list[_Sample]]:
    """Samples of some metrics; only their lines are parsed, as a page has hundreds.

    Raises:
        UnreadablePageError: a line cannot be read, or the last one has no end, as the format requires.
    """
    from prometheus_client.parser import text_string_to_metric_families

    if text and not text.endswith("\n"):
        raise UnreadablePageError(f"{url}/metrics is cut off after {len(text)} characters")
    wanted = "|".join(map(re.escape, names))
    lines = re.findall(rf"^(?:{wanted})[{{ ].*$", text, re.MULTILINE)
    found: dict[str, list[_Sample]] = {name: [] for name in names}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                found[sample.name].append((sample.labels, float(sample.value)))
    except (ValueError, KeyError, IndexError) as error:
        raise UnreadablePageError(f"{url}/metrics has a line that is no metric: {error}") from None
    return found


def _hint(text: str, name: str) -> str:
    """The nearest metric on the page."""
    import difflib

    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line.startswith("vllm:")}
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.6)
    if near:
        return f" (nearest: {near[0]})"
    return "" if names else " (nothing there begins with vllm:)"
