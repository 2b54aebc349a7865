"""Adds entries: runs policies on the seeds of the season and writes their files."""

from __future__ import annotations

import datetime
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from serving_gym.runners.benchmark.benchmark import load_task
from serving_gym.runners.configuration.policies import is_checkpoint
from serving_gym.runners.ranking.entry import (
    FORMAT,
    LEARNED,
    PROGRAM,
    Entry,
    EnvironmentStatement,
    PolicyStatement,
    Seeds,
    Training,
    read_entry,
    write_entry,
)
from serving_gym.runners.ranking.identity import UNTRAINED, Subject, files_of, named, program
from serving_gym.runners.ranking.measuring import World, machine, measure, present_versions, world_of
from serving_gym.runners.ranking.season import Season
from serving_gym.runners.ranking.validation import check_limit, check_training, validate

LARGEST_BYTES = 10_000_000  # of a program or checkpoint beside its entry


@dataclass(frozen=True)
class Given:
    """What a person says of an entry.

    Attributes:
        by: Who adds it.
        policy: Name of a policy of this project, or a checkpoint; None: `program` is given.
        program: `FILE.py:Class`; None: `policy` is given.
        params: Arguments of a program's class.
        name: Name in tables and of the file; None: the policy's own.
        training: What it was trained on; None: what its files say.
    """

    by: str
    policy: str | None = None
    program: str | None = None
    params: dict[str, object] | None = None
    name: str | None = None
    training: Training | None = None

    def __post_init__(self) -> None:
        if (self.policy is None) == (self.program is None):
            raise ValueError(
                "give policy=NAME or program=FILE.py:Class, as program=./mine.py:MyPolicy, and not both"
            )
        if self.params and self.program is None:
            raise ValueError(
                "params are arguments of a program's class: give them with program=FILE.py:Class"
            )


class Adder:
    """Adds entries to a board.

    Args:
        folder: The leaderboard.
        season: The season that is open.
        name: Name of the board.
        day: Today.
    """

    def __init__(self, folder: Path, season: Season, name: str, day: datetime.date) -> None:
        self.board = season.board(name)
        self._folder, self._season, self._name, self._day = folder, season, name, day
        self._world: World | None = None

    def add(self, given: Given, on_episode: Callable[[float], object] = lambda value: None) -> Path:
        """Adds an entry; returns its file.

        Args:
            given: What a person says of it.
            on_episode: Called with each return.

        Raises:
            ValueError: There is no such policy, it breaks a rule, or another entry has its name.
        """
        subject = self._subject(given)
        path = self._path(given.name or subject.statement.name)
        _check_free(path, given, subject)
        beside = files_of(subject, given.policy or given.program or "")
        _check_size(beside)
        training = _training(given, subject)
        check_training(training)
        first, count = self._season.first_seed, self.board.episodes
        measured = measure(self._board_world(), subject, range(first, first + count), on_episode)
        check_limit(
            "figures.decision_ms_p99", measured.figures.decision_ms_p99, self.board, "was measured with"
        )
        entry = Entry(
            format=FORMAT,
            season=self._season.name,
            board=self._name,
            by=given.by,
            added=self._day,
            policy=_beside(subject.statement, given.name, path) if beside else subject.statement,
            environment=EnvironmentStatement(self._board_world().id, self.board.words),
            seeds=Seeds(first, count, self._season.split),
            training=training,
            figures=measured.figures,
            returns=measured.returns,
            versions=present_versions(),
            machine=machine(),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        if beside is not None:
            _copy(beside, path.parent / entry.policy.at.partition(":")[0])
        write_entry(path, entry)
        return path

    def holds(self, policy: str) -> bool:
        """Whether there is an entry of a policy of this project that holds, as far as it can be told without a run.

        Args:
            policy: Name of the policy.
        """
        path = self._path(policy)
        try:
            validate(read_entry(path), path, self._folder, run=False)
        except ValueError:
            return False
        return True

    def policies(self) -> tuple[str, ...]:
        """Policies of this project on the board, of its task and further ones; reference and checkpoints first."""
        named = (*load_task(self.board.task).policies, *self.board.also)
        learned = (name for name in named if is_checkpoint(name))
        return tuple(dict.fromkeys((self.board.reference, *learned, *named)))

    def _path(self, name: str) -> Path:
        stem = re.sub(r"\W+", "_", name).strip("_")
        return self._folder / self._season.name / self._name / f"{stem}.yaml"

    def _subject(self, given: Given) -> Subject:
        env = self._board_world().name
        if given.program is not None:
            return program(given.program, env, given.params or {}, Path())
        return named(given.policy or "", env)

    def _board_world(self) -> World:
        """The board's environment, made when it is first needed."""
        if self._world is None:
            self._world = world_of(self._season, self.board)
        return self._world


def _check_free(path: Path, given: Given, subject: Subject) -> None:
    """Raises ValueError where the file is of somebody else's entry."""
    if not path.is_file():
        return
    held = read_entry(path)
    own = (given.name or subject.statement.name, subject.statement.kind, given.by)
    if (held.policy.name, held.policy.kind, held.by) != own:
        raise ValueError(f"{path} is an entry of {held.policy.name!r} by {held.by}: choose another name=NAME")


def _check_size(beside: Path | None) -> None:
    size = sum(file.stat().st_size for file in _inside(beside))
    if size > LARGEST_BYTES:
        raise ValueError(f"{beside} has {size:,} bytes; at most {LARGEST_BYTES:,} lie beside an entry")


def _inside(path: Path | None) -> Iterator[Path]:
    """The files of a file or folder."""
    if path is not None:
        yield from [path] if path.is_file() else (file for file in sorted(path.iterdir()) if file.is_file())


def _training(given: Given, subject: Subject) -> Training:
    """What a policy was trained on, by its files or by the person."""
    if subject.training is not None:
        if given.training is not None:
            raise ValueError(
                "the files of this policy say what it was trained on: leave splits and the like out"
            )
        return subject.training
    if given.training is None and subject.statement.kind == LEARNED:
        raise ValueError("say what it was trained on: splits=[train] seeds_below=N budget=... command=...")
    return given.training or UNTRAINED


def _beside(statement: PolicyStatement, name: str | None, path: Path) -> PolicyStatement:
    """The statement of a policy whose files will lie beside its entry, under the entry's name."""
    at = statement.at
    if statement.kind == PROGRAM:
        at = f"{path.stem}.py:{at.rpartition(':')[2]}"
    elif statement.kind == LEARNED:
        at = f"{path.stem}{Path(at).suffix if at.endswith('.zip') else ''}"
    return replace(statement, name=name or statement.name, at=at)


def _copy(source: Path, target: Path) -> None:
    """Copies a file, or the files of a folder, without those in further folders."""
    if target.exists() and source.resolve() == target.resolve():
        return
    if source.is_file():
        shutil.copyfile(source, target)
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for file in _inside(source):
        shutil.copyfile(file, target / file.name)
