"""Reads decision logs of `runners.serve`, and the states of `runners.evaluate log_states=true`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.routing.action import DEFER, HOLD, REJECT
from serving_gym.envs.routing.state import RoutingState
from serving_gym.runners.replaying.recording import STATES_FILE, VERSION
from serving_gym.runners.serving.wire import state_from_json

UNKNOWN = -1
_NAMES = (STATES_FILE, "decisions.jsonl")
_KINDS = {"hold": HOLD, "reject": REJECT, "defer": DEFER}
_NEEDED = ("env", "state", "action")


@dataclass(frozen=True, eq=False)
class Log:
    """Decisions about requests, in the order of the file.

    Attributes:
        policies: Names of the policies that decided, in order of appearance.
        states: (N,), what was known at each.
        episode: (N,), number of the episode: it changes with the seed, and where the clock goes back.
        seed: (N,), seed of the episode, UNKNOWN where there is none.
        index: (N,), the request's row or number.
        arrival_s: (N,), its arrival, s.
        taken: (N,), action of the action space that was carried out, or UNKNOWN.
        answered: (N,), action that the policy answered.
        fallback: (N,), action of the fallback rule, or UNKNOWN.
        propensity: (N,), probability with which `taken` was taken; NaN: unknown.
        skipped: Lines that are no decision about a request, by reason.
        cut_off: Whether the last line has no end, as of a process that was killed.
    """

    policies: tuple[str, ...]
    states: list[RoutingState]
    episode: NDArray[np.int64]
    seed: NDArray[np.int64]
    index: NDArray[np.int64]
    arrival_s: NDArray[np.float64]
    taken: NDArray[np.int64]
    answered: NDArray[np.int64]
    fallback: NDArray[np.int64]
    propensity: NDArray[np.float64]
    skipped: dict[str, int]
    cut_off: bool

    def __len__(self) -> int:
        """Number of decisions."""
        return len(self.states)


def log_file(path: Path) -> Path:
    """The log that a path names: a file, or a run directory that holds one.

    Raises:
        ValueError: There is none.
    """
    if path.is_file():
        return path
    if path.is_dir():
        for name in _NAMES:
            if (path / name).is_file() and _has_states(path / name):
                return path / name
        raise ValueError(
            f"log={path} has no decision log with states: runners.serve writes decisions.jsonl, "
            f"runners.evaluate log_states=true {STATES_FILE}"
        )
    raise ValueError(f"log={path} does not exist")


def _has_states(file: Path) -> bool:
    with file.open(encoding="utf-8") as lines:
        return '"state"' in lines.readline()


def read_log(file: Path, num_places: int, slos: Sequence[SLO], num_rows: int, most: int) -> Log:
    """Reads a log of the routing environment.

    Args:
        file: The log.
        num_places: Places of the fleet.
        slos: SLO of each class.
        num_rows: Rows for places in the observation.
        most: Decisions to read.

    Raises:
        ValueError: A line is not of this form, or no line is a decision about a request.
    """
    states: list[RoutingState] = []
    columns: dict[str, list[Any]] = {
        name: [] for name in ("seed", "taken", "answered", "fallback", "propensity")
    }
    policies: dict[str, None] = {}
    skipped: dict[str, int] = {}
    cut_off = False
    for number, line, ended in _lines(file):
        if len(states) == most:
            break
        values = _object(file, number, line) if ended else None
        if values is None:
            cut_off = True
            continue
        reason = _why_not(values)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        try:
            state = state_from_json(values["state"], num_places, slos)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}; is it another cluster's log?") from None
        states.append(state)
        policies[str(values.get("policy", ""))] = None
        answered = action_of(values["action"], num_rows)
        fallback = action_of(values.get("fallback"), num_rows)
        applied = bool(values.get("applied", True))
        columns["seed"].append(values.get("seed", UNKNOWN))
        columns["answered"].append(answered)
        columns["fallback"].append(fallback)
        if "taken" in values:  # of a serving process, whose callers may have followed their own choice
            columns["taken"].append(action_of(values["taken"], num_rows))
        else:
            columns["taken"].append(answered if applied or "seed" in values else fallback)
        propensity = values.get("propensity")
        columns["propensity"].append(np.nan if propensity is None else float(propensity))
    if not states:
        raise ValueError(f"{file} has no decision about a request")
    states, columns = _last_of_each_seed(states, columns)
    seed = np.array(columns["seed"], np.int64)
    now_s = np.array([state.now_s for state in states])
    requests = [state.request for state in states if state.request is not None]
    return Log(
        policies=tuple(policies),
        states=states,
        episode=np.cumsum(np.r_[False, (np.diff(seed) != 0) | (np.diff(now_s) < 0)]),
        seed=seed,
        index=np.array([request.index for request in requests], np.int64),
        arrival_s=np.array([request.arrival_s for request in requests], np.float64),
        taken=np.array(columns["taken"], np.int64),
        answered=np.array(columns["answered"], np.int64),
        fallback=np.array(columns["fallback"], np.int64),
        propensity=np.array(columns["propensity"], np.float64),
        skipped=skipped,
        cut_off=cut_off,
    )


def _last_of_each_seed(
    states: list[RoutingState], columns: dict[str, list[Any]]
) -> tuple[list[RoutingState], dict[str, list[Any]]]:
    """Without episodes that were broken off: a run that went on has them again, whole."""
    last = dict[Any, int]()  # where the last episode of a seed begins
    for row, (seed, state) in enumerate(zip(columns["seed"], states, strict=True)):
        if row == 0 or seed != columns["seed"][row - 1] or state.now_s < states[row - 1].now_s:
            last[seed] = row
    kept = [row for row, seed in enumerate(columns["seed"]) if seed == UNKNOWN or row >= last[seed]]
    return [states[row] for row in kept], {
        name: [column[row] for row in kept] for name, column in columns.items()
    }


def action_of(value: Any, num_rows: int) -> int:
    """The action of the action space that a logged one stands for, or UNKNOWN.

    Args:
        value: A place, or an object of the wire form.
        num_rows: Rows for places in the observation.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        return UNKNOWN
    if value.get("kind") == "dispatch" and value.get("place") is None:
        return num_rows + HOLD
    if value.get("kind") in _KINDS:
        return num_rows + _KINDS[value["kind"]]
    place = value.get("place")
    return place if isinstance(place, int) and not isinstance(place, bool) else UNKNOWN


def _lines(file: Path) -> Iterator[tuple[int, str, bool]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, line, line.endswith("\n")


def _object(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        raise ValueError(f"{file}, line {number} is not JSON") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file}, line {number} must be an object, got {type(values).__name__}")
    for name in _NEEDED:
        if name not in values:
            raise ValueError(f"{file}, line {number} has no {name}, so it is no decision log with states")
    if values.get("v", VERSION) != VERSION:
        raise ValueError(f"{file}, line {number} is of version {values['v']}; version {VERSION} is read")
    if values["env"] != "routing":
        raise ValueError(f"{file}, line {number} is of env={values['env']}; env=routing is replayed")
    return values


def _why_not(values: dict[str, Any]) -> str:
    """Why a line is no decision about a request; empty if it is one."""
    state = values["state"]
    if not isinstance(state, dict):
        return "no state"
    return "no request" if state.get("request") is None else ""
