"""A recording of vLLM's traces, for where there is no vLLM: the scenarios with them, so that nothing is drawn anew."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.vllm.coverage import COMMON, RARE, WITH_PREFIXES, coverage
from tests.vllm.installation import vllm_traces
from tests.vllm.mutations import MUTATIONS
from tests.vllm.replay import Step
from tests.vllm.scenarios import Scenario, draw_scenarios, from_json, to_json

Pairs = list[tuple[Scenario, list[Step]]]

PATH = Path(__file__).with_name("recording.json.gz")
COMMAND = "python -m tests.vllm --record"
WORKLOADS = 48  # half of them with prefix caching, scheduled synchronously; a few more for mutations
ASYNC_WORKLOADS = 24  # scheduled asynchronously
MOST_STEPS = 150
ALL = (*COMMON, *WITH_PREFIXES, *RARE)


def write(python: Path) -> None:
    """Records vLLM's scheduler on short scenarios in which much happens."""
    drawn = draw_scenarios(16 * WORKLOADS, first_seed=10_000)
    version, traces = vllm_traces(python, drawn)
    pairs = list(zip(drawn, traces, strict=True))
    kept = [pair for caching in (False, True) for pair in _richest(pairs, caching, WORKLOADS // 2)]
    drawn = draw_scenarios(8 * ASYNC_WORKLOADS, first_seed=20_000, async_scheduling=True)
    asynchronous = list(zip(drawn, vllm_traces(python, drawn)[1], strict=True))
    for caching in (False, True):
        kept += _richest(asynchronous, caching, ASYNC_WORKLOADS // 2)
    kept += _telling(sorted([*pairs, *asynchronous], key=lambda pair: len(pair[1])), kept)
    data = {
        "vllm": version,
        "command": COMMAND,
        "workloads": [{"scenario": to_json(scenario), "trace": trace} for scenario, trace in kept],
    }
    text = json.dumps(data, separators=(",", ":"))
    PATH.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _richest(pairs: Pairs, caching: bool, count: int) -> Pairs:
    """The workloads in which most kinds of rare things happen; two, the shortest, for each kind before all others."""
    counted = [
        (coverage(scenario, trace), scenario, trace)
        for scenario, trace in sorted(pairs, key=lambda pair: len(pair[1]))
        if scenario.settings.prefix_caching == caching
    ]
    found: Pairs = []
    for name in RARE:
        found += [(scenario, trace) for counts, scenario, trace in counted if counts[name]][:2]
    kinds = {id(trace): sum(counts[name] > 0 for name in ALL) for counts, _, trace in counted}
    short = [(scenario, trace) for _, scenario, trace in counted if len(trace) <= MOST_STEPS]
    found += sorted(short, key=lambda pair: kinds[id(pair[1])], reverse=True)
    unique = {scenario.seed: (scenario, trace) for scenario, trace in reversed(found)}
    chosen = list(dict.fromkeys(scenario.seed for scenario, _ in found))[:count]
    return [unique[seed] for seed in sorted(chosen)]


def _telling(pairs: Pairs, kept: Pairs) -> Pairs:
    """For each mutation that those kept do not tell apart, the first workload that does."""
    found: Pairs = []
    for mutation in MUTATIONS.values():
        if not any(mutation.told_apart(*pair) for pair in [*kept, *found]):
            found += [next(pair for pair in pairs if mutation.told_apart(*pair))]
    return found


def read() -> tuple[str, Pairs]:
    """The version of vLLM that was recorded, and scenarios with vLLM's traces."""
    data = json.loads(gzip.decompress(PATH.read_bytes()))
    return data["vllm"], [(from_json(row["scenario"]), row["trace"]) for row in data["workloads"]]
