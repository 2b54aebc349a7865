"""Checks an entry: its rules, its hash, its arithmetic, and its figures by running it again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_gym.envs.registration import env_id
from serving_gym.runners.ranking.entry import LEARNED, PROGRAM, Entry, Training
from serving_gym.runners.ranking.identity import Subject, subject_of
from serving_gym.runners.ranking.measuring import (
    Measured,
    environment_of,
    measure,
    of_returns,
    present_versions,
    world_of,
)
from serving_gym.runners.ranking.season import SEALED_FROM, Board, Season, load_season

SAME = 1e-4  # largest relative difference of a figure with the same versions of all packages
OTHER = 1e-2  # with others, whose networks may round otherwise and choose otherwise
FASTER = 10.0  # times as fast as measured that a decision may be stated at most: machines differ
_TEST = ("test", "all")  # splits that no training may use


@dataclass(frozen=True)
class Check:
    """A figure that has been measured again.

    Attributes:
        figure: Its name.
        stated: In the entry.
        measured: Here.
    """

    figure: str
    stated: float
    measured: float

    @property
    def difference(self) -> float:
        """Relative to what is stated; 0: equal, infinities included."""
        if self.stated == self.measured:
            return 0.0
        scale = max(abs(self.stated), 1e-9)
        found = abs(self.measured - self.stated) / scale
        return found if math.isfinite(found) else math.inf


@dataclass(frozen=True)
class Verdict:
    """What a validation came to.

    Attributes:
        checks: Figures that were measured again; empty: nothing was run.
        notes: What a reader should know: other versions of packages.
    """

    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def largest(self) -> float:
        """Largest relative difference of a figure that does not depend on the machine."""
        return max((check.difference for check in self.checks if "decision" not in check.figure), default=0.0)


def validate(
    entry: Entry,
    path: Path,
    folder: Path,
    run: bool = True,
    on_episode: Callable[[float], object] = lambda value: None,
) -> Verdict:
    """Validates an entry.

    Args:
        entry: The entry.
        path: Its file.
        folder: The leaderboard, which has the seasons.
        run: Whether to run it again; else everything else is checked.
        on_episode: Called with each return.

    Raises:
        ValueError: It does not hold; names field, stated and found value.
    """
    season = load_season(entry.season, folder)
    board = season.board(entry.board)
    _check_place(entry, path)
    env = environment_of(season, board)
    _check_setting(entry, season, board, env_id(env))
    check_training(entry.training)
    _check_arithmetic(entry)
    check_limit("figures.decision_ms_p99", entry.figures.decision_ms_p99, board, "states")
    subject = subject_of(entry.policy, env, path.parent)
    _check_subject(entry, subject)
    notes = tuple(_version_notes(entry))
    if not run:
        return Verdict((), notes)
    world = world_of(season, board)
    first = entry.seeds.first
    measured = measure(world, subject, range(first, first + entry.seeds.episodes), on_episode)
    checks = tuple(_checks(entry, measured))
    _check_figures(checks, OTHER if notes else SAME, measured, board)
    return Verdict(checks, notes)


def _check_place(entry: Entry, path: Path) -> None:
    folder = path.resolve().parent
    for field, stated, found in (("board", entry.board, folder), ("season", entry.season, folder.parent)):
        if stated != found.name:
            raise _refusal(field, stated, f"its file is in the folder {found.name!r}")


def _check_setting(entry: Entry, season: Season, board: Board, current: str) -> None:
    """Environment, words and seeds are those of the season."""
    if not season.opens <= entry.added <= season.closes:
        raise _refusal(
            "added", entry.added, f"season {season.name} is from {season.opens} to {season.closes}"
        )
    if entry.environment.id != current:
        raise _refusal("environment.id", entry.environment.id, f"this version has {current}")
    for field, stated, found in (
        ("environment.words", entry.environment.words, board.words),
        ("seeds.first", entry.seeds.first, season.first_seed),
        ("seeds.episodes", entry.seeds.episodes, board.episodes),
        ("seeds.split", entry.seeds.split, season.split),
        ("returns", f"{len(entry.returns)} values", f"{board.episodes} values"),
    ):
        if stated != found:
            raise _refusal(field, _shown(stated), f"season {season.name} has {_shown(found)}")


def check_training(training: Training) -> None:
    """Checks that nothing was trained or chosen on what the leaderboard is run on.

    Raises:
        ValueError: It was.
    """
    for split in training.splits:
        if split in _TEST:
            raise _refusal("training.splits", split, "the test split is for reporting alone")
        if split not in ("train", "validation"):
            raise _refusal("training.splits", split, "allowed are train and validation")
    if training.seeds_below > SEALED_FROM:
        raise _refusal(
            "training.seeds_below", training.seeds_below, f"seeds from {SEALED_FROM} on are sealed"
        )


def _check_arithmetic(entry: Entry) -> None:
    """Mean and interval are those of the returns."""
    value, interval = of_returns(entry.returns)
    stated = (entry.figures.mean_return, *entry.figures.ci95)
    names = ("figures.mean_return", "figures.ci95", "figures.ci95")
    for name, one, found in zip(names, stated, (value, *interval), strict=True):
        if Check(name, one, found).difference > SAME:
            raise _refusal(name, one, f"its returns have {found}")


def check_limit(field: str, value: float, board: Board, says: str) -> None:
    """Checks the time of a decision.

    Args:
        field: Name of the figure.
        value: The 99th percentile, milliseconds.
        board: Board with its limit.
        says: What the entry does with the figure: "states".

    Raises:
        ValueError: It is beyond the limit.
    """
    if not value <= board.decision_limit_ms:
        raise ValueError(
            f"{field}: the limit is {board.decision_limit_ms:g} ms, the entry {says} {value:g} ms a decision"
        )


def _check_subject(entry: Entry, subject: Subject) -> None:
    """The policy is the one that the entry states."""
    stated, found = entry.policy, subject.statement
    for name in ("kind", "clairvoyant", "at"):
        if getattr(stated, name) != getattr(found, name):
            raise _refusal(f"policy.{name}", getattr(stated, name), f"the policy has {getattr(found, name)}")
    for key in dict.fromkeys([*stated.constants, *found.constants]):
        one, other = stated.constants.get(key), found.constants.get(key)
        if one != other:
            raise _refusal(f"policy.constants.{key}", one, f"the policy has {other} since: add it again")
    if stated.sha256 != found.sha256:
        what = (
            "the file has"
            if stated.kind == PROGRAM
            else "its files have"
            if stated.kind == LEARNED
            else "it is"
        )
        raise _refusal("policy.sha256", stated.sha256, f"{what} {found.sha256}")
    if subject.training is None:
        return
    for name in ("splits", "seeds_below", "budget", "command"):
        one, other = getattr(entry.training, name), getattr(subject.training, name)
        if one != other:
            raise _refusal(f"training.{name}", _shown(one), f"the policy's files say {_shown(other)}")


def _version_notes(entry: Entry) -> Iterator[str]:
    present = present_versions()
    for name in dict.fromkeys([*entry.versions, *present]):
        stated, found = entry.versions.get(name, "none"), present.get(name, "none")
        if stated != found:
            yield f"{name}: the entry was measured with {stated}, this is {found}"


def _checks(entry: Entry, measured: Measured) -> Iterator[Check]:
    for i, (stated, found) in enumerate(zip(entry.returns, measured.returns, strict=True)):
        yield Check(f"returns[{i}]", stated, found)
    for name in ("mean_return", "slo_attainment", "ttft_p99_s", "decision_ms_median", "decision_ms_p99"):
        yield Check(f"figures.{name}", getattr(entry.figures, name), getattr(measured.figures, name))


def _check_figures(checks: tuple[Check, ...], tolerance: float, measured: Measured, board: Board) -> None:
    for check in checks:
        if "decision" not in check.figure and not check.difference <= tolerance:
            raise ValueError(
                f"{check.figure}: stated {check.stated:.9g}, measured {check.measured:.9g} "
                f"(allowed difference {100 * tolerance:g} %)"
            )
    check_limit("figures.decision_ms_p99", measured.figures.decision_ms_p99, board, "was measured with")
    for check in checks:
        if "decision" in check.figure and not check.measured <= FASTER * check.stated:
            raise ValueError(
                f"{check.figure}: stated {check.stated:g} ms, measured {check.measured:g} ms "
                f"(allowed: {FASTER:g} times as long)"
            )


def _refusal(field: str, stated: Any, found: str) -> ValueError:
    return ValueError(f"{field}: the entry states {stated!s}, but {found}")


def _shown(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
