"""Seasons of the leaderboard: the seeds that its entries are run on, and the boards.

A season is a folder, `leaderboard/SEASON`, with its terms in `season.yaml` and a folder of entries a board. Its seeds
are sealed by its date: they follow from its name and from a salt that nobody knew before it opened (`first_seed_of`),
so that nothing can have been trained or chosen on them before.
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.documentation.tree import ROOT
from serving_gym.runners.ranking.strict import read_file

FOLDER = ROOT / "leaderboard"
TERMS = "season.yaml"
# Neither training nor tuning uses seeds from here on, but for those that training draws from its own split.
SEALED_FROM = 1_000_000
BLOCK = 1_000  # seeds of a season
_FIRST_BLOCK = 2_000_000  # blocks of seasons lie from here on, and below those of the benchmark
_BLOCKS = 7_000


@dataclass(frozen=True)
class Board:
    """What the entries of a board are compared in.

    Attributes:
        words: Overrides of `runners.compare` that say the environment.
        episodes: Episodes of each entry.
        reference: Heuristic that gains are counted over.
        task: Task of the benchmark whose policies `all=true` adds.
        also: Further ones.
        decision_limit_ms: Most that the 99th percentile of the decision time may be, milliseconds.
    """

    words: tuple[str, ...]
    episodes: int
    reference: str
    task: str
    also: tuple[str, ...]
    decision_limit_ms: float


@dataclass(frozen=True)
class Season:
    """A season.

    Attributes:
        name: Name of its folder.
        opens: First day on which entries are added.
        closes: Last such day; entries stay afterwards.
        salt: What nobody knew before it opened: the hash of the last commit on `main` by then.
        first_seed: Seed of the first episode; the others follow it.
        split: Split of the workloads.
        boards: The boards by name.
    """

    name: str
    opens: datetime.date
    closes: datetime.date
    salt: str
    first_seed: int
    split: str
    boards: dict[str, Board]

    def __post_init__(self) -> None:
        if self.first_seed != first_seed_of(self.name, self.salt):
            raise ValueError(
                f"first_seed must be {first_seed_of(self.name, self.salt)} by the rule of season {self.name} and its "
                f"salt, got {self.first_seed}"
            )
        if self.closes < self.opens:
            raise ValueError(f"closes must not be before opens, got {self.closes} before {self.opens}")

    def board(self, name: str) -> Board:
        """A board by name.

        Raises:
            ValueError: There is none.
        """
        check_choice("board", name, self.boards)
        return self.boards[name]


def first_seed_of(name: str, salt: str) -> int:
    """First seed of a season: its block of a thousand from 2,000,000 on, drawn by SHA-256 of its name and its salt."""
    drawn = int(hashlib.sha256(f"{name} {salt}".encode()).hexdigest()[:8], 16)
    return _FIRST_BLOCK + BLOCK * (drawn % _BLOCKS)


def season_names(folder: Path) -> list[str]:
    """All seasons, the oldest first.

    Args:
        folder: The leaderboard.

    Raises:
        ValueError: There is none.
    """
    names = sorted(path.parent.name for path in folder.glob(f"*/{TERMS}"))
    if not names:
        raise ValueError(
            f"no season in {str(folder)!r}: run this in a clone of the repository, or say folder=DIR"
        )
    return names


def load_season(name: str, folder: Path) -> Season:
    """A season by name.

    Args:
        name: Of its folder.
        folder: The leaderboard.

    Raises:
        ValueError: There is none, or its terms are invalid.
    """
    check_choice("season", name, season_names(folder))
    return read_file(Season, folder / name / TERMS, name=name)


def open_season(folder: Path, day: datetime.date) -> Season:
    """The season that is open on a day.

    Raises:
        ValueError: None is; names the last.
    """
    seasons = [load_season(name, folder) for name in season_names(folder)]
    for season in reversed(seasons):
        if season.opens <= day <= season.closes:
            return season
    last = seasons[-1]
    raise ValueError(
        f"no season is open on {day}: {last.name}, the last, is from {last.opens} to {last.closes}"
    )
