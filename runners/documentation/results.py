"""Figures of comparisons that pages show: kept in docs/results, one file an environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_gym.envs.registration import ENVS, env_id
from serving_gym.runners.documentation.markdown import block, code, table
from serving_gym.runners.documentation.tree import ROOT

INFINITE = "∞"
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
        command: The words that made it.
        workload: Its workload.
        seeds: Test episodes of each policy.
        policies: Metrics by policy: interquartile mean and 95 % interval; None where it is infinite.
        clairvoyant: Policies among them that see the future.
        gains: Paired relative improvement of the best policy that does not, over every other: interquartile mean and
            95 % interval.
    """

    env_id: str
    command: str
    workload: str
    seeds: int
    policies: dict[str, dict[str, dict[str, Any]]]
    clairvoyant: tuple[str, ...]
    gains: dict[str, dict[str, Any]]

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
    text = _digits(value["iqm"])
    if interval and value["ci95"] is not None:
        text += f" [{', '.join(map(_digits, value['ci95']))}]"
    return text


def keep(comparison: Path, folder: Path = FOLDER) -> Path:
    """Keeps what pages show of a comparison of default tasks; returns the file.

    Args:
        comparison: `comparison.json` of `runners.compare env=NAME seeds=N policies=[...]`.
        folder: Where to keep it.

    Raises:
        ValueError: The comparison is not one of `ENVS`' environments on the test split.
    """
    values = json.loads(comparison.read_text(encoding="utf-8"))
    name = values["env"]
    if values["split"] != "test" or values["backend"] != "simulator":
        raise ValueError(
            f"{comparison}: results of split=test on the simulator are kept, "
            f"got split={values['split']} backend={values['backend']}"
        )
    policies = list(values["policies"])
    behind = (values.get("regret") or {}).get(
        "clairvoyant_policies"
    ) or policies  # those that do not see the future
    best = max(behind, key=lambda policy: values["policies"][policy]["metrics"]["return"]["iqm"])
    kept = {
        "env_id": env_id(name),
        "command": f"python -m runners.compare env={name} seeds={values['seeds']} "
        f"'policies=[{','.join(policies)}]'",
        "workload": values["workload"],
        "seeds": values["seeds"],
        "policies": {
            policy: {metric: _rounded(values["policies"][policy]["metrics"][metric]) for metric in COLUMNS}
            for policy in policies
        },
        "clairvoyant": [policy for policy in policies if policy not in behind],
        "gains": {
            policy: _rounded(values["relative_improvement"][f"{best}>{policy}"])
            for policy in policies
            if policy != best
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return path


def stale() -> list[str]:
    """Environments whose results are missing or of another version."""
    return [
        name
        for name, entry in ENVS.items()
        if entry.package
        and (not (FOLDER / f"{name}.json").is_file() or Results.of(name).env_id != entry.env_id)
    ]


def _rounded(value: dict[str, Any]) -> dict[str, Any]:
    """Interquartile mean and interval with six digits."""
    interval = value.get("ci95")
    return {
        "iqm": _six(value["iqm"]),
        "ci95": None if interval is None else [_six(bound) for bound in interval],
    }


def _six(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _digits(value: float | None) -> str:
    return INFINITE if value is None else f"{float(f'{value:.3g}'):,.10g}"
