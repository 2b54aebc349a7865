"""Records of the episodes of a run while it goes on, and how a run that was interrupted goes on.

In the run directory, until the run is complete:

    run.json            configuration of the run
    decisions.jsonl     one line per decision, written as it is taken
    requests.jsonl      on live servers: one line per request of the present episode, written as it ends
    parts/N.json        metrics of episode N, written as it ends
    parts/N.parquet     its requests

A run that ends early leaves them, with `requests.parquet` and `episodes.parquet` of what there is. The same command
with the same `out` then runs only the episodes that are not in `parts`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from serving_gym.envs.interface.metrics import (
    NO_REASON,
    OUTCOME_NAMES,
    REASON_NAMES,
    RequestRecords,
    to_jsonable,
)
from serving_gym.runners.reporting.line_writer import LineWriter, read_lines
from serving_gym.runners.reporting.output import write_parquet, write_text
from serving_gym.runners.rollouts.rollout import Episode, run_episode

if TYPE_CHECKING:
    from serving_gym.baselines.policy import Policy

RUN, DECISIONS, REQUESTS, PARTS = "run.json", "decisions.jsonl", "requests.jsonl", "parts"
_MAY_DIFFER = ("tracker", "backend.endpoints", "backend.python")  # between a run and its continuation
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Key:
    """Which episode of a run.

    Attributes:
        policy: Name of the policy.
        seed: Seed.
        body: "simulator" or "vllm".
        repeat: Number of the repeat, from 0.
    """

    policy: str
    seed: int
    body: str
    repeat: int = 0

    @property
    def mark(self) -> dict[str, int]:
        """What is added to its rows to tell it from other repeats."""
        return {"repeat": self.repeat} if self.repeat else {}


class RunRecords:
    """Records of a run. A context manager; leaving it with an error says what was kept and how to go on.

    Args:
        out: Run directory.
        config: The command's configuration, as plain values.
        planned: Number of episodes.
        body: "simulator" or "vllm": where the decisions of `decisions.jsonl` are taken.

    Raises:
        ValueError: `out` has an unfinished run of another configuration.
    """

    def __init__(self, out: Path, config: Mapping[str, Any], planned: int, body: str) -> None:
        self.out, self.planned, self.body = out, planned, body
        self._config = json.loads(json.dumps(to_jsonable(dict(config)), default=str))
        self._done: dict[Key, Episode] = {}
        self._failed = False  # whether a file could not be written
        self._decisions: LineWriter | None = None
        self._requests: LineWriter | None = None
        self._healths: dict[Key, dict[str, Any]] = {}  # `ClientHealth` of episodes on live servers
        self._begun = False
        self._part = 0  # number of the next part
        self._resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_decisions()
        if error is not None and self._begun:
            self._keep()

    def run(self, key: Key, env: Any, policy: Policy) -> Episode:
        """Runs an episode, unless it has been run before this run was interrupted, and keeps it.

        Args:
            key: Which.
            env: The environment.
            policy: The policy.
        """
        if key not in self._done:
            sink = self._begin(key, env.unwrapped) if key.body == "vllm" else None
            episode = run_episode(env, policy, key.seed, key.policy, sink)
            if sink is not None:
                self._healths[key] = dataclasses.asdict(env.unwrapped.client_health())
            self._end(key, episode)
        return self._done[key]

    def _begin(self, key: Key, core: Any) -> Callable[[dict[str, Any]], None]:
        """Begins an episode on live servers; returns what is to be called with each decision."""
        self._open()
        if self._requests is not None:
            self._requests.close()
        own = {"policy": key.policy, "seed": key.seed, **key.mark}
        requests = self._requests = LineWriter(self.out / REQUESTS, self._on_failure)
        core.record_requests(lambda row: requests.write(own | row))
        decisions = self._decisions
        assert decisions is not None
        return lambda row: decisions.write(row | key.mark)

    def _end(self, key: Key, episode: Episode) -> None:
        """Keeps an episode that has ended."""
        self._open()
        if key.body == self.body == "simulator" and self._decisions is not None:
            for row in episode.decisions:
                self._decisions.write(row)
        name, self._part = str(self._part), self._part + 1
        self._done[key] = episode
        about = {"key": vars(key), "metrics": episode.metrics, "duration_s": episode.duration_s}
        about |= {"us_per_decision": episode.us_per_decision, "health": self._healths.get(key)}
        try:
            write_parquet(self.out / PARTS / f"{name}.parquet", episode.records.to_frame())
            write_text(
                self.out / PARTS / f"{name}.json", json.dumps(about)
            )  # NaN and infinity as Python writes them
        except OSError as error:
            self._on_failure(error)

    @property
    def done(self) -> int:
        """Number of episodes that are kept."""
        return len(self._done)

    def healths(self, policy: str) -> list[dict[str, Any]]:
        """`ClientHealth` of a policy's episodes on live servers, as plain values."""
        return [health for key, health in self._healths.items() if key.policy == policy]

    def close_decisions(self) -> bool:
        """Ends the files of lines; returns whether `decisions.jsonl` has every decision of the run."""
        writers = [writer for writer in (self._decisions, self._requests) if writer is not None]
        self._decisions = self._requests = None
        whole = [writer.close() for writer in writers]
        return all(whole) and bool(whole)

    def complete(self) -> None:
        """Removes what was for the time of the run, since the result files are written."""
        self.close_decisions()
        shutil.rmtree(self.out / PARTS, ignore_errors=True)
        for name in (REQUESTS, RUN):
            (self.out / name).unlink(missing_ok=True)
        self._begun = False

    # -- a run that goes on --------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        path = self.out / RUN
        if not path.is_file():
            return
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return  # it was killed as it began
        self._check(before)
        decisions = _by_key(read_lines(self.out / DECISIONS))
        for about in sorted((self.out / PARTS).glob("*.json"), key=lambda part: int(part.stem)):
            said = json.loads(about.read_text(encoding="utf-8"))
            key, health = Key(**said.pop("key")), said.pop("health")
            if health is not None:
                self._healths[key] = health
            own = decisions.get((key.policy, key.seed, key.repeat), []) if key.body == self.body else []
            records = records_of(pd.read_parquet(about.with_suffix(".parquet")))
            self._done[key] = Episode(
                policy=key.policy, seed=key.seed, decisions=own, records=records, **said
            )
            self._part = int(about.stem) + 1
        if self._done:
            print(
                f"{self.out} goes on: {len(self._done)} of {self.planned} episodes are there", file=sys.stderr
            )

    def _check(self, before: Mapping[str, Any]) -> None:
        """Raises ValueError if an unfinished run has another configuration."""
        then, now = (dict(_leaves(each)) for each in (before, self._config))
        for name in dict.fromkeys([*then, *now]):
            same = json.dumps(then.get(name)) == json.dumps(now.get(name))
            if not same and not name.startswith(_MAY_DIFFER):
                raise ValueError(
                    f"out={self.out} has an unfinished run with {name}={then.get(name)}, and {name}={now.get(name)} is "
                    f"given: give the same words to go on, or another out, or remove {self.out / RUN}"
                )

    def _open(self) -> None:
        """Writes down what the run is, and begins its decisions; those of finished episodes come first."""
        if self._begun:
            return
        self._begun = True
        try:
            write_text(self.out / RUN, json.dumps(self._config, indent=1))
            if not self._done:
                shutil.rmtree(self.out / PARTS, ignore_errors=True)
        except OSError as error:
            self._on_failure(error)
        self._decisions = LineWriter(self.out / DECISIONS, self._on_failure)
        for key, episode in self._done.items():
            for row in episode.decisions:
                self._decisions.write(row | key.mark)

    # -- a run that ends early -----------------------------------------------------------------------------------------

    def _on_failure(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            _log.warning(
                "cannot write to %s (%s): the run goes on, and what it records is in memory only",
                self.out,
                error.strerror or error,
            )

    def _keep(self) -> None:
        """Joins what there is, and says so in one line."""
        begun = read_lines(self.out / REQUESTS)
        known = {(key.policy, key.seed, key.repeat) for key in self._done if key.body == "vllm"}
        begun = [row for row in begun if (row["policy"], row["seed"], row.get("repeat", 0)) not in known]
        with contextlib.suppress(OSError):
            frames = [
                episode.records.to_frame().assign(policy=key.policy, seed=key.seed, **key.mark)
                for key, episode in self._done.items()
                if key.body == self.body
            ]
            if begun:
                frames.append(pd.DataFrame(begun))
            if frames:
                write_parquet(self.out / "requests.parquet", pd.concat(frames, ignore_index=True))
            if self._done:
                rows = [episode.row() for episode in self._done.values()]
                write_parquet(self.out / "episodes.parquet", pd.DataFrame(rows))
        rest = f", and {len(begun)} requests of one more" if begun else ""
        print(
            f"kept: {len(self._done)} of {self.planned} episodes{rest}, in {self.out}; the same command with "
            f"out={self.out} runs the {self.planned - len(self._done)} that are left",
            file=sys.stderr,
        )


def records_of(frame: pd.DataFrame) -> RequestRecords:
    """The inverse of `RequestRecords.to_frame`."""
    known = {entry.name for entry in fields(RequestRecords)}
    columns: dict[str, Any] = {name: frame[name].to_numpy() for name in frame.columns if name in known}
    columns["outcome"] = np.array([OUTCOME_NAMES.index(name) for name in frame["outcome"]], np.int8)
    known_reason = frame["reason"].isin(REASON_NAMES)
    codes = [
        REASON_NAMES.index(name) if known else NO_REASON
        for name, known in zip(frame["reason"], known_reason, strict=True)
    ]
    columns["reason"] = np.array(codes, np.int8)
    if "send_lag_s" in columns:  # of live servers
        columns["error"] = frame["reason"].where(~known_reason, "").to_numpy(object)
    return RequestRecords(**columns)


def _by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Decisions of each episode on live servers."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row.get("policy"), row.get("seed"), row.pop("repeat", 0)), []).append(row)
    return found


def _leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Dotted names and values of a nested mapping."""
    if isinstance(value, Mapping) and value:
        return [
            leaf
            for key, each in value.items()
            for leaf in _leaves(each, f"{name}.{key}" if name else str(key))
        ]
    return [(name, value)]
