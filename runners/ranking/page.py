"""docs/leaderboard.md: a table a board, from the files of the entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving_gym.runners.comparison.statistics import relative_improvement
from serving_gym.runners.documentation.markdown import block, code, table
from serving_gym.runners.ranking.entry import Entry, entries_in
from serving_gym.runners.ranking.season import Board, Season, load_season, season_names

PAGE = Path("docs/leaderboard.md")
_UP = ".."  # from the page to the root of the repository
_LEAD = """# Leaderboard

Every entry is a file that anybody can run again: `python -m runners.leaderboard validate FILE`. Rules, and how to add
a policy of your own: [leaderboard](../leaderboard/README.md). This page is written by `python -m runners.leaderboard
table`. The [benchmark](benchmark.md) has more blocks, workloads and gates; intervals here are wider."""
_COLUMNS = ("SLO attainment", "P99 TTFT, s", "P99 of a decision, ms", "by")

Entries = Mapping[Path, Entry]


def page(folder: Path) -> str:
    """The page.

    Args:
        folder: The leaderboard, in the root of a repository.
    """
    entries = dict(entries_in(folder))
    parts = [_LEAD]
    for name in reversed(season_names(folder)):
        season = load_season(name, folder)
        parts += [f"## Season {name}", _terms(season)]
        for board in season.boards:
            own = {
                path: entry for path, entry in entries.items() if (entry.season, entry.board) == (name, board)
            }
            parts += _board(board, season, own, folder)
    return "\n\n".join(parts) + "\n"


def write_page(folder: Path) -> Path:
    """Writes the page; returns its file."""
    path = folder.parent / PAGE
    path.write_text(page(folder), encoding="utf-8")
    return path


def ranked(entries: Entries) -> list[Path]:
    """Entries by their mean return, the best first; those with the same by name."""
    return sorted(entries, key=lambda path: (-entries[path].figures.mean_return, entries[path].policy.name))


def gain(ours: Entry, theirs: Entry) -> str:
    """Mean gain over another entry of the same episodes, per cent, with its 95 % interval."""
    improvement = relative_improvement(ours.returns, theirs.returns)
    low, high = (100.0 * end for end in improvement.mean_ci95)
    return f"{100.0 * improvement.mean:+.1f} % [{low:.1f}, {high:.1f}]"


def _terms(season: Season) -> str:
    return (
        f"From {season.opens} to {season.closes}; seeds from {season.first_seed:,}, {season.split} split. Gains are "
        "paired, episode by episode, in shares of the reference's interquartile mean; brackets are 95 % intervals by "
        "the bootstrap; P99 TTFT is ∞ where requests were refused or lost."
    )


def _board(name: str, season: Season, entries: Entries, folder: Path) -> list[str]:
    board = season.boards[name]
    parts = [f"### {name}", block(f"python -m runners.compare {' '.join(board.words)}")]
    if not entries:
        return [*parts, "No entry yet."]
    env_ids = ", ".join(sorted({code(entry.environment.id) for entry in entries.values()}))
    parts.append(
        f"{env_ids}, {board.episodes} episodes an entry, reference {code(board.reference)}, "
        f"at most {board.decision_limit_ms:g} ms a decision."
    )
    reference = next(
        (entry for entry in entries.values() if entry.policy.name == board.reference),
        None,
    )
    seeing = [path for path in ranked(entries) if entries[path].policy.clairvoyant]
    causal = [path for path in ranked(entries) if not entries[path].policy.clairvoyant]
    parts.append(_table(causal, entries, board, reference, folder, True))
    if seeing:
        parts += [
            "Clairvoyant, for comparison: they see the future.",
            _table(seeing, entries, board, reference, folder, False),
        ]
    return parts


def _table(
    paths: Sequence[Path], entries: Entries, board: Board, reference: Entry | None, folder: Path, ranks: bool
) -> str:
    head = ["policy", "kind", "mean return", f"gain over {code(board.reference)}", *_COLUMNS]
    if ranks:
        head = ["rank", *head]
    rows = []
    for place, path in enumerate(paths, start=1):
        entry = entries[path]
        figures = entry.figures
        link = f"{_UP}/{path.relative_to(folder.parent).as_posix()}"
        rows.append(
            [
                *([str(place)] if ranks else []),
                f"[{code(entry.policy.name)}]({link})",
                entry.policy.kind,
                f"{_digits(figures.mean_return)} [{', '.join(map(_digits, figures.ci95))}]",
                "" if reference is None or reference is entry else gain(entry, reference),
                f"{100.0 * figures.slo_attainment:.1f} %",
                _digits(figures.ttft_p99_s),
                _digits(figures.decision_ms_p99),
                entry.by,
            ]
        )
    return table(head, rows)


def _digits(value: float) -> str:
    return "∞" if math.isinf(value) else f"{float(f'{value:.3g}'):,.10g}"
