"""Reads published measurements, whose format is identified by their columns."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from serving_gym.calibration.measured import steps
from serving_gym.calibration.measured.steps import Step
from serving_gym.runners.validation import closed_loop, open_loop, replicas
from serving_gym.runners.validation.runs import ServingRun

FORMS = {
    "open_loop": open_loop.COLUMNS,
    "replicas": replicas.COLUMNS,
    "steps": steps.COLUMNS,
    "closed_loop": closed_loop.COLUMNS,
}
EXAMPLES = {
    "open_loop": "silicon/blis_vllm_stage_latency",
    "replicas": "silicon/apex_vllm_dp_tp_h100",
    "steps": "profiles/splitwise_perf_model",
    "closed_loop": "silicon/aic_e2e_vllm_agg",
}


@dataclass
class Measurements:
    """Contents of a file of measurements.

    Args:
        form: One of `FORMS`.
        runs: Runs of a serving engine.
        steps: Single iterations.
        unsupported: Rows that cannot be predicted, by reason.
    """

    form: str
    runs: list[ServingRun] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    unsupported: Counter[str] = field(default_factory=Counter)


def form_of(frame: pd.DataFrame) -> str:
    """Name of a table's format.

    Raises:
        ValueError: It is in none; the message says what the nearest one lacks.
    """
    missing = {name: [c for c in columns if c not in frame.columns] for name, columns in FORMS.items()}
    best = min(missing, key=lambda name: len(missing[name]))
    if missing[best]:
        forms = ", ".join(
            f"{EXAMPLES[name]} ({', '.join(columns[:3])}, ...)" for name, columns in FORMS.items()
        )
        raise ValueError(
            f"data has none of the known forms: nearest is {EXAMPLES[best]}, which also has "
            f"{', '.join(missing[best])}; allowed: {forms}"
        )
    return best


def read_table(path: Path) -> pd.DataFrame:
    """Reads CSV (also compressed) or parquet.

    Raises:
        ValueError: The file does not exist or is no table.
    """
    if not path.is_file():
        raise ValueError(f"data={str(path)!r} is not a file")
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"data={str(path)!r} is no CSV or parquet table: {error}") from error


def read_measurements(frame: pd.DataFrame) -> Measurements:
    """Every row of a table as a run or a step, or counted with the reason why not.

    Raises:
        ValueError: The table is in no known form.
    """
    found = Measurements(form_of(frame))
    rows = [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]
    if found.form == "open_loop":
        for indices in stages_by_run(frame):
            _take(found, found.runs, open_loop.run_of, [rows[i] for i in indices], indices)
        return found
    for index, row in enumerate(rows):
        if found.form == "steps":
            _take(found, found.steps, steps.step_of, row, index)
        else:
            reader = closed_loop.run_of if found.form == "closed_loop" else replicas.run_of
            _take(found, found.runs, reader, row, index)
    return found


def stages_by_run(frame: pd.DataFrame) -> list[list[int]]:
    """Positions of the rows of each run, in the order of their stages."""
    order = frame["stage"].to_numpy(float)
    names = frame["run"].tolist() if "run" in frame else list(range(len(frame)))
    groups: dict[Any, list[int]] = {}
    for position, name in enumerate(names):
        groups.setdefault(name, []).append(position)
    return [sorted(group, key=lambda position: float(order[position])) for group in groups.values()]


def _take(
    found: Measurements, into: list[Any], reader: Callable[[Any, Any], object], rows: Any, index: Any
) -> None:
    try:
        into.append(reader(rows, index))
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        count = len(index) if isinstance(index, list) else 1
        said = str(error) if isinstance(error, ValueError) else f"the row cannot be read ({error})"
        found.unsupported[said] += count
