"""Simulates a plain stream of requests, without decisions.

    python -m runners.simulate workload=azure_conv cluster=llama31_8b_h100_x8 router=jsq

Writes `summary.json`, `requests.parquet` and `requests.json` (keys of `vllm bench serve --save-detailed`).
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from envs.backend import SLO
from envs.metrics import summarise
from envs.simulator.simulator import Simulator
from envs.workload.registry import WorkloadSource
from envs.workload.schema import Workload
from runners.cli import command
from runners.output import write_atomically, write_json
from runners.schema import SimulateConfig
from runners.tables import SHOWN_METRICS, print_results_in, print_summary

_WARM_UP_REQUESTS = 8


@command("simulate", SimulateConfig)
def main(config: SimulateConfig, out: Path) -> None:
    """Simulates and writes."""
    cluster = config.cluster if config.router is None else replace(config.cluster, router=config.router)
    workload = WorkloadSource(config.workload).sample(config.seed)
    slos = slos_of(workload, config.slos)
    simulator = Simulator(cluster, tuple(slos.values()))
    elapsed_s = timed_run(simulator, workload, config.limit_s)
    records, duration_s = simulator.results(), simulator.now_s
    summary = summarise(records, slos, workload.classes, duration_s)
    figures = {
        "simulated_requests_per_s": len(records) / elapsed_s,
        "elapsed_s": elapsed_s,
        "duration_s": duration_s,
    }
    write_atomically(out / "requests.parquet", records.to_parquet)
    write_json(out / "requests.json", records.to_vllm_json(duration_s, slos, workload.classes), indent=None)
    header = {"workload": workload.name, "provenance": workload.provenance, "router": cluster.router}
    write_json(out / "summary.json", {**header, **figures, "metrics": summary})
    title = f"{len(records):,} requests of {workload.name}, {len(simulator.observe().layout)} engines, {cluster.router}"
    print_summary(title, figures | summary, (*figures, *SHOWN_METRICS[1:]))
    print_results_in(out)


def slos_of(workload: Workload, slos: dict[str, SLO]) -> dict[str, SLO]:
    """Promises by class, in the order of the workload's classes.

    Raises:
        ValueError: a class without one.
    """
    missing = [name for name in workload.classes if name not in slos]
    if missing:
        raise ValueError(f"slos has no entry for class {missing[0]!r}; it has {', '.join(slos) or 'none'}")
    return {name: slos[name] for name in workload.classes}


def timed_run(simulator: Simulator, workload: Workload, limit_s: float | None = None) -> float:
    """Serves a workload and returns the seconds it took, compilation apart."""
    simulator.reset(workload.rows(0, min(_WARM_UP_REQUESTS, len(workload))))
    simulator.run_to_completion()
    simulator.reset(workload)
    begun = time.perf_counter()
    simulator.run_to_completion(limit_s)
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main(None))
