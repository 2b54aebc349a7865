"""The first lines of a run on a trace file: what was understood of it, and what looks wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.workload.reading.report import TraceReport
from serving_gym.envs.workload.registry import FILE, WorkloadSource, WorkloadSpec, parts_of
from serving_gym.runners.configuration.clusters import Cluster, cluster_of


def say_traces(spec: WorkloadSpec, cluster: Mapping[str, Any] | Cluster | None = None) -> None:
    """Prints a line for each trace file of a workload on stderr, and a line for each warning.

    Args:
        spec: the workload, or a mixture or sequence of several.
        cluster: what serves it.

    Raises:
        ValueError: a file that cannot be read.
    """
    single = cluster is not None and isinstance(cluster_of(cluster), ClusterSpec)
    said: set[str | None] = set()
    for part in parts_of(spec):
        report = WorkloadSource(part).report if part.name == FILE and part.path not in said else None
        said.add(part.path)
        for line in trace_lines(report, single) if report is not None else ():
            print(line, file=sys.stderr, flush=True)


def trace_lines(report: TraceReport, single_model: bool = False) -> list[str]:
    """The report in one line, and a line for each warning.

    Args:
        report: on a trace.
        single_model: whether the cluster serves one model only.
    """
    line = report.line
    if single_model and report.models:
        names = f"{len(report.models)} names" if len(report.models) > 1 else f"the name {report.models[0]!r}"
        line += f"; column 'model' has {names}; the cluster serves one model, to which all requests go"
    return [line, *(f"warning: {warning}" for warning in report.warnings)]
