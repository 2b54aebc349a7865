"""Speed of the simulator: requests per second, alone and against the oracle, forks, long streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.simulator.streaming import run_stream
from serving_gym.envs.workload.ragged import offsets_of
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.traces import find_trace
from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.simulate import timed_run
from serving_gym.runners.speed.measurement import Measurement, time_of

_SLO = SLO(ttft_s=0.5, tpot_s=0.02)
_FORK_AFTER_S = 60.0
_FORKS = 200
_ORACLE_ENGINES = 8
_SATURATING = 1e6  # rate scale at which all requests arrive practically at once
_SATURATION_REQUESTS = 4000
_URGENT_SHARE = 0.1
_PREFIXES, _PREFIX_ENGINES = "mooncake_conv", 8  # a trace with prefix ids, at its own rate
_SESSION_ENGINES, _TURNS, _THINK_S = 8, 5, 30.0
_BLOCK = 100_000  # requests of a stream that are drawn; longer streams repeat them
_STREAM_ENGINES = 8
_HOUR_S, _WEEK_H = 3600.0, 168
_REGIONS = ("east", "central", "west")
_MODELS = ("llama-3.1-8b", "llama-2-7b", "llama-2-13b", "llama-3.1-70b")
_PLACES = 20


def stream(config: BenchConfig) -> Workload:
    """All requests of the workload."""
    spec = config.workload or WorkloadSpec("azure_conv" if find_trace("azure_conv") else "azure_conv_fitted")
    return WorkloadSource(replace(spec, num_requests=None, split="all")).sample(0)


def _cluster(config: BenchConfig, engines: int, heavy: bool = False) -> ClusterSpec:
    spec = replace(config.cluster, num_gpus=engines * config.cluster.base_width, router=config.router)
    return replace(spec, prefix_caching=True, order="priority") if heavy else spec


def _simulator(config: BenchConfig, engines: int, heavy: bool = False) -> Simulator:
    return Simulator(_cluster(config, engines, heavy), (_SLO,) * len(stream(config).classes))


def saturation_rps(config: BenchConfig) -> float:
    """Requests per second that one engine serves when they all wait for it."""
    workload = stream(config).rows(0, _SATURATION_REQUESTS).with_rate_scale(_SATURATING)
    simulator = _simulator(config, 1)
    simulator.reset(workload)
    simulator.run_to_completion()
    return len(workload) / simulator.now_s


def _with_urgent(workload: Workload) -> Workload:
    """The same requests, some of which go first."""
    urgent = np.random.default_rng(0).random(len(workload)) < _URGENT_SHARE
    return replace(workload, priority=np.where(urgent, 0, 1).astype(np.int32))


def in_sessions(workload: Workload) -> Workload:
    """The same requests in sessions of five turns, each after an answer that takes as long as its SLO allows."""
    rows = np.arange(len(workload))
    lag = max(1, round(workload.rate_rps * _THINK_S))
    waits = (rows // lag) % _TURNS != 0
    gap_s = workload.arrival_s - workload.arrival_s[np.maximum(rows - lag, 0)]
    answer_s = _SLO.ttft_s + _SLO.tpot_s * workload.output_tokens[np.maximum(rows - lag, 0)]
    return replace(
        workload,
        session_id=rows % lag + rows // (lag * _TURNS) * lag,
        delay_s=np.where(waits, np.maximum(gap_s - answer_s, 0.0), 0.0),
        after_offsets=offsets_of(waits),
        after=rows[waits] - lag,
    ).planned()


def simulate(config: BenchConfig) -> Iterator[Measurement]:
    """Requests per second at a share of what engines serve: plain, with prefix caching and priorities, in sessions."""
    plain, saturated_rps = stream(config), saturation_rps(config)
    for heavy in (False, True):
        requests = _with_urgent(plain) if heavy else plain
        for engines in config.engines:
            scale = config.load * engines * saturated_rps / plain.rate_rps
            yield _simulated(config, requests.with_rate_scale(scale), engines, heavy)
    scale = config.load * _SESSION_ENGINES * saturated_rps / plain.rate_rps
    yield _simulated(config, in_sessions(plain.with_rate_scale(scale)), _SESSION_ENGINES, False)
    if find_trace(_PREFIXES):
        conversations = WorkloadSource(WorkloadSpec(_PREFIXES, split="all")).sample(0)
        for heavy in (False, True):
            yield _simulated(config, conversations, _PREFIX_ENGINES, heavy)


def _simulated(config: BenchConfig, workload: Workload, engines: int, heavy: bool) -> Measurement:
    simulator = _simulator(config, engines, heavy)
    params = {
        "workload": workload.name,
        "engines": engines,
        "router": config.router,
        "prefix_caching": heavy,
        "order": simulator.spec.order,
        "rate_rps": round(workload.rate_rps, 2),
        "sessions": workload.has_sessions,
    }
    return Measurement("simulate.requests_per_s", "1/s", params, _rate_of(simulator, workload))


def _rate_of(simulator: Simulator, workload: Workload) -> Callable[[], float]:
    return lambda: len(workload) / timed_run(simulator, workload)


def oracle(config: BenchConfig) -> Iterator[Measurement]:
    """The plain-Python engine of the tests; an installed package has none."""
    try:
        from tests.simulator.oracle_of import oracle_of, run_oracle
    except ImportError:
        return
    workload = stream(config).rows(0, config.oracle_requests)
    simulator = _simulator(config, _ORACLE_ENGINES)

    def run() -> float:
        simulator.reset(workload)
        oracle = oracle_of(simulator)
        begun = time.process_time()
        run_oracle(oracle)
        return len(workload) / (time.process_time() - begun)

    params = {
        "workload": workload.name,
        "engines": _ORACLE_ENGINES,
        "router": config.router,
        "requests": len(workload),
    }
    yield Measurement("oracle.requests_per_s", "1/s", params, run)


def fork(config: BenchConfig) -> Iterator[Measurement]:
    """Copies of a world in the midst of its work."""
    for engines in config.engines:
        simulator = _simulator(config, engines)
        simulator.reset(stream(config))
        simulator.advance(_FORK_AFTER_S)
        yield Measurement("fork.us", "us", {"engines": engines}, time_of(simulator.fork, _FORKS))


# -- long streams ------------------------------------------------------------------------------------------------------


def _block() -> Workload:
    """Requests that streams are made of."""
    return WorkloadSource(WorkloadSpec("azure_conv_fitted", num_requests=_BLOCK)).sample(0)


def scaling(config: BenchConfig) -> Iterator[Measurement]:
    """Requests per second of streams of growing length on one fleet."""
    replica = ReplicaSpec(config.cluster.model, config.cluster.gpu, config.cluster.base_width)
    spec = FleetSpec((GroupSpec(replica, _STREAM_ENGINES),), router=config.router)
    rate_rps = config.load * _STREAM_ENGINES * saturation_rps(config)
    for count in config.requests:

        def run(count: int = count) -> float:
            simulator = FleetSimulator(spec, (_SLO,))
            pieces = list(_repeated(_block(), count, rate_rps)) if count <= _BLOCK else None
            begun = time.process_time()
            run_stream(simulator, pieces or _repeated(_block(), count, rate_rps))
            return count / (time.process_time() - begun)

        params = {"requests": count, "engines": _STREAM_ENGINES, "router": config.router, "load": config.load}
        yield Measurement("stream.requests_per_s", "1/s", params, run)


def _repeated(block: Workload, count: int, rate_rps: float) -> Iterator[Workload]:
    """`count` requests at a mean rate, block after block."""
    scaled = block.with_rate_scale(rate_rps / block.rate_rps)
    span_s = scaled.duration_s + 1.0 / rate_rps
    for number in range(-(-count // len(scaled))):
        piece = scaled.head(min(len(scaled), count - number * len(scaled)))
        yield piece.shifted(number * span_s)


def week(config: BenchConfig) -> Iterator[Measurement]:
    """A week of requests for four models from three regions, with days and nights; memory follows what is in flight."""
    spec = FleetSpec(
        tuple(
            GroupSpec(
                ReplicaSpec(model, "H100", 4 if model == "llama-3.1-70b" else 1), _PLACES, region=region
            )
            for region in _REGIONS
            for model in _MODELS
        ),
        max_model_len=32_768,
    )

    def run() -> float:
        simulator = FleetSimulator(spec, (_SLO,))
        begun = time.process_time()
        tally = run_stream(simulator, _hours(config.week_requests))
        assert tally.summary()["requests"] == tally.arrived
        return time.process_time() - begun

    params = {
        "requests": config.week_requests,
        "regions": len(_REGIONS),
        "models": len(_MODELS),
        "engines": spec.num_places,
        "router": spec.router,
    }
    yield Measurement("week.seconds", "s", params, run)


def _hours(requests: int) -> Iterator[Workload]:
    """A week hour by hour: a sine a day, half of it at the weekend, lengths as in the Azure conversation trace."""
    random = np.random.default_rng(0)
    block, hours = _block(), np.arange(_WEEK_H)
    shape = 1.0 + 0.6 * np.sin(2 * np.pi * (hours - 8) / 24)
    shape[120:] *= 0.5
    longest = 3000  # of the models' contexts, the shortest is 4096
    for hour, share in enumerate(shape / shape.sum()):
        count = max(round(requests * share), 1)
        rows = random.integers(len(block), size=count)
        yield Workload(
            arrival_s=np.sort(random.uniform(hour * _HOUR_S, (hour + 1) * _HOUR_S, count)),
            input_tokens=np.minimum(block.input_tokens[rows], longest),
            output_tokens=np.minimum(block.output_tokens[rows], 4096 - longest),
            model_id=random.integers(len(_MODELS), size=count),
            models=_MODELS,
            region_id=random.integers(len(_REGIONS), size=count),
            regions=_REGIONS,
        )
