"""What policies gain in simulation and on live servers, from the `gap.json` of `runners.evaluate backend=both`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau, t

from serving_gym.calibration.lookup import nearest

CONFIDENCE = 0.95
WHAT = (
    "Gain in the return over {against} on the same arrivals, per cent of its cost, with a {level:.0f} % interval of "
    "its mean over episodes (Student); live: each repeat beside the repeat of {against} with the same seed and number. "
    "Servers, client and policy share the machine."
)


def ranking_of(folders: Sequence[Path], against: str, where: str = "") -> dict[str, Any]:
    """A table of gains, a row a policy and run, as `fidelity_page.given` prints it.

    Args:
        folders: Of the runs.
        against: Policy that gains are told against; it must be in every run.
        where: What is said of the servers.

    Raises:
        ValueError: A folder has no `gap.json` with returns, or the policy is not in it.
    """
    rows: list[list[str]] = []
    notes = []
    for folder in folders:
        found = _read(folder, against)
        gains = {
            name: {where: _gains(found["returns"], name, against, where) for where in ("simulated", "live")}
            for name in found["returns"]
        }
        means = {
            name: {where: float(np.mean(all_)) for where, all_ in both.items()}
            for name, both in gains.items()
        }
        rows += [
            [folder.name, f"`{name}`", *(_shown(gains[name][where]) for where in gains[name])]
            for name in sorted(means, key=lambda name: -means[name]["live"])
            if name != against
        ]
        notes.append(_note(folder.name, found, means))
    what = WHAT.format(against=f"`{against}`", level=100 * CONFIDENCE)
    return {
        "what": f"{what} {where}".rstrip(),
        "columns": ["run", "policy", "simulated", "live"],
        "rows": rows,
        "notes": notes,
        "source": "`runners.evaluate backend=both`, then `runners.fidelity ranking=[...]`",
    }


def _read(folder: Path, against: str) -> dict[str, Any]:
    file = folder / "gap.json"
    if not file.is_file():
        raise ValueError(
            f"ranking: {str(folder)!r} has no gap.json; give folders of runners.evaluate backend=both"
        )
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if "returns" not in found:
        raise ValueError(f"ranking: {file} has no returns; run runners.evaluate backend=both again")
    if against not in found["returns"]:
        raise ValueError(
            f"against={against!r} is not among the policies of {file}{nearest(against, found['returns'])}"
        )
    return found


def _gains(returns: Mapping[str, Any], name: str, against: str, where: str) -> list[float]:
    """Gains over the reference, per cent of its cost, episode by episode."""
    ours, theirs = (_by_seed(returns[policy][where]) for policy in (name, against))
    return [
        100.0 * (own - other) / abs(other)
        for seed in ours
        for own, other in zip(ours[seed], theirs[seed], strict=True)
    ]


def _by_seed(episodes: Sequence[Mapping[str, float]]) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for episode in episodes:
        found.setdefault(episode["seed"], []).append(episode["return"])
    return found


def _shown(gains: Sequence[float]) -> str:
    """Mean and interval."""
    mean = float(np.mean(gains))
    if len(gains) < 2:
        return f"{mean:+.1f}"
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(gains) - 1) * np.std(gains, ddof=1) / np.sqrt(len(gains)))
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def _note(name: str, found: Mapping[str, Any], means: Mapping[str, Mapping[str, float]]) -> str:
    """Agreement of the ranks, and the policy on which both worlds differ most."""
    ours, theirs = ([entry[where] for entry in means.values()] for where in ("simulated", "live"))
    tau = kendalltau(ours, theirs).statistic
    worst = max(means, key=lambda policy: abs(means[policy]["simulated"] - means[policy]["live"]))
    ranking = found["ranking"]
    return (
        f"{name}: Kendall's tau {tau:.2f} over {len(means)} policies; {ranking['clear_pairs_in_the_same_order']} of "
        f"{ranking['clear_pairs']} pairs that differ clearly live are in the same order. Farthest apart: `{worst}`, "
        f"{means[worst]['simulated']:+.1f} simulated, {means[worst]['live']:+.1f} live."
    )
