"""Figures of comparisons that pages show: kept in docs/results, one file an environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_gym.envs.registration import ENVS
from serving_gym.runners.documentation import templates
from serving_gym.runners.documentation.markdown import block, code, table
from serving_gym.runners.documentation.templates import INFINITE
from serving_gym.runners.documentation.tree import ROOT

FOLDER = ROOT / "docs/results"
# Metrics that are kept, and what their columns are called.
COLUMNS = {
    "return": "return",
    "slo_attainment": "SLO attainment",
    "ttft_p99_s": "P99 TTFT, s",
    "tpot_p50_s": "median TPOT, s",
}


@dataclass(frozen=True)
class Results:
    """A comparison of policies in the default task of an environment.

    Attributes:
        env_id: Gymnasium id of the environment, with the version that was compared in.
        command: What made it.
        started: When, in ISO format.
        versions: Of the packages that made it.
        workload: Its workload.
        split: Split of the episodes.
        seeds: Test episodes of each policy.
        policies: Metrics by policy: interquartile mean and 95 % interval; None where it is infinite.
        clairvoyant: Policies among them that see the future.
        gains: Paired relative improvement of the best policy that does not, over every other: interquartile mean and
            95 % interval.
        regenerated: Whether a run of this version made it.
    """

    env_id: str
    command: str
    started: str
    versions: dict[str, str]
    workload: str
    split: str
    seeds: int
    policies: dict[str, dict[str, dict[str, Any]]]
    clairvoyant: tuple[str, ...]
    gains: dict[str, dict[str, Any]]
    regenerated: bool = True

    @classmethod
    def of(cls, name: str, folder: Path = FOLDER) -> Results:
        """The results kept of an environment.

        Args:
            name: The environment, as in `env=NAME`.
            folder: Where they are kept.
        """
        values = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        return cls(**{**values, "clairvoyant": tuple(values["clairvoyant"])})

    def ranked(self) -> list[str]:
        """Policies by their return, the best last."""
        return sorted(self.policies, key=lambda name: self.policies[name]["return"]["iqm"])

    def best(self) -> str:
        """The policy with the highest return of those that do not see the future."""
        return next(name for name in reversed(self.ranked()) if name not in self.clairvoyant)

    def gain_over(self, other: str) -> str:
        """Gain of the best policy over another one, per cent, with its interval."""
        gain = self.gains[other]
        low, high = (100 * bound for bound in gain["ci95"])
        return f"{100 * gain['iqm']:+.1f} % [{low:.1f}, {high:.1f}]"

    def as_table(self) -> str:
        """A row a policy, the best last."""
        rows = [
            [code(name) + (", clairvoyant" if name in self.clairvoyant else "")]
            + [shown(self.policies[name][metric], interval=metric == "return") for metric in COLUMNS]
            for name in self.ranked()
        ]
        return table(["policy", *COLUMNS.values()], rows)

    def as_text(self) -> str:
        """The table with its command and its terms."""
        rows, terms = (
            self.as_table(),
            f"Interquartile means over {self.seeds} test episodes with the same arrivals",
        )
        if "[" in rows:
            terms += ", the return with its 95 % interval"
        if INFINITE in rows:
            terms += f". {INFINITE}: so many requests were refused, lost or left unfinished"
        return "\n\n".join([block(self.command), rows, f"{terms}."])


def shown(value: dict[str, Any], interval: bool) -> str:
    """A metric with three digits.

    Args:
        value: `iqm` and `ci95`.
        interval: Whether to show the interval.
    """
    return templates.shown(value, "ci 3" if interval else "3")


def stale() -> list[str]:
    """Environments whose results are missing or of another version."""
    return [
        name
        for name, entry in ENVS.items()
        if entry.package
        and (not (FOLDER / f"{name}.json").is_file() or Results.of(name).env_id != entry.env_id)
    ]
