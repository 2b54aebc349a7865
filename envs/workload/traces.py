"""Real traces: known ones, their location, and their conversion to a :class:`Workload`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from platformdirs import user_cache_dir

from serving_gym.envs.workload.reading.options import ReadOptions
from serving_gym.envs.workload.reading.report import TraceReport
from serving_gym.envs.workload.schema import FloatArray, Workload
from serving_gym.envs.workload.seeding import stream

DATA_VARIABLE = "SERVING_GYM_DATA"


@dataclass(frozen=True)
class TraceInfo:
    """A published trace.

    Attributes:
        name: what the user calls it.
        file: name of the parquet file, in the data directory and in the cache.
        title: what it is, in one line.
        publisher: its publisher.
        licence: SPDX identifier.
        base_url: where the publisher's repository is served.
        source_path: the file below ``base_url``.
        published_rows: requests in the published file.
        citation: paper to cite.
        starts_at: wall-clock time of the first request (UTC as published), where there is one.
        quantum_s: step to which the publisher rounded the arrivals, seconds; 0 where there is none worth
            undoing.
    """

    name: str
    file: str
    title: str
    publisher: str
    licence: str
    base_url: str
    source_path: str
    published_rows: int
    citation: str
    starts_at: str = "not published"
    quantum_s: float = 0.0


_AZURE_TRACE = partial(
    TraceInfo,
    publisher="Azure/AzurePublicDataset",
    licence="CC-BY-4.0",
    base_url="https://raw.githubusercontent.com/Azure/AzurePublicDataset/master",
    citation="Patel et al., Splitwise, ISCA 2024",
)
_MOONCAKE_TRACE = partial(
    TraceInfo,
    publisher="kvcache-ai/Mooncake",
    licence="Apache-2.0",
    base_url="https://raw.githubusercontent.com/kvcache-ai/Mooncake/main",
    citation="Qin et al., Mooncake, FAST 2025",
)

TRACES: dict[str, TraceInfo] = {
    "azure_code": _AZURE_TRACE(
        name="azure_code",
        file="azure_llm_2023_code.parquet",
        title="Azure production 2023, coding service",
        source_path="data/AzureLLMInferenceTrace_code.csv",
        published_rows=8819,
        starts_at="2023-11-16T18:17:03",
    ),
    "azure_conv": _AZURE_TRACE(
        name="azure_conv",
        file="azure_llm_2023_conv.parquet",
        title="Azure production 2023, chat service",
        source_path="data/AzureLLMInferenceTrace_conv.csv",
        published_rows=19366,
        starts_at="2023-11-16T18:15:46",
    ),
    "mooncake_conv": _MOONCAKE_TRACE(
        name="mooncake_conv",
        file="mooncake_conversation.parquet",
        title="Kimi production chat, with prefix hashes",
        source_path="FAST25-release/traces/conversation_trace.jsonl",
        published_rows=12031,
        quantum_s=3.0,
    ),
    "mooncake_synthetic": _MOONCAKE_TRACE(
        name="mooncake_synthetic",
        file="mooncake_synthetic.parquet",
        title="public data sets with Poisson arrivals, prefix hashes",
        source_path="FAST25-release/traces/synthetic_trace.jsonl",
        published_rows=3993,
    ),
}


def cache_dir() -> Path:
    """Folder of fetched traces."""
    return Path(user_cache_dir("serving-gym")) / "traces"


def find_trace(name: str) -> Path | None:
    """File of a known trace, None where absent.

    Looked for in ``$SERVING_GYM_DATA``, in its ``traces`` folder, and in the user's cache.
    """
    file = TRACES[name].file
    data = os.environ.get(DATA_VARIABLE)
    places = [Path(data), Path(data) / "traces"] if data else []
    return next((place / file for place in [*places, cache_dir()] if (place / file).is_file()), None)


def load_trace(name: str, spread_s: float | None = None) -> Workload:
    """A known trace, whole, in arrays of its own.

    Arrivals of ``mooncake_conv`` are published in steps of 3 s (about 9.5 requests at once). They are spread
    uniformly inside the step, in file order and always by the same draw, so that the trace stays one trace;
    this makes arrivals Poisson-like inside each step, about which the published data say nothing.

    Args:
        name: key of ``TRACES``.
        spread_s: step to spread over, seconds; 0 keeps the published times; None takes the trace's own.

    Raises:
        ValueError: the trace is not on this machine, or its file is malformed.
    """
    return cached_trace(name, spread_s).copy()


def cached_trace(name: str, spread_s: float | None = None) -> Workload:
    """Like :func:`load_trace`, but shared within the process: only for readers that leave the arrays alone."""
    path = find_trace(name)
    if path is None:
        raise ValueError(
            f"trace {name!r} is not on this machine: run 'python -m runners.traces fetch name={name}', "
            f"or point ${DATA_VARIABLE} at a folder that holds {TRACES[name].file}"
        )
    step_s = TRACES[name].quantum_s if spread_s is None else spread_s
    return _read(name, str(path), path.stat().st_mtime_ns, step_s)


def spread_arrivals(arrival_s: FloatArray, step_s: float, rng: np.random.Generator) -> FloatArray:
    """Spreads arrivals that were rounded down to a step uniformly over the step.

    Requests with one published time get sorted uniform offsets, hence keep their order.

    Args:
        arrival_s: (N,), seconds, never decreasing.
        step_s: above 0, seconds.
        rng: source of the offsets.

    Returns:
        (N,), seconds, never decreasing.
    """
    offsets = rng.uniform(0.0, step_s, arrival_s.size)
    in_order = np.lexsort((offsets, arrival_s))
    spread: FloatArray = np.maximum.accumulate(arrival_s + offsets[in_order])
    return spread


def load_file(path: str | Path) -> Workload:
    """Reads a trace file of your own, in any format of :mod:`envs.workload.reading`."""
    return read_trace(path)[0]


def read_trace(path: str | Path, options: ReadOptions | None = None) -> tuple[Workload, TraceReport]:
    """Reads a trace file of your own, and says what it understood of it.

    Args:
        path: the file.
        options: what it should not infer.

    Raises:
        ValueError: no such file, a format that is not read, or a malformed entry; names file, row and column.
    """
    # Imported here because pandas and pyarrow take 0.3 s to import, and generators need neither.
    from serving_gym.envs.workload.reading import load

    return load.read_trace(path, options)


@lru_cache(maxsize=16)
def _read(name: str, path: str, _modified_ns: int, step_s: float) -> Workload:
    info = TRACES[name]
    if step_s < 0:
        raise ValueError(f"spread_s must be at least 0, got {step_s}")
    provenance = f"{info.publisher} ({info.licence}): {info.title}; {info.citation}"
    trace = replace(load_file(path), name=name, provenance=provenance)
    if step_s > 0:
        arrival_s = spread_arrivals(trace.arrival_s, step_s, stream(0, name, "spread"))
        trace = replace(trace, arrival_s=arrival_s)
    return trace.validate()
