"""Measures speed and memory of the kernel, the environments and the policies, on one core.

    python -m runners.bench
    python -m runners.bench only=[simulate.requests_per_s] engines=[8] repeats=3

Writes `bench.json`: a median of `repeats` runs each, compilation apart; `peak_rss_mib` is the process's high-water mark
at the end of the measurement.
"""

from __future__ import annotations

import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from envs.backend import SLO, ClusterSpec
from envs.registration import make_env, make_vector_env
from envs.simulator.simulator import Simulator
from envs.workload.registry import WorkloadSource, WorkloadSpec, check_choice
from envs.workload.schema import Workload
from envs.workload.traces import find_trace
from runners.cli import command
from runners.output import write_json
from runners.policies import load_policy
from runners.progress import progress_bar
from runners.rollout import run_episode
from runners.schema import BenchConfig
from runners.simulate import timed_run
from runners.tables import print_results_in, print_table

_SLO = SLO(ttft_s=0.5, tpot_s=0.02)
_KIB_PER_MIB = 1024
_FORK_AFTER_S = 60.0
_FORKS = 200
_ORACLE_ENGINES = 8
_STEPS = 200
_POLICY_REQUESTS = 500
_POLICIES = ("static_dp", "load_threshold", "flying_serving")
_IMPORTS = "import gymnasium, envs; gymnasium.spec('Serving/DPTP-v0')"


@dataclass(frozen=True)
class Measurement:
    """One thing to measure: `run` makes one measurement and returns its value."""

    name: str
    unit: str
    params: Mapping[str, Any]
    run: Callable[[], float]


@command("bench", BenchConfig)
def main(config: BenchConfig, out: Path) -> None:
    """Measures and writes."""
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


def _simulate(config: BenchConfig) -> Iterator[Measurement]:
    for engines in config.engines:
        workload, simulator = _stream(config), _simulator(config, engines)
        params = {
            "workload": workload.name,
            "engines": engines,
            "router": config.router,
            "prefix_caching": False,
        }
        yield Measurement("simulate.requests_per_s", "1/s", params, _rate_of(simulator, workload))


def _rate_of(simulator: Simulator, workload: Workload) -> Callable[[], float]:
    return lambda: len(workload) / timed_run(simulator, workload)


def _oracle(config: BenchConfig) -> Iterator[Measurement]:
    """The plain-Python engine of the tests; an installed package has none."""
    try:
        from tests.simulator.oracle_of import oracle_of, run_oracle
    except ImportError:
        return
    workload = _stream(config).rows(0, config.oracle_requests)
    simulator = _simulator(config, _ORACLE_ENGINES)

    def run() -> float:
        simulator.reset(workload)
        oracle = oracle_of(simulator)
        begun = time.perf_counter()
        run_oracle(oracle)
        return len(workload) / (time.perf_counter() - begun)

    params = {
        "workload": workload.name,
        "engines": _ORACLE_ENGINES,
        "router": config.router,
        "requests": len(workload),
    }
    yield Measurement("oracle.requests_per_s", "1/s", params, run)


def _fork(config: BenchConfig) -> Iterator[Measurement]:
    for engines in config.engines:
        simulator = _simulator(config, engines)
        simulator.reset(_stream(config))
        simulator.advance(_FORK_AFTER_S)
        yield Measurement("fork.us", "us", {"engines": engines}, _time_of(simulator.fork, _FORKS))


def _time_of(action: Callable[[], object], times: int) -> Callable[[], float]:
    def run() -> float:
        begun = time.perf_counter()
        for _ in range(times):
            action()
        return 1e6 * (time.perf_counter() - begun) / times

    return run


def _env_steps(config: BenchConfig) -> Iterator[Measurement]:
    def scalar() -> float:
        env: Any = make_env("dp_tp", split="test")
        env.reset(seed=0)
        stay = np.flatnonzero(env.action_masks())[-1]
        begun = time.perf_counter()
        for _ in range(_STEPS):
            if env.step(stay)[2]:
                env.reset()
        return _STEPS / (time.perf_counter() - begun)

    def batched() -> float:
        env: Any = make_vector_env("dp_tp", config.num_envs, split="test")
        env.reset(seed=0)
        stay = np.full(config.num_envs, env.single_action_space.n - 1)
        begun = time.perf_counter()
        for _ in range(_STEPS):
            env.step(stay)
        return _STEPS * config.num_envs / (time.perf_counter() - begun)

    name, unit = "env.steps_per_s", "1/s"
    yield Measurement(name, unit, {"env": "dp_tp", "batched": False, "num_envs": 1}, scalar)
    yield Measurement(name, unit, {"env": "dp_tp", "batched": True, "num_envs": config.num_envs}, batched)


def _policies(config: BenchConfig) -> Iterator[Measurement]:
    workload = WorkloadSpec("flying_bursty", num_requests=_POLICY_REQUESTS)
    for name in _POLICIES:

        def decide(name: str = name) -> float:
            env = make_env("dp_tp", workload=workload, split="test")
            return run_episode(env, load_policy(name), seed=0).us_per_decision

        yield Measurement("policy.us_per_decision", "us", {"env": "dp_tp", "policy": name}, decide)


def _imports(config: BenchConfig) -> Iterator[Measurement]:
    yield Measurement("import.seconds", "s", {}, lambda: _process(["-c", _IMPORTS]))


def _first_answer(config: BenchConfig) -> Iterator[Measurement]:
    """From typing a command to its table, with the compiled kernel in Numba's cache."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            words = ["workload=azure_conv_fitted", "workload.num_requests=100", f"out={folder}/run"]
            return _process(["-m", "runners.simulate", *words])

    yield Measurement("first_answer.seconds", "s", {"command": "simulate"}, run)


def _process(arguments: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - begun


_MEASUREMENTS: dict[str, Callable[[BenchConfig], Iterator[Measurement]]] = {
    "simulate.requests_per_s": _simulate,
    "oracle.requests_per_s": _oracle,
    "fork.us": _fork,
    "env.steps_per_s": _env_steps,
    "policy.us_per_decision": _policies,
    "import.seconds": _imports,
    "first_answer.seconds": _first_answer,
}


def _stream(config: BenchConfig) -> Workload:
    """All requests of the workload."""
    spec = config.workload or WorkloadSpec("azure_conv" if find_trace("azure_conv") else "azure_conv_fitted")
    return WorkloadSource(replace(spec, num_requests=None, split="all")).sample(0)


def _cluster(config: BenchConfig, engines: int) -> ClusterSpec:
    return replace(config.cluster, num_gpus=engines * config.cluster.base_width, router=config.router)


def _simulator(config: BenchConfig, engines: int) -> Simulator:
    classes = len(_stream(config).classes)
    return Simulator(_cluster(config, engines), (_SLO,) * classes)


def _machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "numpy": np.__version__,
    }


def _processor() -> str:
    """Model name of the processor, where the system says so."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _shown(params: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in params.items())


if __name__ == "__main__":
    sys.exit(main(None))
