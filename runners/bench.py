"""Measures speed and memory of the kernel, the environments and the policies, on one core.

    python -m runners.bench
    python -m runners.bench only=[simulate.requests_per_s] engines=[8] repeats=3

Writes `bench.json`: the median of `repeats` runs of each measurement, without compilation; `peak_rss_mib` is the peak
resident memory of the process at the end of the measurement. Measurements in this process use one thread without
waiting and are timed in CPU time, so that other processes do not affect them. Child processes are timed in wall time.
"""

from __future__ import annotations

import platform
import resource
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.speed.autoscaling import autoscaling_steps, scaled_spans
from serving_gym.runners.speed.deployment import deployment_steps
from serving_gym.runners.speed.environments import env_steps, policies
from serving_gym.runners.speed.measurement import Measurement
from serving_gym.runners.speed.processes import first_answer, imports
from serving_gym.runners.speed.routing import routers, routing_forks, routing_steps
from serving_gym.runners.speed.serving import decisions
from serving_gym.runners.speed.sharing import half_hour, sharing_steps
from serving_gym.runners.speed.simulation import fork, oracle, scaling, simulate, week
from serving_gym.runners.speed.training import training_steps

_KIB_PER_MIB = 1024
_MEASUREMENTS: dict[str, Callable[[BenchConfig], Iterable[Measurement]]] = {
    "simulate.requests_per_s": simulate,
    "oracle.requests_per_s": oracle,
    "fork.us": lambda config: (*fork(config), *routing_forks(config)),
    "env.steps_per_s": lambda config: (
        *env_steps(config),
        *routing_steps(config),
        *deployment_steps(config),
        *sharing_steps(config),
        *autoscaling_steps(config),
    ),
    "train.steps_per_s": training_steps,
    "policy.us_per_decision": lambda config: (*policies(config), *routers(config)),
    "serve.ms": decisions,
    "import.seconds": imports,
    "first_answer.seconds": first_answer,
    "stream.requests_per_s": scaling,
    "week.seconds": week,
    "half_hour.seconds": half_hour,
    "scaled_span.seconds": scaled_spans,
}


@command("bench", BenchConfig)
def main(config: BenchConfig, out: Path) -> None:
    """Runs the command."""
    for name in config.only:
        check_choice("measurement", name, _MEASUREMENTS)
    todo = [
        m
        for name, make in _MEASUREMENTS.items()
        if not config.only or name in config.only
        for m in make(config)
    ]
    results = []
    with progress_bar(len(todo), "bench") as bar:
        for measurement in todo:
            bar.set_postfix_str(measurement.name, refresh=False)
            results.append(_measured(measurement, config.repeats))
            bar.update()
    write_json(out / "bench.json", {"machine": _machine(), "results": results})
    rows = [(r["name"], _shown(r["params"]), r["value"], r["unit"], r["peak_rss_mib"]) for r in results]
    print_table("Speed, medians", ("measurement", "of", "value", "unit", "peak RSS, MiB"), rows)
    print_results_in(out)


def _measured(measurement: Measurement, repeats: int) -> dict[str, Any]:
    values = [measurement.run() for _ in range(repeats)]
    return {
        "name": measurement.name,
        "value": statistics.median(values),
        "unit": measurement.unit,
        "params": dict(measurement.params),
        "repeats": repeats,
        "min": min(values),
        "max": max(values),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB_PER_MIB,
    }


def _machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "numpy": np.__version__,
    }


def _processor() -> str:
    """Model name of the processor, if the system reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _shown(params: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in params.items())


if __name__ == "__main__":
    sys.exit(main(None))
