"""The simulated twin of a log: the same arrivals and lengths, served in simulation by each policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.baselines.policy import Policy, PolicySpec
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.registration import Environment
from serving_gym.envs.routing.state import RoutingState
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.predictions import COLUMN, PredictionSpec
from serving_gym.envs.workload.registry import FILE, WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.replaying.log import UNKNOWN, Log
from serving_gym.runners.replaying.outcomes import Floats, Outcomes, costs_of
from serving_gym.runners.rollouts.rollout import run_episode

LOGGED = "as logged"


@dataclass(frozen=True)
class Twin:
    """What the simulator serves.

    Attributes:
        env: The environment.
        seeds: Seeds of its episodes.
        baseline: Does what the log did.
        described: What it is, in a sentence.
    """

    env: Any
    seeds: tuple[int, ...]
    baseline: Policy
    described: str


class AsLogged:
    """Sends each request where the log sent it, and by least requests where the log does not tell.

    Args:
        places: Place of each request of the twin, by its row; UNKNOWN: not told.
    """

    name, clairvoyant = LOGGED, False

    def __init__(self, places: Sequence[int]) -> None:
        self.places = places

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Begins an episode."""

    def act(self, observation: Any, state: RoutingState) -> int:
        """The logged place."""
        assert state.request is not None, "somebody asks about a request"
        row = state.request.index
        place = self.places[row] if row < len(self.places) else UNKNOWN
        if 0 <= place < len(state.can_take) and state.can_take[place]:
            return place
        loads = state.engines["num_running"] + state.engines["num_waiting"]
        return int(np.argmin(np.where(state.can_take, loads, np.iinfo(np.int64).max)))


def recorded_twin(environment: Environment, seeds: Sequence[int], baseline: Policy) -> Twin:
    """The twin of a run whose configuration is known: its own episodes again, in simulation.

    Args:
        environment: That of the run.
        seeds: Its seeds.
        baseline: The policy that it ran.
    """
    return Twin(
        environment.make(),
        tuple(seeds),
        baseline,
        f"the same {len(seeds)} episodes in simulation, compared with {baseline.name} in simulation",
    )


def seen_twin(
    environment: Environment, classes: Sequence[str], log: Log, outcomes: Outcomes, file: Path
) -> Twin:
    """The twin of a log of a serving process: its requests, at their times, with the lengths that were seen.

    Args:
        environment: That of the log's setting; its workload is replaced.
        classes: Names of the request classes.
        log: The log.
        outcomes: Of the logged decisions.
        file: Trace to write, with the requests.

    Raises:
        ValueError: The log has fewer than two requests with a known length.
    """
    rows = list(_first_rows(log, outcomes))
    if len(rows) < 2:
        raise ValueError("the log has fewer than two requests whose answers were seen, so it has no twin")
    requests = [request for row in rows if (request := log.states[row].request) is not None]
    arrival_s = np.array([request.arrival_s for request in requests])
    offsets = np.cumsum(np.r_[0.0, np.maximum(np.diff(arrival_s), 0.0)])
    output = outcomes.output_tokens[rows].astype(np.int32)
    columns = {
        name: np.array([getattr(request, name) for request in requests], np.int32)
        for name in ("input_tokens", "predicted_tokens", "max_output_tokens", "priority", "class_id")
    }
    workload = Workload(
        arrival_s=offsets,
        input_tokens=columns["input_tokens"],
        output_tokens=output,
        max_output_tokens=np.maximum(columns["max_output_tokens"], output),
        predicted_tokens=np.maximum(columns["predicted_tokens"], 1),
        priority=columns["priority"],
        class_id=columns["class_id"],
        classes=tuple(classes),
        name=file.stem,
        provenance="requests of a decision log",
    )
    write_trace(workload, file)
    spec = WorkloadSpec(name=FILE, path=str(file), split="all")
    twin = environment.changed(workload=spec, split="all", prediction=PredictionSpec(COLUMN))
    return Twin(
        twin.make(),
        (0,),
        AsLogged(log.taken[rows].tolist()),
        f"{len(rows):,} logged requests in simulation, compared with the logged places in simulation",
    )


def _first_rows(log: Log, outcomes: Outcomes) -> Iterator[int]:
    """Decisions of the longest episode that are the last ones about their requests, with a known length, in order."""
    longest = int(np.bincount(log.episode).argmax())
    last: dict[int, int] = {}
    for row in np.flatnonzero((log.episode == longest) & (outcomes.output_tokens > 0)).tolist():
        last[int(log.index[row])] = row
    yield from sorted(last.values(), key=lambda row: log.arrival_s[row])


def run_twin(
    twin: Twin, policies: Mapping[str, Policy], slos: Sequence[SLO], most: float
) -> dict[str, dict[str, float]]:
    """Mean cost of each policy in simulation, and its gain over the twin of the log.

    Args:
        twin: The twin.
        policies: By name.
        slos: SLO of each class.
        most: Highest cost of a request.
    """
    base = _mean_cost(twin, twin.baseline, slos, most)
    costs = {name: _mean_cost(twin, policy, slos, most) for name, policy in policies.items()}
    return {LOGGED: {"value": base, "gain": 0.0}} | {
        name: {"value": cost, "gain": 1.0 - cost / base} for name, cost in costs.items()
    }


def _mean_cost(twin: Twin, policy: Policy, slos: Sequence[SLO], most: float) -> float:
    records = [run_episode(twin.env, policy, seed).records for seed in twin.seeds]
    return float(np.concatenate([costs_of_records(each, slos, most) for each in records]).mean())


def costs_of_records(records: RequestRecords, slos: Sequence[SLO], most: float) -> Floats:
    """Cost of every request of an episode, (N,)."""
    return costs_of(records.ttft_s, records.tpot_s, records.class_id.astype(np.int64), slos, most)
