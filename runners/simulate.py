"""Serves a stream of requests without a policy: in simulation, or on live vLLM servers in real time.

    python -m runners.simulate workload=azure_conv cluster=llama31_8b_h100_x8 router=jsq
    python -m runners.simulate workload=azure_conv cluster=fleet_two_gpus router=jsq
    python -m runners.simulate workload=azure_conv_fitted backend=vllm backend.endpoints=[http://127.0.0.1:8000]

Writes `summary.json`, `requests.parquet` and, unless `requests_json=false`, `requests.json` (keys of
`vllm bench serve --save-detailed`). `report=true` also writes `report.html` (see `runners.report`).
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig
from serving_gym.envs.interface.metrics import RequestRecords, summarise
from serving_gym.envs.interface.slo import SLO, promises
from serving_gym.envs.machines.shared_nodes import SharingSpec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.registry import WorkloadSource
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.clusters import check_unattended, cluster_of, num_engines, simulator_of
from serving_gym.runners.configuration.schema import SimulateConfig
from serving_gym.runners.html.report import write_report
from serving_gym.runners.reporting.engine_lines import say_engines
from serving_gym.runners.reporting.idle_time import skipped_s, whole_records, whole_usage
from serving_gym.runners.reporting.line_writer import LineWriter
from serving_gym.runners.reporting.output import write_atomically, write_json, write_json_columns
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.records import REQUESTS
from serving_gym.runners.reporting.tables import (
    LENGTH_METRICS,
    SESSION_METRICS,
    SHOWN_METRICS,
    print_results_in,
    print_summary,
)
from serving_gym.runners.reporting.trace_lines import say_traces

if TYPE_CHECKING:
    from serving_gym.envs.live.backend import LiveBackend

_WARM_UP_REQUESTS = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """Result of serving a workload.

    Attributes:
        records: Every request that arrived.
        duration_s: Length of the run on the cluster's clock, seconds.
        figures: Metrics of the run itself, by name.
        engines: Number of engines.
        usage: GPU-hours, energy and cost, by name; empty on live servers.
        servers: Descriptions that live servers report of themselves.
        details: Lists that replace those of `RequestRecords.to_vllm_json`.
        ended_by: What ended the run early, if anything did.
    """

    records: RequestRecords
    duration_s: float
    figures: dict[str, float]
    engines: int
    usage: dict[str, float] = field(default_factory=dict)
    servers: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, list[Any]] = field(default_factory=dict)
    ended_by: BaseException | None = None


@command("simulate", SimulateConfig)
def main(config: SimulateConfig, out: Path) -> None:
    """Runs the command."""
    cluster = cluster_of(config.cluster, config.router)
    if isinstance(cluster, SharingSpec):
        raise ValueError(
            "cluster has nodes on which a policy places instances; choose a node or a fleet, or runners.evaluate "
            "env=sharing"
        )
    if isinstance(cluster, DeploymentSpec):
        raise ValueError(
            "cluster has machines that a policy cuts into replicas; choose a node or a fleet, or runners.evaluate "
            "env=deployment"
        )
    say_traces(config.workload, cluster)
    workload = WorkloadSource(config.workload).sample(config.seed)
    slos = dict(zip(workload.classes, promises(config.slos, workload.classes), strict=True))
    serve = serve_live if config.backend.name == "vllm" else serve_simulated
    served = serve(config, cluster, workload, slos, out)
    records, duration_s = served.records, served.duration_s
    summary = summarise(records, slos, workload.classes, duration_s) | served.usage
    figures = served.figures | {"duration_s": duration_s}
    write_atomically(out / "requests.parquet", records.to_parquet)
    if config.requests_json:
        detailed = records.to_vllm_json(duration_s, slos, workload.classes) | served.details
        write_json_columns(out / "requests.json", detailed)
    header: dict[str, Any] = {
        "workload": workload.name,
        "provenance": workload.provenance,
        "router": cluster.router,
    }
    header |= {"backend": config.backend.name, "servers": served.servers}
    header["classes"] = {name: {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s} for name, slo in slos.items()}
    if served.ended_by is not None:
        header["interrupted"] = type(served.ended_by).__name__
    write_json(out / "summary.json", {**header, **figures, "metrics": summary})
    title = f"{len(records):,} requests of {workload.name}, {served.engines} engines, {cluster.router}"
    of_length = [name for name in LENGTH_METRICS if summary[name]]
    names = (*figures, *SHOWN_METRICS[1:], *SESSION_METRICS, *of_length, *served.usage)
    print_summary(title, figures | summary, names)
    if config.report:
        print(f"Report in {write_report(out)}")
    print_results_in(out)
    if served.ended_by is not None:
        print(
            f"kept: {len(records)} of {len(workload)} requests, as the run was interrupted, in {out}; "
            "the same command serves all of them anew",
            file=sys.stderr,
        )
        raise served.ended_by


def serve_simulated(
    config: SimulateConfig,
    cluster: ClusterSpec | FleetConfig,
    workload: Workload,
    slos: dict[str, SLO],
    out: Path,
) -> Served:
    """Serves a workload in simulation."""
    check_unattended(cluster, workload)
    simulator = simulator_of(cluster, tuple(slos.values()))
    faults = cluster.faults if isinstance(cluster, FleetConfig) else ()
    if isinstance(simulator, FleetSimulator):
        simulator.check_faults(faults)
    say_engines(cluster)
    elapsed_s = timed_run(simulator, workload, config.limit_s, faults)
    records = whole_records(simulator.results(), workload)
    figures = {"simulated_requests_per_s": len(records) / elapsed_s, "elapsed_s": elapsed_s}
    duration_s = records.last_event_s if simulator.idle else simulator.now_s + skipped_s(workload)
    return Served(records, duration_s, figures, num_engines(simulator), whole_usage(simulator, workload))


def serve_live(
    config: SimulateConfig,
    cluster: ClusterSpec | FleetConfig,
    workload: Workload,
    slos: dict[str, SLO],
    out: Path,
) -> Served:
    """Serves a workload on live servers, in real time.

    Raises:
        ValueError: the cluster is a fleet.
    """
    from serving_gym.runners.live.attach import live_backend
    from serving_gym.runners.live.expectation import expectation, traffic_s

    if isinstance(cluster, FleetConfig):
        raise ValueError("cluster is a fleet, which only backend=simulator can serve; choose a node")

    length_s = traffic_s(workload, config.backend.speed)
    line = expectation(f"{len(workload):,} requests", length_s, "workload.num_requests and limit_s")
    print(line, flush=True)
    begun = time.perf_counter()
    with live_backend(config.backend, cluster, tuple(slos.values()), out / "server") as backend:
        ended_by = _serve(backend, workload, config.limit_s, out)
        records = backend.results()
        duration_s = records.last_event_s if backend.idle else backend.now_s
        lag_s = backend.send_lag_s()
        figures = {
            "elapsed_s": time.perf_counter() - begun,
            "send_lag_p99_s": float(np.percentile(lag_s, 99)) if lag_s.size else 0.0,
        }
        servers = [asdict(server) for server in backend.servers]
        details = backend.details()
    (out / REQUESTS).unlink(missing_ok=True)  # which requests.parquet replaces
    return Served(records, duration_s, figures, len(servers), {}, servers, details, ended_by)


def _serve(
    backend: LiveBackend, workload: Workload, limit_s: float | None, out: Path
) -> BaseException | None:
    """Serves a workload with a line in `requests.jsonl` for each request that ends; returns what ended it early.

    Raises:
        BaseException: What ended it before a request had arrived.
    """

    def on_failure(error: OSError) -> None:
        _log.warning("cannot write to %s (%s): the run goes on", out, error.strerror or error)

    lines = LineWriter(out / REQUESTS, on_failure)
    backend.record_requests(lines.write)
    try:
        backend.reset(workload)
        with progress_bar(len(workload), "requests", "req") as bar:
            backend.run_to_completion(limit_s, lambda done: bar.update(done - bar.n))
    except BaseException as error:
        if not len(backend.results()):
            raise
        return error
    finally:
        lines.close()
    return None


def timed_run(
    simulator: Simulator | FleetSimulator,
    workload: Workload,
    limit_s: float | None = None,
    faults: tuple[Any, ...] = (),
) -> float:
    """Serves a workload and returns the CPU time that it took, seconds, without compilation."""
    simulator.reset(workload.rows(0, min(_WARM_UP_REQUESTS, len(workload))))
    simulator.run_to_completion()
    simulator.reset(workload, faults)
    begun = time.process_time()
    simulator.run_to_completion(limit_s)
    return time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main(None))
