"""Reads a server's gauges and counters from its page of metrics.

Names change between servers and releases (`metric_names`), and a renamed metric read as zero makes a router herd. The
names are therefore found once, when a server is attached to, and the log says them. A quantity that the server does not
tell is counted from the client's own book. A later page that lacks one of the names, or has no number for it, is not
read at all, and the error names the metric.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from serving_gym.envs.live.metric_names import (
    FAMILIES,
    GENERATION_TOKENS,
    KV_USAGE,
    PREEMPTIONS,
    PROMPT_TOKENS,
    QUANTITIES,
    RUNNING,
    SWAPPED,
    WAITING,
    Family,
)

_MOST = 2.0**53  # a count beyond it is no exact number any more
_MOST_REQUESTS = 2.0**31 - 1
_MOST_SAMPLES = 10_000
_BLOCK_TOKENS = 16  # of servers that tell the size of their KV cache in tokens

_Sample = tuple[Mapping[str, str], float]


class UnreadablePageError(ValueError):
    """A server's page of metrics cannot be read: it is cut off, or has no number for a metric."""


class MissingMetricError(UnreadablePageError):
    """A server's page of metrics lacks a metric that it has had."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading of a server; counters count since the server started. None: the server does not tell it.

    Attributes:
        num_running: Requests in the batch.
        num_waiting: Requests in the queue.
        kv_usage_ratio: Share of the KV blocks in use.
        preemptions: Preempted requests.
        prompt_tokens: Prompt tokens computed.
        generation_tokens: Generated tokens.
    """

    num_running: int | None
    num_waiting: int | None
    kv_usage_ratio: float | None
    preemptions: int | None
    prompt_tokens: int | None
    generation_tokens: int | None

    @property
    def num_requests(self) -> int | None:
        """Requests in batch and queue."""
        if self.num_running is None or self.num_waiting is None:
            return None
        return self.num_running + self.num_waiting


NOTHING = Gauges(0, 0, 0.0, 0, 0, 0)  # of a server that has never been read


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """A server's KV cache: `num_blocks` for requests, of `block_size` tokens each."""

    num_blocks: int
    block_size: int


@dataclass(frozen=True)
class MetricNames:
    """The names by which one server tells what is read.

    Attributes:
        family: The kind of server.
        names: Name of each quantity that it tells.
    """

    family: Family
    names: Mapping[str, str]

    @property
    def missing(self) -> tuple[str, ...]:
        """Quantities that the server does not tell."""
        return tuple(quantity for quantity in QUANTITIES if quantity not in self.names)

    def describe(self, page: str = "") -> str:
        """The names in one line, and what is counted by the client instead; with the nearest names on the page."""
        told = ", ".join(self.names.values()) or "none"
        if not self.missing:
            return f"{self.family.server} metrics: {told}"
        hints = (self._hint(page, quantity) for quantity in self.missing)
        counted = ", ".join(f"{q}{hint}" for q, hint in zip(self.missing, hints, strict=True))
        return f"{self.family.server} metrics: {told}; counted by the client, as the server does not tell it: {counted}"

    def _hint(self, page: str, quantity: str) -> str:
        """The metric on a page that is nearest to a quantity's name, and none of the other quantities."""
        import difflib

        lines = (line for line in page.splitlines() if line.startswith(self.family.prefix))
        names = {line.split("{")[0].split(" ")[0] for line in lines} - set(self.names.values())
        near = [
            match
            for name in self.family.names[quantity]
            for match in difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.75)
        ]
        return f" (nearest: {near[0]})" if near else ""

    def read(self, text: str, url: str) -> Gauges:
        """Reads a page; engines of one server (data parallelism inside it) are added up.

        Args:
            text: the page.
            url: address of the server, for messages.

        Raises:
            MissingMetricError: a metric is not on the page.
            UnreadablePageError: a metric is no finite number, or the page is cut off.
        """
        page = f"{url}{self.family.path}"
        found = _samples(text, self.names.values(), page)
        values = {quantity: _amounts(found[name], name, page) for quantity, name in self.names.items()}
        counts = {quantity: int(sum(amounts)) for quantity, amounts in values.items()}
        for quantity in (RUNNING, WAITING):
            if counts.get(quantity, 0) > _MOST_REQUESTS:
                raise UnreadablePageError(f"{page} has {self.names[quantity]} {counts[quantity]} requests")
        waiting = counts.get(WAITING)
        usage = values.get(KV_USAGE)
        return Gauges(
            num_running=counts.get(RUNNING),
            num_waiting=None if waiting is None else waiting + counts.get(SWAPPED, 0),
            kv_usage_ratio=None if usage is None else min(sum(usage) / len(usage), 1.0),
            preemptions=counts.get(PREEMPTIONS),
            prompt_tokens=counts.get(PROMPT_TOKENS),
            generation_tokens=counts.get(GENERATION_TOKENS),
        )


def find_names(text: str, url: str) -> MetricNames:
    """Finds out from a page of metrics which server it is of, and by which names it tells what is read.

    Raises:
        MissingMetricError: the page has the metrics of no known server.
        UnreadablePageError: the page is cut off.
    """
    for family in FAMILIES:
        known = [name for names in family.names.values() for name in names]
        found = _samples(text, known, url)
        chosen = {
            quantity: next((name for name in names if found[name]), "")
            for quantity, names in family.names.items()
        }
        if any(chosen.values()):
            return MetricNames(family, {quantity: name for quantity, name in chosen.items() if name})
    prefixes = ", ".join(f"{family.prefix} ({family.server})" for family in FAMILIES)
    raise MissingMetricError(
        f"{url} shows the metrics of no known server (known: {prefixes}); SGLang needs --enable-metrics"
    )


def read_cache_config(text: str, url: str, family: Family) -> CacheConfig | None:
    """Reads the KV cache's size from a page of metrics; None: the server does not tell it.

    vLLM reserves one block as padding.

    Raises:
        UnreadablePageError: the page is cut off, or a size is no number.
    """
    names = (family.blocks, family.kv_tokens, *(family.kv_blocks or ()))
    found = _samples(text, filter(None, names), url)
    if samples := found.get(family.blocks):
        sizes = [(_label(labels, "num_gpu_blocks"), _label(labels, "block_size")) for labels, _ in samples]
        blocks = [(number - 1, size) for number, size in sizes if number > 1 and size > 0]
        return CacheConfig(sum(number for number, _ in blocks), blocks[0][1]) if blocks else None
    if samples := found.get(family.kv_tokens):
        tokens = int(sum(_amounts(samples, family.kv_tokens, url)))
        return CacheConfig(tokens // _BLOCK_TOKENS, _BLOCK_TOKENS) if tokens >= _BLOCK_TOKENS else None
    if family.kv_blocks is not None and all(found[name] for name in family.kv_blocks):
        number, size = (int(_amounts(found[name], name, url)[0]) for name in family.kv_blocks)
        return CacheConfig(number, size) if number and size else None
    return None


def _label(labels: Mapping[str, str], name: str) -> int:
    """A label's number, 0 where it has none."""
    value = labels.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 12 else 0


def _amounts(samples: list[_Sample], name: str, page: str) -> list[float]:
    """The amounts of a metric, one for each engine; ranks of one engine, which tell the same, count once.

    Raises:
        MissingMetricError: there is none.
        UnreadablePageError: one is no finite number of at least 0.
    """
    if not samples:
        raise MissingMetricError(f"{page} has no {name}, which it has had")
    by_engine: dict[tuple[str, str], float] = {}
    for labels, value in samples:
        if not (math.isfinite(value) and 0 <= value < _MOST):
            raise UnreadablePageError(f"{page} has {name} {value}, which is no finite number of at least 0")
        ranked = "tp_rank" in labels or "pp_rank" in labels
        engine = (
            (labels.get("dp_rank", ""), labels.get("engine_type", ""))
            if ranked
            else ("", str(len(by_engine)))
        )
        by_engine[engine] = max(by_engine.get(engine, 0.0), value)
    return list(by_engine.values())


def _samples(text: str, names: Iterable[str], page: str) -> dict[str, list[_Sample]]:
    """Samples of some metrics; only their lines are parsed, as a page has hundreds.

    Raises:
        UnreadablePageError: a line cannot be read, there are too many, or the last one has no end, as the format
            requires.
    """
    from prometheus_client.parser import text_string_to_metric_families

    if text and not text.endswith("\n"):
        raise UnreadablePageError(f"{page} is cut off after {len(text)} characters")
    found: dict[str, list[_Sample]] = {name: [] for name in names}
    wanted = "|".join(map(re.escape, found))
    lines = re.findall(rf"^(?:{wanted})[{{ ].*$", text, re.MULTILINE)
    if len(lines) > _MOST_SAMPLES:
        raise UnreadablePageError(f"{page} has {len(lines):,} lines of the metrics that are read")
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.name in found:
                    found[sample.name].append((sample.labels, float(sample.value)))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadablePageError(f"{page} has a line that is no metric: {error!r}"[:300]) from None
    return found
