"""An entry of the leaderboard, as its file states it: `leaderboard/SEASON/BOARD/NAME.yaml`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serving_gym.agents.checkpoint import plain
from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.ranking.strict import read_file
from serving_gym.runners.reporting.output import write_text

FORMAT = 1
HEURISTIC, PUBLISHED, LEARNED, PROGRAM = KINDS = ("heuristic", "published", "learned", "program")
_HEAD = (
    "# Written by python -m runners.leaderboard add; python -m runners.leaderboard validate runs it again.\n"
)


@dataclass(frozen=True)
class PolicyStatement:
    """Which policy it is.

    Attributes:
        name: Name in tables; of a policy of this project, what `policy=` takes.
        kind: One of `KINDS`.
        clairvoyant: Whether it sees the future or true output lengths.
        at: Where it is: a file or folder of the repository, or, from its entry's folder, `FILE.py:Class` of a program
            or the folder of a checkpoint.
        sha256: Of the program's file, of the checkpoint's files without its card, or of the constants.
        constants: All constants of a heuristic, defaults included; arguments of a program.
    """

    name: str
    kind: str
    clairvoyant: bool
    at: str
    sha256: str
    constants: dict[str, Any]

    def __post_init__(self) -> None:
        check_choice("policy.kind", self.kind, KINDS)


@dataclass(frozen=True)
class Training:
    """What a policy was trained or tuned on.

    Attributes:
        splits: Splits of the workloads, those that a choice was made on included; empty: it was neither.
        seeds_below: Seeds of tuning, choosing and validation are below this; 0: there were none.
        budget: How much, in words.
        command: The command, or where it stands.
    """

    splits: tuple[str, ...]
    seeds_below: int
    budget: str
    command: str


@dataclass(frozen=True)
class EnvironmentStatement:
    """The environment.

    Attributes:
        id: Gymnasium id with its version.
        words: Overrides of `runners.compare`.
    """

    id: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Seeds:
    """The episodes.

    Attributes:
        first: Seed of the first; the others follow it.
        episodes: Their number.
        split: Split of the workloads.
    """

    first: int
    episodes: int
    split: str


@dataclass(frozen=True)
class Figures:
    """What was measured.

    Attributes:
        mean_return: Mean over the episodes.
        ci95: Its 95 % interval by the bootstrap.
        slo_attainment: Share of requests that kept their promises, mean over the episodes.
        ttft_p99_s: 99th percentile of the time to first token, seconds, interquartile mean over the episodes; infinite
            where requests were refused or lost.
        decision_ms_median: Median of the processor time of a decision, all threads, milliseconds.
        decision_ms_p99: 99th percentile of an episode's decision times, median over the episodes, milliseconds.
    """

    mean_return: float
    ci95: tuple[float, ...]
    slo_attainment: float
    ttft_p99_s: float
    decision_ms_median: float
    decision_ms_p99: float

    def __post_init__(self) -> None:
        if len(self.ci95) != 2:
            raise ValueError(f"figures.ci95 must have two ends, got {len(self.ci95)}")


@dataclass(frozen=True)
class Entry:
    """An entry.

    Attributes:
        format: Of the file.
        season: Name of the season.
        board: Name of the board.
        by: Who added it.
        added: When.
        policy: The policy.
        environment: The environment.
        seeds: The episodes.
        training: What the policy was trained on.
        figures: What was measured.
        returns: Return of each episode.
        versions: Versions of the packages that it was measured with.
        machine: The machine that it was measured on.
    """

    format: int
    season: str
    board: str
    by: str
    added: datetime.date
    policy: PolicyStatement
    environment: EnvironmentStatement
    seeds: Seeds
    training: Training
    figures: Figures
    returns: tuple[float, ...]
    versions: dict[str, str]
    machine: str

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {self.format}")
        if not self.by.strip():
            raise ValueError("by must say who adds the entry")


def read_entry(path: Path) -> Entry:
    """An entry from its file.

    Raises:
        ValueError: There is no such file, a key is missing or unknown, or a value has another type.
    """
    return read_file(Entry, path)


def write_entry(path: Path, entry: Entry) -> None:
    """Writes an entry to its file."""
    text = yaml.safe_dump(
        plain(entry), sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    write_text(path, _HEAD + text)


def entries_in(folder: Path) -> Iterator[tuple[Path, Entry]]:
    """All entries of a leaderboard with their files.

    Args:
        folder: The leaderboard.
    """
    for path in sorted(folder.glob("*/*/*.yaml")):
        yield path, read_entry(path)
