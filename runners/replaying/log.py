"""Reads decision logs of `runners.serve`, and the states of `runners.evaluate log_states=true`."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.routing.action import DEFER, HOLD, REJECT
from serving_gym.runners.replaying.recording import STATES_FILE, VERSION
from serving_gym.runners.serving.decision_log import FILE
from serving_gym.runners.serving.host import agrees
from serving_gym.runners.serving.served import ServedEnvironment

UNKNOWN = -1
_NAMES = (STATES_FILE, FILE)
_KINDS = {"hold": HOLD, "reject": REJECT, "defer": DEFER}
_NEEDED = ("env", "state", "action")
_MOST_ROTATED = 99


@dataclass(frozen=True, eq=False)
class Log:
    """Logged decisions, in the order of the file.

    Actions are numbers: in routing those of the action space, else those that `Coder` gives.

    Attributes:
        policies: Names of the policies that decided, in order of appearance.
        states: (N,), what was known at each.
        episode: (N,), number of the episode: it changes with the seed, and where the clock goes back.
        seed: (N,), seed of the episode, UNKNOWN where there is none.
        index: (N,), in routing the request's row or number.
        arrival_s: (N,), its arrival, s.
        now_s: (N,), time of the decision, s.
        taken: (N,), action that was carried out, or UNKNOWN.
        answered: (N,), action that the policy answered.
        fallback: (N,), action of the fallback rule, or UNKNOWN.
        propensity: (N,), probability with which `taken` was taken; NaN: unknown.
        skipped: Lines that are no decision about a request, by reason.
        cut_off: Whether the last line has no end, as of a process that was killed.
    """

    policies: tuple[str, ...]
    states: list[Any]
    episode: NDArray[np.int64]
    seed: NDArray[np.int64]
    index: NDArray[np.int64]
    arrival_s: NDArray[np.float64]
    now_s: NDArray[np.float64]
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


class Coder:
    """Numbers of actions, so that they can be compared.

    Args:
        served: The environment.
    """

    def __init__(self, served: ServedEnvironment) -> None:
        self.served = served
        self.num_rows = int(served.env.config.num_rows) if served.name == "routing" else None
        self._known: dict[str, int] = {}

    def code(self, value: Any, is_known: bool = True) -> int:
        """The number of an action in the wire form, or UNKNOWN.

        Args:
            value: The action.
            is_known: Whether null is an action: leave all as it is.
        """
        if self.num_rows is not None:
            return routed(value, self.num_rows)
        if value is None and not is_known:
            return UNKNOWN
        return self._known.setdefault(json.dumps(value, sort_keys=True), len(self._known))


@dataclass(frozen=True)
class Assignment:
    """How a serving process decided whose choice is followed.

    Attributes:
        mode: live, shadow or canary; empty: not known.
        share: Share of its own choices in canary mode.
    """

    mode: str = ""
    share: float = 0.0

    def propensity(self, line: dict[str, Any]) -> float:
        """Probability of the decision that was taken, given what policy and front end chose; NaN: not known."""
        told = line.get("propensity")
        if "by" not in line:  # of a recorded run, which tells that of the decision taken
            return np.nan if told is None else float(told)
        applied, chosen = bool(line.get("applied")), line.get("chosen")
        answer = line["action"] if line["by"] == "policy" else line.get("fallback")
        if self.mode == "canary":
            if chosen is None and not applied:
                return np.nan
            if chosen is not None and agrees(answer, chosen):
                return 1.0
            return self.share if applied else 1.0 - self.share
        if self.mode == "shadow":
            return 1.0
        if told is not None and applied and line["by"] == "policy":
            return float(told)
        return 1.0 if self.mode == "live" else np.nan


def read_log(
    file: Path, coder: Coder, most: int, assignment: Assignment | None = None, newest: bool = False
) -> Log:
    """Reads a log, with the older files of a rotated one before it.

    Args:
        file: The log.
        coder: Numbers of actions.
        most: Decisions to read.
        assignment: How a serving process decided whose choice is followed; None: not known.
        newest: Whether to read the last decisions, not the first.

    Raises:
        ValueError: A line is not of this form, or no line is a decision.
    """
    served, assignment = coder.served, assignment or Assignment()
    states: list[Any] = []
    columns: dict[str, list[Any]] = {
        name: [] for name in ("seed", "taken", "answered", "fallback", "propensity")
    }
    policies: dict[str, None] = {}
    skipped: dict[str, int] = {}
    cut_off = False
    lines: Any = _lines(file)
    for path, number, line in deque(lines, maxlen=most) if newest else lines:
        if len(states) == most:
            break
        if not line.endswith("\n"):
            cut_off = True
            continue
        values = _object(path, number, line, served.name)
        if reason := _why_not(values, served.name):
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        try:
            state = served.wire.read_state(values["state"])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}; is it another cluster's log?") from None
        states.append(state)
        policies[str(values.get("policy", ""))] = None
        for name, code in _codes(values, coder).items():
            columns[name].append(code)
        columns["seed"].append(values.get("seed", UNKNOWN))
        columns["propensity"].append(assignment.propensity(values))
    if not states:
        raise ValueError(f"{file} has no decision of env={served.name}")
    states, columns = _last_of_each_seed(states, columns)
    seed, now_s = np.array(columns["seed"], np.int64), np.array([state.now_s for state in states], np.float64)
    requests = [state.request for state in states] if served.name == "routing" else []
    return Log(
        policies=tuple(policies),
        states=states,
        episode=np.cumsum(np.r_[False, (np.diff(seed) != 0) | (np.diff(now_s) < 0)]),
        seed=seed,
        index=np.array([request.index for request in requests], np.int64),
        arrival_s=np.array([request.arrival_s for request in requests], np.float64),
        now_s=now_s,
        taken=np.array(columns["taken"], np.int64),
        answered=np.array(columns["answered"], np.int64),
        fallback=np.array(columns["fallback"], np.int64),
        propensity=np.array(columns["propensity"], np.float64),
        skipped=skipped,
        cut_off=cut_off,
    )


def _codes(values: dict[str, Any], coder: Coder) -> dict[str, int]:
    """Numbers of the actions of a line."""
    by = values.get("by")
    answered = coder.code(values["action"], is_known=by in (None, "policy"))
    fallback = coder.code(values.get("fallback"), is_known=False)
    taken = coder.code(values.get("taken"), is_known=False) if "taken" in values else answered
    return {"taken": taken, "answered": answered, "fallback": fallback}


def _last_of_each_seed(
    states: list[Any], columns: dict[str, list[Any]]
) -> tuple[list[Any], dict[str, list[Any]]]:
    """Without episodes that were broken off: a run that went on has them again, whole."""
    last = dict[Any, int]()  # where the last episode of a seed begins
    for row, (seed, state) in enumerate(zip(columns["seed"], states, strict=True)):
        if row == 0 or seed != columns["seed"][row - 1] or state.now_s < states[row - 1].now_s:
            last[seed] = row
    kept = [row for row, seed in enumerate(columns["seed"]) if seed == UNKNOWN or row >= last[seed]]
    return [states[row] for row in kept], {
        name: [column[row] for row in kept] for name, column in columns.items()
    }


def routed(value: Any, num_rows: int) -> int:
    """The action of routing's action space that a logged one stands for, or UNKNOWN.

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


def _lines(file: Path) -> Iterator[tuple[Path, int, str]]:
    """Lines of a log with their numbers; the oldest file of a rotated log comes first."""
    older = [file.with_name(f"{file.name}.{number}") for number in range(_MOST_ROTATED, 0, -1)]
    for path in [*(each for each in older if each.is_file()), file]:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield path, number, line


def _object(file: Path, number: int, line: str, env: str) -> dict[str, Any]:
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
    if values["env"] != env:
        raise ValueError(f"{file}, line {number} is of env={values['env']}, not env={env}")
    return values


def _why_not(values: dict[str, Any], env: str) -> str:
    """Why a line is no decision; empty if it is one."""
    state = values["state"]
    if not isinstance(state, dict):
        return "no state"
    return "no request" if env == "routing" and state.get("request") is None else ""
