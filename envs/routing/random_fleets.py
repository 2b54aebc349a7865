"""Fleets drawn at random, to train a router that knows any fleet: engines, their number, traffic and age of gauges.

A fleet serves one model on up to three kinds of engines. Its workload is a mixture of several kinds of traffic, each at
a rate of its own: a share of what the fleet finishes where requests wait at every engine (`saturated_rps`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from serving_gym.calibration.engines import get_engine
from serving_gym.calibration.fields import check_at_least, check_within
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.models import get_model
from serving_gym.envs.interface.fleet import FleetConfig, FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.simulator.fleet.build import kv_tokens
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.workload.registry import MIXTURE, SESSIONS, WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload

TRAINING, VALIDATION = "training", "validation"  # streams of fleets: none is drawn in both
_STREAMS = {TRAINING: 0xF1E7, VALIDATION: 0xF1E8}
_SATURATING = 1000  # requests of a saturation run; source: ours
_PER_PLACE, _FEWEST, _MOST = 250, 400, 2000  # requests of an episode; source: ours
_CORRECTIONS = 2  # of the rate of sessions, of which some turns come after an episode; source: ours
_SHORTEST_AGE_S = 0.1  # of gauges that are not read at every decision; source: ours
# Sessions whose turns follow one another sooner, and of which fewer are older than an episode: those of the workloads
# take hours, so that most of what an episode of a minute would draw never comes in it; source: ours.
_SHORT_SESSIONS: dict[str, dict[str, Any]] = {
    "chat_sessions": {"history_s": 120.0, "think_median_s": 20.0, "think_spread": 0.5},
    "agentic_coding": {
        "history_s": 300.0,
        "human_median_s": 15.0,
        "human_spread": 1.0,
        "most_requests": 12,
    },
}


@dataclass(frozen=True)
class RandomFleets:
    """What random fleets are drawn from.

    Attributes:
        number: Fleets to train on.
        validation: Other fleets, of which validation episodes are played besides.
        places: Fewest and most engines of a fleet, 1 at least; log-uniform.
        kinds: Most kinds of engines in a fleet.
        models: Kinds of engines of each model, as `GPU/TP`.
        engines: Serving engines, one for each fleet; the first for half of them.
        traffic: Workloads, and from which to which share of the fleet's capacity each is asked for (log-uniform).
        sessions: Workloads of sessions, likewise.
        sessions_share: Share of fleets that cache prefixes and serve one of `sessions` among their traffic.
        parts: Kinds of traffic of a fleet; an episode has one of them.
        slots: Fewest and most requests that an engine runs at once, of fleets in which each kind has a limit of its
            own (log-uniform); elsewhere it is that of a replica.
        slots_share: Share of such fleets.
        gauge_age_s: Most time between two readings of gauges, seconds (log-uniform).
        gauge_age_share: Share of fleets whose gauges are not read at every decision.
    """

    number: int = 0
    validation: int = 0
    places: tuple[int, ...] = (2, 16)
    kinds: int = 3
    models: dict[str, Any] = field(default_factory=dict)  # OmegaConf knows no mapping to tuples
    engines: tuple[str, ...] = ()
    traffic: dict[str, Any] = field(default_factory=dict)
    sessions: dict[str, Any] = field(default_factory=dict)
    sessions_share: float = 0.0
    parts: int = 3
    slots: tuple[int, ...] = (2, 128)
    slots_share: float = 0.0
    gauge_age_s: float = 10.0
    gauge_age_share: float = 0.5

    def __post_init__(self) -> None:
        check_at_least(self, 0, "number", "validation", prefix="also_fleets.")
        check_at_least(self, 1, "kinds", "parts", prefix="also_fleets.")
        check_within(
            self, "[0, 1]", "sessions_share", "slots_share", "gauge_age_share", prefix="also_fleets."
        )
        check_within(self, "[0.1, 60]", "gauge_age_s", prefix="also_fleets.")
        for name in ("places", "slots"):
            bounds = getattr(self, name)
            if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
                raise ValueError(
                    f"also_fleets.{name} must be two numbers, least and most, got {list(bounds)}"
                )
        if not self.number:
            if self.validation:
                raise ValueError("also_fleets.validation needs fleets to train on: set also_fleets.number")
            return
        for name in ("models", "engines", "traffic"):
            if not getattr(self, name):
                raise ValueError(f"also_fleets.{name} must not be empty; also_fleets=any has one")
        if self.sessions_share and not self.sessions:
            raise ValueError("also_fleets.sessions must not be empty where sessions_share is above 0")
        for model in self.models:
            get_model(model)
            _ = self.kinds_of(model)
            for engine in self.engines:
                get_engine(engine, model)
        _check_loads("traffic", self.traffic)
        _check_loads("sessions", self.sessions)
        for name in self.sessions:
            if name not in SESSIONS:
                raise ValueError(f"also_fleets.sessions must be of {', '.join(SESSIONS)}, got {name!r}")

    def kinds_of(self, model: str) -> tuple[tuple[str, int], ...]:
        """GPU and tensor-parallel degree of each kind of engine of a model.

        Raises:
            ValueError: A kind is not written `GPU/TP`, or there is no such GPU.
        """
        found = []
        for each in self.models[model]:
            gpu, _, width = each.partition("/")
            if not width.isdecimal() or int(width) < 1:
                raise ValueError(
                    f"also_fleets.models.{model} must have kinds of engines as GPU/TP, like H100/2, got {each!r}"
                )
            get_gpu(gpu)
            found.append((gpu, int(width)))
        if not found:
            raise ValueError(f"also_fleets.models.{model} must have at least one kind of engine, as H100/1")
        return tuple(found)

    def draw(self, base: RoutingConfig, seed: int, number: int, stream: str = TRAINING) -> RoutingConfig:
        """A random fleet and its traffic.

        Args:
            base: Settings that are not drawn.
            seed: Of all fleets.
            number: Which of them; none depends on the others.
            stream: `TRAINING` or `VALIDATION`.
        """
        rng = np.random.default_rng(np.random.SeedSequence([seed, _STREAMS[stream], number]))
        replicas, counts = self._engines(rng)
        replicas = self._limited(rng.spawn(1)[0], replicas)
        engine = self.engines[0] if rng.random() < 0.5 else str(rng.choice(list(self.engines)))
        with_sessions = bool(rng.random() < self.sessions_share)
        groups = tuple(GroupSpec(replica, count) for replica, count in zip(replicas, counts, strict=True))
        cluster = FleetConfig(groups, engine=engine, prefix_caching=with_sessions)
        aged = rng.random() < self.gauge_age_share
        age_s = _log_uniform(rng, _SHORTEST_AGE_S, self.gauge_age_s)
        workload = self._workload(rng, cluster, with_sessions)
        _check_classes(workload, base.workload)
        return replace(
            base,
            cluster=cluster,
            workload=workload,
            gauge_interval_s=age_s if aged else 0.0,
            max_places=None,
        )

    def _engines(self, rng: np.random.Generator) -> tuple[list[ReplicaSpec], list[int]]:
        """Kinds of replicas, and how many there are of each."""
        model = str(rng.choice(list(self.models)))
        kinds = self.kinds_of(model)
        total = round(_log_uniform(rng, *self.places))
        number = int(rng.integers(1, min(self.kinds, len(kinds), total) + 1))
        chosen = rng.permutation(len(kinds))[:number]
        cuts = np.sort(rng.permutation(np.arange(1, total))[: number - 1])
        counts = np.diff([0, *cuts, total]).tolist()
        return [ReplicaSpec(model, kinds[i][0], tp_size=kinds[i][1]) for i in chosen], counts

    def _limited(self, rng: np.random.Generator, replicas: list[ReplicaSpec]) -> list[ReplicaSpec]:
        """The kinds with limits of their own on what runs at once, on some of the fleets."""
        if rng.random() >= self.slots_share:
            return replicas
        return [replace(each, max_num_seqs=round(_log_uniform(rng, *self.slots))) for each in replicas]

    def _workload(self, rng: np.random.Generator, cluster: FleetConfig, with_sessions: bool) -> WorkloadSpec:
        """A mixture of traffic at rates that the fleet can serve."""
        names = [str(name) for name in rng.permutation(list(self.traffic))]
        names = [names[i % len(names)] for i in range(self.parts)]
        if with_sessions:
            names[0] = str(rng.choice(list(self.sessions)))
        number = int(np.clip(_PER_PLACE * cluster.num_places, _FEWEST, _MOST))
        parts = []
        for name in names:
            least, most = self.sessions[name] if name in self.sessions else self.traffic[name]
            load = _log_uniform(rng, least, most)
            parts.append({"name": name, **_asked_for(name, cluster, load, number)})
        return WorkloadSpec(name=MIXTURE, num_requests=number, params={"parts": parts})


def fleet_rps(cluster: FleetConfig, workload: str) -> float:
    """What a fleet finishes of a workload where requests wait at every engine, requests/s.

    Args:
        cluster: The fleet; of its settings engines, widths and whether prefixes are cached count.
        workload: Name of a generator.
    """
    return sum(
        group.count * saturated_rps(cluster.limited(group.replica), workload, cluster.prefix_caching)
        for group in cluster.groups
    )


@lru_cache(maxsize=1024)
def saturated_rps(replica: ReplicaSpec, workload: str, prefix_caching: bool = False) -> float:
    """What one engine finishes of a workload whose requests have all arrived, requests/s; 0 where none fits.

    One run of a thousand requests, prefixes included, of which the middle half of the completions counts: within a
    tenth of the converged rate.
    """
    if not kv_tokens(replica):
        return 0.0
    drawn = _sample(workload)
    waiting = Workload(
        np.zeros(len(drawn)),
        drawn.input_tokens,
        drawn.output_tokens,
        hash_offsets=drawn.hash_offsets,
        hash_ids=drawn.hash_ids,
        hash_block_tokens=drawn.hash_block_tokens,
    )
    fleet = FleetSpec((GroupSpec(replica, 1),), prefix_caching=prefix_caching)
    simulator = FleetSimulator(fleet, (SLO(1.0, 1.0),))
    simulator.reset(waiting)
    simulator.run_to_completion()
    finish_s = simulator.results().finish_s
    ended = np.sort(finish_s[np.isfinite(finish_s)])
    first, last = len(ended) // 4, 3 * len(ended) // 4
    if last <= first or ended[last] <= ended[first]:
        return 0.0
    return float((last - first) / (ended[last] - ended[first]))


@lru_cache(maxsize=32)
def _sample(workload: str) -> Workload:
    """Requests of a workload at its own rate."""
    params = _SHORT_SESSIONS.get(workload, {})
    return WorkloadSource(WorkloadSpec(name=workload, num_requests=_SATURATING, params=params)).sample(0)


def _asked_for(workload: str, cluster: FleetConfig, load: float, number: int) -> dict[str, object]:
    """Fields of a part of a mixture that asks for a share of what a fleet can serve.

    Args:
        workload: Name of a generator.
        cluster: The fleet.
        load: The share.
        number: Requests of an episode.
    """
    rate_rps = load * fleet_rps(cluster, workload)
    if not rate_rps:
        kinds = ", ".join(
            f"{g.replica.model} on {g.replica.num_gpus} x {g.replica.gpu}" for g in cluster.groups
        )
        raise ValueError(f"also_fleets.models: {kinds} can serve nothing of {workload}; leave it out")
    if workload not in SESSIONS:
        return {"rate_rps": rate_rps}
    params = {**_SHORT_SESSIONS.get(workload, {}), "arrival_rate_rps": rate_rps}
    for _ in range(_CORRECTIONS):
        spec = WorkloadSpec(name=workload, num_requests=number, params=params)
        comes_rps = number / float(WorkloadSource(spec).sample(0).arrival_s[-1])
        params["arrival_rate_rps"] *= rate_rps / comes_rps
    return {"params": params}


def _log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    return float(math.exp(rng.uniform(math.log(least), math.log(most))))


def _check_loads(name: str, loads: Mapping[str, tuple[float, ...]]) -> None:
    for workload, bounds in loads.items():
        WorkloadSource(WorkloadSpec(name=workload))
        if len(bounds) != 2 or not 0.0 < bounds[0] <= bounds[1] < math.inf:
            raise ValueError(
                f"also_fleets.{name}.{workload} must be two positive shares of the capacity, got {list(bounds)}"
            )


def _check_classes(workload: WorkloadSpec, base: WorkloadSpec) -> None:
    """Raises ValueError where a router would observe other request classes than on the other fleets."""
    own, theirs = (WorkloadSource(each).classes for each in (workload, base))
    if own != theirs:
        raise ValueError(
            f"also_fleets.traffic must have the request classes of workload, {', '.join(theirs)}, got {', '.join(own)}"
        )
