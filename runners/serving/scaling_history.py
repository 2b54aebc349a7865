"""The traffic that a served autoscaling policy knows, kept in a file, so that it outlives the process.

{"bin_s": 60.0, "ended_s": UNIX TIME OF THE LAST BIN'S END, "rows": {COLUMN: [NUMBER, ...], ...}}

Columns are those of `envs.interface.scaling.TRAFFIC_DTYPE`, the oldest bin first; one may also be written by hand, of
the traffic that a monitoring system knows. While no process was there nothing is known: bins that are missing, up to an
hour, get the mean of the hour before them, and a history that ended earlier is not used.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE

_log = logging.getLogger(__name__)

MOST_GAP_S = 3600.0
_NAMES = TRAFFIC_DTYPE.names or ()


def read_history(path: Path, bin_s: float, now_s: float, most_s: float) -> NDArray[np.void]:
    """(T,) TRAFFIC_DTYPE, bins that end now; none where there is no file, or it ended too long ago.

    Args:
        path: The file.
        bin_s: Length of the bins that are wanted, seconds.
        now_s: Unix time.
        most_s: Longest history that is wanted, seconds.

    Raises:
        ValueError: The file is not of this form, or has other bins.
    """
    empty = np.zeros(0, TRAFFIC_DTYPE)
    if not path.exists():
        return empty
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows, ended_s, length_s = _rows(found["rows"]), float(found["ended_s"]), float(found["bin_s"])
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"scaling.history={path} is no history of traffic: {error!r}") from None
    if length_s != bin_s:
        raise ValueError(
            f"scaling.history={path} has bins of {length_s:g} s, but env.history_bin_s is {bin_s:g}"
        )
    gap_s = now_s - ended_s
    if not 0 <= gap_s <= MOST_GAP_S:
        _log.warning(
            "%s ended %.0f s ago and is not used; at most %.0f s may be missing", path, gap_s, MOST_GAP_S
        )
        return empty
    missing = math.floor(gap_s / bin_s)
    if missing and len(rows):
        _log.warning("%s: %d bins are missing and get the mean of the hour before them", path, missing)
        rows = np.concatenate(
            [rows, np.full(missing, _mean(rows[-round(MOST_GAP_S / bin_s) :]), TRAFFIC_DTYPE)]
        )
    return rows[-round(most_s / bin_s) :]


def write_history(path: Path, bin_s: float, ended_s: float, rows: NDArray[np.void]) -> None:
    """Writes a history; the file is whole at any time.

    Args:
        path: The file.
        bin_s: Length of the bins, seconds.
        ended_s: Unix time at which the last one ended.
        rows: (T,) TRAFFIC_DTYPE.

    Raises:
        OSError: It cannot be written.
    """
    columns = {name: [round(float(value), 6) for value in rows[name]] for name in _NAMES}
    text = json.dumps({"bin_s": bin_s, "ended_s": ended_s, "rows": columns})
    beside = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _rows(columns: Any) -> NDArray[np.void]:
    unknown = sorted(set(columns) - set(_NAMES))
    if unknown:
        raise ValueError(f"column {unknown[0]!r} is unknown (allowed: {', '.join(_NAMES)})")
    values = {name: np.asarray(column, np.float64) for name, column in columns.items()}
    lengths = {value.shape for value in values.values()}
    if len(lengths) != 1 or any(not (np.isfinite(value) & (value >= 0)).all() for value in values.values()):
        raise ValueError("columns must be equally long, of finite numbers of at least 0")
    rows = np.zeros(lengths.pop(), TRAFFIC_DTYPE)
    for name, value in values.items():
        rows[name] = value
    return rows


def _mean(rows: NDArray[np.void]) -> NDArray[np.void]:
    mean = np.zeros((), TRAFFIC_DTYPE)
    for name in _NAMES:
        mean[name] = rows[name].mean()
    return mean
