"""What a run directory holds, read for a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from serving_gym.runners.reporting.figure_style import Look, looks_of
from serving_gym.runners.reporting.provenance import PROVENANCE_FILE

EVALUATE, COMPARE, TRAIN, SIMULATE, REPLAY, MONITOR = (
    "evaluate",
    "compare",
    "train",
    "simulate",
    "replay",
    "monitor",
)
_MOST_DECISIONS = 200_000


class RunFolder:
    """A run directory; files are read when they are asked for.

    Args:
        path: The directory.

    Attributes:
        path: The directory.
        missing: What a report would show if a file were there, in sentences.

    Raises:
        ValueError: It is no directory, or holds no result of a known command.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ValueError(f"run={path} is not a directory")
        self.path, self.missing = path, list[str]()
        self.kind = self._kind()

    def _kind(self) -> str:
        if (self.path / "replay.json").is_file():
            return REPLAY
        if self.comparison:
            return TRAIN if "training" in self.comparison else COMPARE
        if "policy" in self.summary:
            return EVALUATE
        if "router" in self.summary:
            return SIMULATE
        if "rounds" in self.summary:
            return MONITOR
        raise ValueError(
            f"run={self.path} has no summary.json, comparison.json or replay.json of evaluate, compare, train, "
            "simulate, replay or monitor"
        )

    def note_missing(self, sentence: str) -> None:
        """Notes what is missing, once."""
        if sentence not in self.missing:
            self.missing.append(sentence)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`; empty without one."""
        return self._json("summary.json")

    @cached_property
    def comparison(self) -> dict[str, Any]:
        """`comparison.json`; empty without one."""
        return self._json("comparison.json")

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each policy of the run is drawn, the same in all figures: as in the run's own figures."""
        names = list(self.comparison.get("policies", {}))
        names += [self.summary[key] for key in ("policy", "router") if key in self.summary]
        if self.requests is not None and "policy" in self.requests:
            names += map(str, self.requests["policy"].unique())
        learned = self.comparison.get("learned", [])
        return looks_of(names, learned[0] if len(learned) == 1 else None)

    @cached_property
    def replay(self) -> dict[str, Any]:
        """`replay.json`; empty without one."""
        return self._json("replay.json")

    @cached_property
    def gap(self) -> dict[str, Any]:
        """`gap.json`; empty without one."""
        return self._json("gap.json")

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """`provenance.json`: command, versions, machine; empty without one."""
        return self._json(PROVENANCE_FILE)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The composed configuration; empty without one."""
        file = self.path / ".hydra" / "config.yaml"
        values = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return values if isinstance(values, dict) else {}

    @cached_property
    def episodes(self) -> pd.DataFrame | None:
        """`episodes.parquet`."""
        return self._table("episodes.parquet")

    @cached_property
    def requests(self) -> pd.DataFrame | None:
        """`requests.parquet`."""
        return self._table("requests.parquet")

    @cached_property
    def decisions(self) -> pd.DataFrame | None:
        """Times, policies, seeds, actions and clusters of `decisions.jsonl`; None without it."""
        rows = [
            {
                "policy": str(row.get("policy", "")),
                "seed": row.get("seed", 0),
                "now_s": row.get("now_s", 0.0),
                "action": row.get("action"),
                "refused": row.get("refused", ""),
                "overrides": len(row.get("overrides") or ()),
                "cluster": row.get("cluster"),
            }
            for row in self.lines("decisions.jsonl", _MOST_DECISIONS)
        ]
        return pd.DataFrame(rows) if rows else None

    def lines(self, name: str, most: int) -> list[dict[str, Any]]:
        """Objects of a JSON Lines file, at most so many; a line that cannot be read is left out."""
        file, rows = self.path / name, list[dict[str, Any]]()
        if not file.is_file():
            return rows
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if len(rows) == most:
                    self.note_missing(f"{name}: lines after the first {most:,} are left out.")
                    break
                try:
                    row = json.loads(line)
                except ValueError:
                    self.note_missing(f"{name}: a line that is not JSON is left out.")
                    continue
                if isinstance(row, dict):
                    rows.append(row)
        return rows

    @property
    def title(self) -> str:
        """What was run, in a few words."""
        found: Mapping[str, Any] = self.comparison or self.replay or self.summary
        what = {
            EVALUATE: f"{found.get('policy')} in {found.get('env')} on {found.get('workload')}",
            COMPARE: f"{found.get('env')} on {found.get('workload')}: {len(found.get('policies', ()))} policies",
            TRAIN: f"Training in {found.get('env')} on {found.get('workload')}",
            SIMULATE: f"{found.get('workload')} by {found.get('router')}",
            REPLAY: f"Decisions of {', '.join(found.get('logged_policies', ()))}, replayed",
            MONITOR: f"{len(found.get('engines', ()))} engines, watched for {found.get('seconds', 0):.0f} s",
        }
        return what[self.kind]

    def _json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        if not file.is_file():
            return {}
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise ValueError(f"{file} is not JSON") from None
        return values if isinstance(values, dict) else {}

    def _table(self, name: str) -> pd.DataFrame | None:
        file = self.path / name
        return pd.read_parquet(file) if file.is_file() else None
