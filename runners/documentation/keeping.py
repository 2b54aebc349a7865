"""Result files for pages, made from a run: what pages show of it, its command, versions, seeds and date."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from serving_gym.envs.registration import env_id
from serving_gym.runners.documentation.results import COLUMNS, FOLDER
from serving_gym.runners.reporting.provenance import PROVENANCE_FILE

_RATIOS = ("ttft_p99_ratio", "worst_class_slowdown_ratio")


def keep(comparison: Path, name: str = "", fields: Iterable[str] = (), folder: Path = FOLDER) -> Path:
    """Keeps what pages show of a comparison or a benchmark; returns the file.

    Args:
        comparison: `comparison.json` of `runners.compare` or `runners.train`, or `benchmark.json` of
            `runners.compare benchmark=NAME`.
        name: The result file's; "": the environment's, whose page shows it.
        fields: Metrics to keep beside `COLUMNS`.
        folder: Where to keep it.

    Raises:
        ValueError: It is neither; or not a comparison on the test split in the simulator, for an environment's page.
    """
    if not comparison.is_file():
        raise ValueError(
            f"from={str(comparison)!r} is no file; give the comparison.json or benchmark.json of a run"
        )
    values = json.loads(comparison.read_text(encoding="utf-8"))
    if "benchmark" in values:
        kept = made_by(comparison.parent) | {"rows": _benchmark_rows(values, comparison.parent)}
        name = name or f"benchmark_{values['benchmark']}"
    elif "env" in values:
        if values.get("backend", "simulator") != "simulator" or not (name or values["split"] == "test"):
            raise ValueError(
                f"{comparison}: results of split=test on the simulator are kept, "
                f"got split={values['split']} backend={values.get('backend')}"
            )
        kept = _comparison(values, comparison.parent, fields)
        name = name or values["env"]
    else:
        raise ValueError(f"{comparison} must be the comparison.json or benchmark.json of a run")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return path


def made_by(run: Path) -> dict[str, Any]:
    """Command, versions and date of a run, from its provenance.

    Raises:
        ValueError: It has none.
    """
    path = run / PROVENANCE_FILE
    if not path.is_file():
        raise ValueError(f"{run} has no {PROVENANCE_FILE}, which tells what made its results")
    values = json.loads(path.read_text(encoding="utf-8"))
    words = [word for word in values["words"] if not word.startswith("out=")]
    versions = {name: values["versions"][name] for name in ("serving-gym", "numpy", "numba")}
    return {
        "regenerated": True,
        "command": " ".join([f"python -m runners.{values['command']}", *map(shlex.quote, words)]),
        "started": values["started"],
        "versions": versions,
    }


def _comparison(values: Mapping[str, Any], run: Path, fields: Iterable[str]) -> dict[str, Any]:
    policies = values["policies"]
    metrics = [name for name in dict.fromkeys((*COLUMNS, *fields)) if name not in ("row", "gain")]
    # Policies that do not see the future.
    behind = (values.get("regret") or {}).get("clairvoyant_policies") or list(policies)
    best = max(behind, key=lambda policy: policies[policy]["metrics"]["return"]["iqm"])
    return made_by(run) | {
        "env_id": env_id(values["env"]),
        "workload": values["workload"],
        "split": values["split"],
        "seeds": values["seeds"],
        "policies": {
            policy: {metric: rounded(entry["metrics"][metric]) for metric in metrics}
            for policy, entry in policies.items()
        },
        "clairvoyant": [policy for policy in policies if policy not in behind],
        "gains": {
            policy: rounded(values["relative_improvement"][f"{best}>{policy}"])
            for policy in policies
            if policy != best
        },
    }


def _benchmark_rows(values: Mapping[str, Any], run: Path) -> list[dict[str, Any]]:
    """A row for each learned policy of each task, with its gates' figures."""
    rows = []
    for line in values["results"]:
        if "policy" not in line:
            continue
        task, policy = line["task"], line["policy"]
        comparison = json.loads((run / task / "comparison.json").read_text(encoding="utf-8"))
        gates = comparison["gates"][policy]
        rows.append(
            {
                "row": f"{task} {policy}",
                "task": task,
                "policy": policy,
                "best_heuristic": line["best_heuristic"],
                "gain": rounded({"iqm": line["gain"], "ci95": line["ci95"]}),
                "mean": rounded({"iqm": line["mean"], "ci95": line["mean_ci95"]}),
                "gates": _gates_text(line),
                "lacks": six(line["regret_clairvoyant"]),
                "us_per_decision": six(line["us_per_decision"]),
                "badge": line["badge"],
            }
            | {name: rounded({"iqm": gates[name]["value"], "ci95": gates[name]["ci95"]}) for name in _RATIOS}
            | {"slo_attainment_points": rounded(_points_more(gates["slo_attainment_loss"]))}
        )
    return rows


def _points_more(loss: Mapping[str, Any]) -> dict[str, Any]:
    """Points of SLO attainment more than the heuristic's."""
    low, high = loss["ci95"]
    return {"iqm": -100.0 * loss["value"], "ci95": [-100.0 * high, -100.0 * low]}


def _gates_text(line: Mapping[str, Any]) -> str:
    """Whether the gates hold, and the workloads that exceed them by themselves."""
    text = "hold surely" if line["gates_certain"] else "hold" if line["gates_hold"] else "fail"
    beyond = ", ".join(line["gates_beyond_in"])
    return f"{text}, not in {beyond}" if beyond else text


def rounded(value: Mapping[str, Any]) -> dict[str, Any]:
    """Interquartile mean and interval with six digits."""
    interval = value.get("ci95")
    return {
        "iqm": six(value["iqm"]),
        "ci95": None if interval is None else [six(bound) for bound in interval],
    }


def six(value: float | None) -> float | None:
    """A number with six digits."""
    return None if value is None else float(f"{value:.6g}")
