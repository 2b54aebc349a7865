"""Times of arrival: their unit, their base, and how long a trace may be.

Rules, where the user says nothing:

* A column of dates counts from its first date. A name that ends in ``_s``, ``_ms``, ``_us`` or ``_ns`` has that unit,
  and each published format has its own; numbers of the size of an epoch (at least 1e8 s) have the unit in which they
  lie between 1973 and 5138. Where milliseconds are expected, 1e9 to 4.2e9 are seconds of the years 2001 to 2103.
* Published formats count from the first arrival. Our own times are kept if the first is below 60 s, and counted from
  the first arrival otherwise: they are then a time of day, an epoch, or cut from the middle of a trace.
* A run lasts at most 100 days, which 64-bit picoseconds hold. In a longer trace idle gaps are cut to the longest of
  12 h, 6 h, 1 h, 10 min and 1 min that makes it fit.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving_gym.envs.workload.reading.context import MalformedError, Reading
from serving_gym.envs.workload.reading.options import UNITS_PER_S
from serving_gym.envs.workload.reading.report import duration
from serving_gym.envs.workload.reading.tables import Table, is_missing, numbers
from serving_gym.envs.workload.schema import FloatArray

KEPT_BELOW_S = 60.0
LONGEST_S = 100 * 86400.0
LONGEST_GAP_S = 400 * 86400.0
MOST_RPS = 1000.0
_GAPS_S = (43200.0, 21600.0, 3600.0, 600.0, 60.0)
_LEAST_RPS = 0.99 / 86400.0
_EPOCHS = (("s", 1e8), ("ms", 1e11), ("us", 1e14), ("ns", 1e17), ("", 1e20))
_SECONDS_OF_TODAY = (1e9, 4.2e9)
_SUFFIX = re.compile(r"_(s|ms|us|ns)$")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d{1,2}/\d{1,2}/\d{4}")


def arrivals(
    reading: Reading,
    table: Table,
    name: str,
    unit: str,
    rebased: bool | None,
    waits: NDArray[np.bool_] | None = None,
) -> FloatArray:
    """Arrivals in seconds, on the clock of a run; 0 for requests that wait and have no time.

    Args:
        reading: its state; gets unit and base.
        table: the file.
        name: column of the times.
        unit: of the format.
        rebased: whether the format counts from its first arrival; None: as our own times do.
        waits: (N,), requests that wait for an answer, whose times are not needed.
    """
    roots = np.ones(table.num_rows, bool) if waits is None else ~waits
    if not roots.any():
        raise MalformedError("has no request that waits for no answer: none could ever arrive")
    values, unit, dated = _values(reading, table, name, unit, waits)
    first = values[roots].min()
    per_s = UNITS_PER_S["ns" if dated else unit]
    counted = _counted(reading, float(first) / per_s, dated, rebased)
    base = str(pd.Timestamp(int(first), unit="ns")) if dated else _amount(float(first), unit)
    reading.times = ("date and time" if dated else unit, base, counted)
    if counted:
        arrival_s = (values - first) / per_s
        if rebased is None and first != 0 and not dated:
            reading.note(f"times began at {base} and were moved to 0")
    else:
        arrival_s = values / per_s
    arrival_s = np.where(roots, arrival_s, 0.0)
    if reading.options.time_unit is None and not dated:
        _check_rate(reading, arrival_s[roots], values[roots], unit, rebased is None)
    return arrival_s


def shortened(reading: Reading, arrival_s: FloatArray, roots: NDArray[np.bool_], places: Any) -> FloatArray:
    """Arrivals with idle gaps cut, where the user wants it or a run could not hold them.

    Args:
        reading: its state.
        arrival_s: (N,), seconds, of the requests that do not wait never decreasing.
        roots: (N,), requests that do not wait.
        places: what names rows.

    Raises:
        MalformedError: no gap is long enough to make a run possible.
    """
    times = arrival_s[roots]
    gaps = np.diff(times, prepend=0.0 if times[0] <= KEPT_BELOW_S else times[0])
    longest = reading.options.max_gap_s
    end_s = float(times[-1])
    if longest is None:
        if end_s <= LONGEST_S:
            return arrival_s
        if reading.options.rebase is False and times[0] > LONGEST_S:
            raise MalformedError(
                f"begins {duration(times[0])} after 0, and a run lasts at most {duration(LONGEST_S)}: leave rebase "
                "unset, which counts from the first arrival"
            )
        if gaps.max() > LONGEST_GAP_S:
            row = int(np.flatnonzero(roots)[np.argmax(gaps)])
            raise MalformedError(
                f"{places.place(row)} arrives {duration(gaps.max())} after the one before: is the unit or the base of "
                "the times a mix? time_unit and max_gap_s say what is right"
            )
        longest = next((gap for gap in _GAPS_S if np.minimum(gaps, gap).sum() <= LONGEST_S), None)
        if longest is None:
            raise MalformedError(
                f"spans {duration(end_s)}, and a run lasts at most {duration(LONGEST_S)}: cut the file, or give a "
                "max_gap_s that is short enough"
            )
    cut = gaps > longest
    cut[0] = False
    if not cut.any():
        return arrival_s
    short = arrival_s.copy()
    short[roots] = np.cumsum(np.where(cut, longest, gaps)) + (times[0] - gaps[0])
    put_back = (
        "" if reading.options.max_gap_s is not None else " (the results of runners.simulate count them whole)"
    )
    reading.note(
        f"{int(cut.sum()):,} idle gaps longer than {duration(longest)} are simulated as {duration(longest)}, so that "
        f"{duration(end_s)} become {duration(float(short[roots][-1]))}{put_back}; other gaps are unchanged"
    )
    return short


def dates(raw: Any) -> bool:
    """Whether a column holds dates: its first entry that is there is one."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind == "M":
        return True
    if not isinstance(raw, np.ndarray) or raw.dtype != object:
        return False
    first = next((value for value in raw if isinstance(value, str) and value), None)
    return isinstance(first, str) and _DATE.match(first.strip()) is not None


def _values(
    reading: Reading, table: Table, name: str, unit: str, waits: NDArray[np.bool_] | None
) -> tuple[NDArray[Any], str, bool]:
    """Times in the file's unit (exact where they are whole numbers), the unit, and whether they are dates."""
    raw = table[name]
    if dates(raw):
        if reading.options.time_unit is not None:
            raise MalformedError(f"has dates in column {name!r}: time_unit is for numbers")
        return _dates(reading, table, name, waits), "ns", True
    if waits is not None and not isinstance(raw, np.ndarray):
        raise MalformedError(f"has lists in column {name!r}, where times are needed")
    values = numbers(reading, table, name, waits)
    roots = np.ones(len(values), bool) if waits is None else ~waits
    bad = roots & (values < 0)
    reading.refuse(table, name, raw, bad, "is negative")
    huge = roots & (values > 1e20)
    reading.refuse(table, name, raw, huge, "is too large for a time")
    values = _filled(np.where(np.isnan(values), 0.0, values), reading.bad.get(name))
    exact = isinstance(raw, np.ndarray) and raw.dtype.kind in "iu" and not bad.any() and not huge.any()
    unit = reading.options.time_unit or _unit_of(name, unit, float(values[roots].min()))
    if exact and raw.max(initial=0) < 2**63:
        return raw.astype(np.int64), unit, False
    return values, unit, False


def _filled(values: NDArray[Any], bad: NDArray[np.bool_] | None) -> NDArray[Any]:
    """Refused times replaced by the last good one before, or the first good one."""
    if bad is None or bad.all():
        return values if bad is None else np.zeros_like(values)
    last = np.maximum.accumulate(np.where(bad, -1, np.arange(len(values))))
    return np.asarray(values[np.where(last < 0, int(np.argmin(bad)), last)])


def _dates(reading: Reading, table: Table, name: str, waits: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    raw = table[name]
    if raw.dtype.kind == "M":
        stamps = pd.Series(pd.to_datetime(raw, utc=True))
    else:
        text = pd.Series(raw, dtype=object).where(np.array([isinstance(value, str) for value in raw], bool))
        stamps = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
        if stamps.isna().all():
            stamps = pd.to_datetime(text, format="mixed", utc=True, errors="coerce")
            if stamps.notna().any():
                reading.warn(
                    f"dates in column {name!r} are not of ISO 8601; they are read with the month before the day"
                )
    bad = np.array(stamps.isna())
    if waits is not None:
        bad &= ~(waits & is_missing(raw))
    reading.refuse(table, name, raw, bad, "is not a date and time")
    try:
        stamps = stamps.astype("datetime64[ns, UTC]")
    except (pd.errors.OutOfBoundsDatetime, OverflowError) as error:
        raise MalformedError(f"column {name!r} holds a date that is out of range") from error
    filled = stamps.fillna(stamps.min())
    return _filled(filled.astype(np.int64).to_numpy(), reading.bad.get(name))


def _counted(reading: Reading, first_s: float, dated: bool, rebased: bool | None) -> bool:
    if reading.options.rebase is not None:
        if dated and not reading.options.rebase:
            raise MalformedError("has dates, which count from the first arrival: rebase=false is for numbers")
        return bool(reading.options.rebase)
    if dated or rebased is not None:
        return dated or bool(rebased)
    return first_s >= KEPT_BELOW_S


def _unit_of(name: str, unit: str, first: float) -> str:
    """Unit of a column: that of its name, of an epoch where it is of such a size, else the format's."""
    named = _SUFFIX.search(name.lower())
    if named and named[1] != "s":
        return named[1]
    low, high = _SECONDS_OF_TODAY
    if unit == "ms" and low <= first < high:
        return "s"
    if unit in ("s", "ms") and first >= _EPOCHS[unit == "ms"][1]:
        return next((each for (each, low), (_, high) in pairwise(_EPOCHS) if low <= first < high), unit)
    return unit


def _check_rate(
    reading: Reading, arrival_s: FloatArray, values: NDArray[Any], unit: str, guessed: bool
) -> None:
    """Warns where the rate is implausible in this unit and says in which it would not be."""
    span_s = float(arrival_s.max() - arrival_s.min())
    if len(arrival_s) < 3 or span_s <= 0:
        return
    rate = (len(arrival_s) - 1) / span_s
    whole_numbers = bool((values == np.floor(values)).all())
    if rate > MOST_RPS or (unit != "s" and not whole_numbers and rate > MOST_RPS / 10):
        other = next(
            (
                u
                for u in ("us", "ms", "s")
                if UNITS_PER_S[u] < UNITS_PER_S[unit] and _other(rate, unit, u) <= MOST_RPS
            ),
            None,
        )
        looks = f"; they look like {_WORDS[other]}: time_unit={other}" if other else ""
        reading.warn(f"times read as {_WORDS[unit]} give {rate:,.0f} requests/s{looks}")
    elif rate < _LEAST_RPS:
        reading.warn(f"times read as {_WORDS[unit]} give {rate * 86400:.2g} requests a day")
    elif guessed and unit == "s" and whole_numbers and rate < 1 / 60 and 0.05 <= rate * 1e3 <= MOST_RPS:
        reading.warn(
            f"times read as seconds give {rate * 3600:.3g} requests an hour; if they are milliseconds: time_unit=ms"
        )


_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _other(rate: float, unit: str, other: str) -> float:
    return rate * UNITS_PER_S[other] / UNITS_PER_S[unit]


def _amount(value: float, unit: str) -> str:
    """A time, and of an epoch its date."""
    text = f"{value:,.6f}".rstrip("0").rstrip(".") + f" {unit}"
    seconds = value / UNITS_PER_S[unit]
    if not _EPOCHS[0][1] <= seconds < _EPOCHS[1][1] / 10:
        return text
    return f"{text} ({pd.Timestamp(round(seconds), unit='s')} UTC)"
