"""A recording of vLLM's traces, for where there is no vLLM: the scenarios with them, so that nothing is drawn anew."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.vllm.coverage import COMMON, RARE, WITH_PREFIXES, coverage
from tests.vllm.installation import vllm_traces
from tests.vllm.replay import Step
from tests.vllm.scenarios import Scenario, draw_scenarios, from_json, to_json

PATH = Path(__file__).with_name("recording.json.gz")
COMMAND = "python -m tests.vllm --record"
WORKLOADS = 48  # half of them with prefix caching
MOST_STEPS = 250


def write(python: Path) -> None:
    """Records vLLM's scheduler on short scenarios in which much happens."""
    drawn = draw_scenarios(16 * WORKLOADS, first_seed=10_000)
    version, traces = vllm_traces(python, drawn)
    pairs = list(zip(drawn, traces, strict=True))
    kept = [pair for caching in (False, True) for pair in _richest(pairs, caching)]
    data = {
        "vllm": version,
        "command": COMMAND,
        "workloads": [{"scenario": to_json(scenario), "trace": trace} for scenario, trace in kept],
    }
    text = json.dumps(data, separators=(",", ":"))
    PATH.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _richest(pairs: list[tuple[Scenario, list[Step]]], caching: bool) -> list[tuple[Scenario, list[Step]]]:
    """The workloads in which most kinds of rare things happen."""
    found = [
        (scenario, trace)
        for scenario, trace in pairs
        if scenario.settings.prefix_caching == caching and len(trace) <= MOST_STEPS
    ]

    def kinds(pair: tuple[Scenario, list[Step]]) -> int:
        counts = coverage(*pair)
        return sum(counts[name] > 0 for name in (*COMMON, *WITH_PREFIXES, *RARE, *RARE))

    return sorted(found, key=kinds, reverse=True)[: WORKLOADS // 2]


def read() -> tuple[str, list[tuple[Scenario, list[Step]]]]:
    """The version of vLLM that was recorded, and scenarios with vLLM's traces."""
    data = json.loads(gzip.decompress(PATH.read_bytes()))
    return data["vllm"], [(from_json(row["scenario"]), row["trace"]) for row in data["workloads"]]
