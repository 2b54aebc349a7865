"""Adds entries to the leaderboard, validates them by running them again, and writes its page.

    python -m runners.leaderboard add env=routing policy=jsq by="Ada Lovelace"
    python -m runners.leaderboard add env=routing program=./mine.py:MyPolicy by="Ada Lovelace"
    python -m runners.leaderboard add board=routing_overload policy=runs/x/checkpoint name=mine by="Ada Lovelace"
    python -m runners.leaderboard add board=routing all=true by=serving-gym [changed=true]
    python -m runners.leaderboard validate leaderboard/2026-12/routing/jsq.yaml [more files] [run=false]
    python -m runners.leaderboard table

``add`` runs a policy on the seeds of the open season (``leaderboard/SEASON/season.yaml``) and writes its entry. A board
has the name of its environment, or another (``board=``). ``program`` is a file with a class (``reset(spec, seed)``,
``act(observation, state)``); it and checkpoints that are not of the zoo are copied beside the entry. ``params`` are
arguments of the class (``params={weight: 0.5}``). What was trained or tuned says ``splits=[train,validation]``,
``seeds_below=N`` (of the episodes on which something was chosen), ``budget`` and ``command``; of checkpoints and of
policies of this project their files say it. ``all=true`` adds every policy of the board's benchmark task, with
``changed=true`` those alone whose entry is missing or no longer holds.

``validate`` checks rules, hashes and arithmetic, runs the entry again and compares every figure. Its last line is the
verdict; the exit status is 0 where all entries hold, 1 where one is refused. ``run=false`` leaves the run out. To
validate a program is to run it: use a container for what you do not trust.

``table`` writes docs/leaderboard.md. ``folder=DIR`` is another leaderboard than the repository's.
"""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.command_line.cli import USER_ERROR, use_one_thread
from serving_gym.runners.command_line.words import Reader, listing, mapping, parse_words, truth
from serving_gym.runners.ranking.adding import Adder, Given
from serving_gym.runners.ranking.entry import Entry, Training, read_entry
from serving_gym.runners.ranking.page import write_page
from serving_gym.runners.ranking.season import FOLDER, open_season
from serving_gym.runners.ranking.validation import Verdict, validate
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_table

REFUSED = 1
_INTERRUPTED = 130
_TRAINING: dict[str, Reader] = {"splits": listing, "seeds_below": int, "budget": str, "command": str}
_WORDS: dict[str, dict[str, Reader]] = {
    "add": {
        "env": str,
        "board": str,
        "policy": str,
        "program": str,
        "params": mapping,
        "name": str,
        "by": str,
        "all": truth,
        "changed": truth,
        "folder": str,
        **_TRAINING,
    },
    "validate": {"run": truth, "folder": str},
    "table": {"folder": str},
}


def main(arguments: Sequence[str] | None = None, today: datetime.date | None = None) -> int:
    """Runs one verb; returns the exit status.

    Args:
        arguments: Words of the command line; None: those of this process.
        today: Day on which entries are added; None: the present one.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0 if given else USER_ERROR
    use_one_thread()
    try:
        verb, *rest = given
        check_choice("verb", verb, _WORDS)
        files = [word for word in rest if "=" not in word] if verb == "validate" else []
        words = parse_words([word for word in rest if word not in files], _WORDS[verb])
        folder = Path(words.get("folder", FOLDER)).resolve()
        if verb == "add":
            _add(words, folder, today or datetime.date.today())
            return 0
        if verb == "validate":
            return _validate(files, words, folder)
        print(f"written: {write_page(folder)}")
        return 0
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("error: interrupted; entries that are written stay", file=sys.stderr)
        return _INTERRUPTED


def _add(words: Mapping[str, Any], folder: Path, today: datetime.date) -> None:
    """Adds one entry, or those of all policies of a board."""
    season = open_season(folder, today)
    name = words.get("board", words.get("env"))
    if name is None:
        raise ValueError(f"say board=NAME or env=NAME (boards: {', '.join(season.boards)})")
    if "by" not in words:
        raise ValueError('say who adds the entry, as by="Ada Lovelace"')
    adder = Adder(folder, season, str(name), today)
    if not words.get("all", False):
        given = Given(
            by=words["by"],
            policy=words.get("policy"),
            program=words.get("program"),
            params=words.get("params"),
            name=words.get("name"),
            training=_training(words),
        )
        path = _added(adder, given, words.get("policy") or words.get("program", ""))
        _say_next(path)
        return
    for own in ("policy", "program", "params", "name", *_TRAINING):
        if own in words:
            raise ValueError(f"all=true adds the policies of this project: leave {own} out")
    policies = adder.policies()
    if words.get("changed", False):
        policies = tuple(policy for policy in policies if not adder.holds(policy))
    failed = []
    for policy in policies:
        try:
            _added(adder, Given(by=words["by"], policy=policy), policy)
        except ValueError as error:  # the others are added all the same
            failed.append(policy)
            print(f"not added: {policy}: {error}", file=sys.stderr)
    print(
        f"added: {len(policies) - len(failed)} entries of board {name}; now: python -m runners.leaderboard table"
    )
    if failed:
        raise ValueError(f"{len(failed)} of {len(policies)} policies were not added: {', '.join(failed)}")


def _added(adder: Adder, given: Given, label: str) -> Path:
    with progress_bar(adder.board.episodes, label, "episode") as bar:
        path = adder.add(given, lambda value: bar.update())
    entry = read_entry(path)
    figures = entry.figures
    low, high = figures.ci95
    print(
        f"{_shown(path)}: mean return {figures.mean_return:.5g} [{low:.5g}, {high:.5g}], "
        f"{figures.decision_ms_p99:.3g} ms a decision at most in 99 of 100"
    )
    return path


def _say_next(path: Path) -> None:
    print(
        "next:\n"
        f"  python -m runners.leaderboard validate {shlex.quote(str(_shown(path)))}\n"
        "  python -m runners.leaderboard table\n"
        f"  and a pull request with {_shown(path)}, what lies beside it, and docs/leaderboard.md"
    )


def _shown(path: Path) -> Path:
    """A path from the current folder, where it is in it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _training(words: Mapping[str, Any]) -> Training | None:
    """What the words say of a training; None: nothing."""
    said = [word for word in _TRAINING if word in words]
    if not said:
        return None
    for word in _TRAINING:
        if word not in words:
            raise ValueError(f"{word} is missing: a training is stated with {', '.join(_TRAINING)}")
    return Training(
        splits=tuple(str(split) for split in words["splits"]),
        seeds_below=words["seeds_below"],
        budget=words["budget"],
        command=words["command"],
    )


def _validate(files: Sequence[str], words: Mapping[str, Any], folder: Path) -> int:
    if not files:
        raise ValueError("name the files of entries, as leaderboard/2026-12/routing/jsq.yaml")
    run = words.get("run", True)
    refused = [file for file in files if not _holds(Path(file), folder, run)]
    if len(files) > 1:
        print(f"{len(files) - len(refused)} of {len(files)} entries hold")
    return REFUSED if refused else 0


def _holds(path: Path, folder: Path, run: bool) -> bool:
    """Validates an entry and says what came of it."""
    try:
        entry = read_entry(path)
        with progress_bar(entry.seeds.episodes if run else 0, path.stem, "episode") as bar:
            verdict = validate(entry, path, folder, run, lambda value: bar.update())
    except ValueError as error:
        print(f"refused: {path}: {' '.join(str(error).split())}")
        return False
    _say(path, entry, verdict, run)
    return True


def _say(path: Path, entry: Entry, verdict: Verdict, run: bool) -> None:
    for note in verdict.notes:
        print(f"note: {note}")
    if not run:
        print(f"holds without a run: {path}: rules, hash and arithmetic of {entry.policy.name}")
        return
    rows = [[check.figure, check.stated, check.measured] for check in verdict.checks]
    print_table(f"{entry.policy.name} on {entry.board}", ("figure", "stated", "measured"), rows)
    print(
        f"holds: {path}: {entry.seeds.episodes} episodes run again, largest difference "
        f"{100.0 * verdict.largest:.2g} %"
    )


if __name__ == "__main__":
    sys.exit(main())
