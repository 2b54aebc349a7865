"""A table of requests, from CSV, parquet or JSON objects, and its columns as checked numbers and names."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from serving_gym.calibration.lookup import nearest
from serving_gym.envs.workload.reading.context import MalformedError, Reading
from serving_gym.envs.workload.schema import TokenArray

ALIASES: dict[str, tuple[str, ...]] = {
    "arrival_s": (
        *(
            "arrival_s",
            "arrival_ms",
            "arrival_us",
            "arrival_ns",
            "arrival_time",
            "arrival_timestamp",
            "arrival",
        ),
        *(
            "arrived_at",
            "timestamp",
            "timestamp_s",
            "timestamp_ms",
            "timestamp_us",
            "timestamp_ns",
            "time",
            "time_s",
        ),
        *(
            "time_ms",
            "request_time",
            "request_timestamp",
            "start_time",
            "start_s",
            "sent_at",
            "created_at",
            "ts",
        ),
    ),
    "input_tokens": (
        *(
            "input_tokens",
            "input_length",
            "input_len",
            "input_toks",
            "prompt_tokens",
            "prompt_length",
            "prompt_len",
        ),
        *(
            "prompt_size",
            "contexttokens",
            "context_tokens",
            "request_tokens",
            "num_prefill_tokens",
            "prefill_tokens",
        ),
        *("num_prompt_tokens", "num_input_tokens", "input_sequence_length", "isl"),
    ),
    "output_tokens": (
        *(
            "output_tokens",
            "output_length",
            "output_len",
            "output_toks",
            "completion_tokens",
            "generatedtokens",
        ),
        *("generated_tokens", "response_tokens", "token_size", "num_decode_tokens", "decode_tokens"),
        *("num_output_tokens", "num_generated_tokens", "output_sequence_length", "osl"),
    ),
    "max_output_tokens": ("max_output_tokens", "max_tokens", "max_completion_tokens"),
    "predicted_tokens": ("predicted_tokens",),
    "priority": ("priority",),
    "class": ("class",),
    "model": ("model",),
    "region": ("region",),
    "hash_ids": ("hash_ids",),
    "hash_block_tokens": ("hash_block_tokens", "block_size", "trace_block_size"),
    "session_id": ("session_id",),
    "delay_s": ("delay_s",),
    "after": ("after",),
    "patience_s": ("patience_s",),
}
_TEXT = ("hash_ids", "session_id", "after", "class", "model", "region")
_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_DECIMAL_COMMA = r"^([+-]?\d+),(\d+)$"
_DECIMAL_COMMAS = re.compile(r"[;\n]\s*\"?[+-]?\d+,\d+\"?\s*[;\r\n]")
_SNIFFED = 1_000_000
_CHECKED_LINES = 1000
_SHOWN = 20
_FIELDS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
_PREAMBLE = re.compile(r"(\s*(#[^\r\n]*|\"?sep=.\"?)(\r\n|\n|\r))+")
_LINES = re.compile(r"\r\n|\n|\r")
_INT32_MAX = int(np.iinfo(np.int32).max)


@dataclass
class Table:
    """Columns of a file by their names in it.

    Attributes:
        columns: arrays of N entries; a ragged column of a parquet file is an Arrow list array.
        num_rows: N.
        metadata: of a parquet file.
        used: names of the columns that were read.
        places: names of the rows in messages; None: "row" and the number.
    """

    columns: dict[str, Any]
    num_rows: int
    metadata: dict[bytes, bytes] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    places: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.known = {normal(name): name for name in self.columns}

    def place(self, row: int) -> str:
        """Name of a row in messages."""
        return f"row {row}" if self.places is None else self.places[row]

    def __getitem__(self, name: str) -> Any:
        """Entries of a column, which count as read."""
        self.used.add(name)
        return self.columns[name]

    def has(self, *names: str) -> bool:
        """Whether all of these columns are there, in any letter case."""
        return all(name in self.known for name in names)

    def find(self, reading: Reading, own: str) -> str | None:
        """The column that stands for one of ours, None where there is none.

        Raises:
            MalformedError: the user names a column that is not there, or several could be meant.
        """
        if own in reading.options.columns:
            name = reading.options.columns[own]
            if name in self.columns:
                return name
            if normal(name) in self.known:
                return self.known[normal(name)]
            raise MalformedError(
                f"has no column {name!r} (columns.{own}){nearest(name, list(self.columns)[:_SHOWN])}"
            )
        taken = set(reading.options.columns.values())
        found = [
            self.known[alias]
            for alias in ALIASES[own]
            if alias in self.known and self.known[alias] not in taken
        ]
        if len(found) > 1 and normal(found[0]) != own:
            raise MalformedError(
                f"has columns {found[0]!r} and {found[1]!r}, which both may be {own}; say which with "
                f"columns={{{own}: {found[0]}}}"
            )
        return found[0] if found else None

    def need(self, reading: Reading, own: str) -> str:
        """The column that stands for one of ours.

        Raises:
            MalformedError: there is none.
        """
        name = self.find(reading, own)
        if name is None:
            shown = [str(each) for each in list(self.columns)[:_SHOWN]]
            raise MalformedError(
                f"has no column {own!r}, nor one of its other names; it has {shown}; "
                f"columns={{{own}: NAME}} says which one it is"
            )
        return name


def normal(name: str) -> str:
    """A column's name without differences of letter case, blanks and hyphens."""
    return re.sub(r"[\s\-.]+", "_", re.sub(r"\s*[\[(](utc|s|tokens)[\])]$", "", str(name).strip().lower()))


def table_of_csv(reading: Reading, text: str) -> Table:
    """A table from text with a header and one of the separators comma, semicolon, tab and bar.

    Raises:
        MalformedError: no header, columns of equal names, or no table.
    """
    text = _without_preamble(text)
    separator, header = _header(text)
    reading.container = ", ".join(
        filter(
            None, ("CSV" if separator == "," else f"CSV with {_SEPARATORS[separator]}s", reading.container)
        )
    )
    reading.decimal_comma = separator == ";" and _DECIMAL_COMMAS.search(text[:_SNIFFED]) is not None
    check_names(header)
    texts = {name for name in header if any(normal(name) in ALIASES[own] for own in _TEXT)}
    texts |= {reading.options.columns[own] for own in _TEXT if own in reading.options.columns}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            warnings.filterwarnings(
                "ignore", message=".*float_precision"
            )  # what newer releases do by themselves
            frame = pd.read_csv(
                io.StringIO(text), sep=separator, header=0, names=header, index_col=False,
                skipinitialspace=True, low_memory=False,
                keep_default_na=False, na_values=[""], float_precision="round_trip",
                decimal="," if reading.decimal_comma else ".",
                dtype={name: "object" for name in texts if name in header},
            )  # fmt: skip
    except pd.errors.ParserWarning as error:
        raise MalformedError(
            f"is not a table: a row has more fields than the header ({len(header)})"
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OverflowError) as error:
        raise MalformedError(f"is not a table ({_table_words(error)})") from error
    return Table({str(name): _plain(frame[name]) for name in frame.columns if str(name)}, len(frame))


def table_of_parquet(reading: Reading, content: bytes) -> Table:
    """A table from a parquet file.

    Raises:
        MalformedError: broken, or columns of equal names.
    """
    reading.container = ", ".join(filter(None, ("parquet", reading.container)))
    try:
        table = pq.read_table(pa.BufferReader(content))
        check_names(table.column_names)
        columns = {name: _of_arrow(table.column(name)) for name in table.column_names}
    except (pa.ArrowException, OSError, ValueError, KeyError, NotImplementedError, OverflowError) as error:
        said = str(error).strip().splitlines()
        raise MalformedError(
            f"is not a parquet file ({said[0] if said else type(error).__name__})"
        ) from error
    return Table(columns, table.num_rows, dict(table.schema.metadata or {}))


def table_of_records(records: Sequence[dict[str, Any]], places: Sequence[str] | None = None) -> Table:
    """A table from JSON objects, one a row; what an object lacks is None."""
    names: dict[str, None] = {}
    for keys in dict.fromkeys(map(tuple, records)):
        names.update(dict.fromkeys(keys))
    check_names(list(names))
    columns = {name: column_of([record.get(name) for record in records]) for name in names}
    return Table(columns, len(records), places=places)


def column_of(values: list[Any]) -> NDArray[Any]:
    """Entries as an array: of numbers where all are, else of objects."""
    kinds = set(map(type, values))
    if kinds and kinds <= {int, float}:
        try:
            array = np.array(values)
            if array.dtype.kind in "iuf":
                return array
        except OverflowError:
            pass
    column = np.empty(len(values), dtype=object)
    column[:] = values if kinds & {list, dict} == set() else [*values]
    return column


def records_of(reading: Reading, text: str) -> list[dict[str, Any]]:
    """JSON objects of a file: JSON Lines, one object, or a list of them.

    Raises:
        MalformedError: something in it is not JSON, or not an object.
    """
    split = _LINES.split(text) if "\r" in text else text.split("\n")
    lines = [line for line in split if line.strip()]
    records = _parsed("[" + ",".join(lines) + "]") if text.lstrip().startswith("{") else None
    kind = "JSON Lines"
    by_line = records is not None and len(records) == len(lines)
    if records is None or not by_line:
        records, kind = _whole(text, lines)
    elif len(records) == 1:
        kind = "JSON"
    reading.container = ", ".join(filter(None, (kind, reading.container)))
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise MalformedError(f"row {number} is not a JSON object")
    for number, line in enumerate(lines[:_CHECKED_LINES] if by_line else ()):
        if (key := _repeated_key(line)) is not None:
            raise MalformedError(f"row {number} has key {key!r} twice")
    return records


def numbers(
    reading: Reading, table: Table, name: str, missing: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """A column of finite numbers.

    Args:
        reading: its state.
        table: the file.
        name: column, which is there.
        missing: (N,), rows that may lack a value and get NaN; None: no row may.
    """
    raw = table[name]
    values = parsed_numbers(raw, reading.decimal_comma)
    bad = ~np.isfinite(values)
    if missing is not None:
        lacking = is_missing(raw)
        bad &= ~(missing & lacking)
    hint = (
        " (write numbers without thousands separators)"
        if bad.any() and _thousands(raw[np.argmax(bad)])
        else ""
    )
    reading.refuse(table, name, raw, bad, f"is not a number{hint}")
    return np.where(bad, 1.0, values) if bad.any() else values


def whole(
    reading: Reading, table: Table, name: str, least: int | None = None, fill: int | None = None
) -> TokenArray:
    """A column of whole numbers.

    Args:
        reading: its state.
        table: the file.
        name: column, which is there.
        least: smallest allowed.
        fill: what stands for a missing value; None: none may be missing.
    """
    raw = table[name]
    missing = None if fill is None else is_missing(raw)
    values = numbers(reading, table, name, missing)
    if fill is not None:
        values = np.where(np.isnan(values), fill, values)
    for bad, why in (
        (values != np.floor(values), "is not a whole number"),
        (np.abs(values) > _INT32_MAX, "is too large"),
        (values < (-np.inf if least is None else least), f"is below {least}"),
    ):
        reading.refuse(table, name, raw, bad, why)
        values = np.where(bad, 1 if least is None else max(least, 1), values) if bad.any() else values
    return values.astype(np.int32)


def names(
    reading: Reading, table: Table, name: str, known: Sequence[str] = (), none: str | None = None
) -> tuple[tuple[str, ...], TokenArray]:
    """Names in the order of the writer, else of first appearance, and the index of each row.

    Args:
        reading: its state.
        table: the file.
        name: column, which is there.
        known: names of the writer.
        none: name of rows without one; None: each needs one.
    """
    raw = table[name]
    missing = is_missing(raw)
    if none is None:
        reading.refuse(table, name, raw, missing, "is not a name")
    try:
        codes, values = pd.factorize(pd.Series(raw, dtype=object))
    except TypeError:  # lists and objects, which have no hash
        codes, values = pd.factorize(pd.Series([str(value) for value in raw], dtype=object))
    nameless = "" if none is None else none
    labels = np.array([*(str(value) for value in values), nameless], dtype=object)  # the last one by code -1
    codes = np.where(missing, -1, codes)
    used = np.unique(codes)
    in_order = sorted(used.tolist(), key=lambda code: int(np.argmax(codes == code)) if code < 0 else code)
    found = tuple(dict.fromkeys([*known, *(labels[code] for code in in_order)]))
    number = {label: i for i, label in enumerate(found)}
    return found, np.array([number.get(label, 0) for label in labels], dtype=np.int32)[codes]


def is_missing(raw: Any) -> NDArray[np.bool_]:
    """Which entries are missing: null, NaN, or an empty text."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "iub":
        return np.zeros(len(raw), dtype=bool)
    if isinstance(raw, np.ndarray) and raw.dtype.kind == "f":
        return np.isnan(raw)
    if isinstance(raw, np.ndarray):
        return np.asarray(pd.isna(raw) | np.asarray(raw == "", dtype=bool))
    return np.fromiter((value is None for value in raw.to_pylist()), bool, len(raw))


def parsed_numbers(raw: Any, decimal_comma: bool = False) -> NDArray[np.float64]:
    """Entries as numbers, NaN where one is none."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "iuf":
        return raw.astype(np.float64)
    if not isinstance(raw, np.ndarray) or raw.dtype.kind != "O":
        return np.full(len(raw), np.nan)
    kinds = set(map(type, raw))
    if kinds <= {str, float, type(None)}:
        text = pd.Series(raw, dtype=object)
        if decimal_comma:
            text = text.str.strip().str.replace(_DECIMAL_COMMA, r"\1.\2", regex=True).fillna(text)
        return np.asarray(pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan))
    return np.fromiter((_number(value) for value in raw), np.float64, len(raw))


def check_names(header: Iterable[Any]) -> None:
    """Raises MalformedError if two columns have one name, but for letter case and blanks."""
    seen: dict[str, str] = {}
    for name in map(str, header):
        if normal(name) in seen and normal(name):
            first = seen[normal(name)]
            raise MalformedError(
                f"has column {name!r} twice"
                if first == name
                else f"has columns {first!r} and {name!r}, one name twice"
            )
        seen[normal(name)] = name


def _without_preamble(text: str) -> str:
    """A table without the comments (#) and the line that names a spreadsheet's separator (sep=;) before it."""
    match = _PREAMBLE.match(text)
    return text[match.end() :] if match else text


def _header(text: str) -> tuple[str, list[str]]:
    line = next((line for line in _LINES.split(text[:_SNIFFED]) if line.strip()), "")
    plain = re.sub(r'"[^"]*"', "", line)
    separator = max(_SEPARATORS, key=plain.count)
    try:
        header = [
            name.strip() for name in next(csv.reader([line], delimiter=separator, skipinitialspace=True))
        ]
    except (csv.Error, StopIteration) as error:
        raise MalformedError(f"is not a table ({error})") from error
    if header and all(_NUMBER.fullmatch(name.replace(",", ".")) or not name for name in header):
        raise MalformedError(
            "has no header: its first line holds numbers, where the names of the columns are needed (is not a table)"
        )
    if sum(bool(_NUMBER.fullmatch(name)) for name in header) >= max(2, len(header) - 1):
        raise MalformedError(
            f"has no header: its first line is {line[:60]!r}; needed is a line with the names of the columns "
            "(client chunks of ServeGen hold rates, not requests: generate requests from them)"
        )
    return separator, header


def _table_words(error: Exception) -> str:
    """What pandas says, with rows counted from 0 after the header."""
    said = " ".join(str(error).split())
    fields = _FIELDS.search(said)
    if fields is None:
        return said
    return f"row {int(fields[2]) - 2} has {fields[3]} fields, the header has {fields[1]}"


def _plain(series: pd.Series) -> NDArray[Any]:
    kind = series.dtype
    if isinstance(kind, np.dtype) and kind.kind in "iuf":
        return series.to_numpy()
    return series.astype(object).to_numpy()


def _of_arrow(column: Any) -> Any:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return column.combine_chunks()
    if pa.types.is_integer(kind) and column.null_count == 0:
        return column.to_numpy()
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return column.cast(pa.float64(), safe=False).to_numpy()
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("ns"), safe=True).to_numpy()
    return column_of(column.to_pylist())


def _repeated_key(line: str) -> str | None:
    """A key that an object has twice, None where there is none."""
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            found.append(Counter(key for key, _ in pairs).most_common(1)[0][0])
        return made

    json.loads(line, object_pairs_hook=look)
    return found[0] if found else None


def _parsed(text: str) -> list[Any] | None:
    try:
        return list(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _whole(text: str, lines: list[str]) -> tuple[list[Any], str]:
    """Records of a file that is not one JSON object a line.

    Raises:
        MalformedError: it is not JSON; names the row.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise MalformedError("is not JSON that can be read: it is nested too deeply") from error
    except ValueError as error:
        whole_file = error
    else:
        return (value, "JSON") if isinstance(value, list) else ([value], "JSON")
    records = []
    for number, line in enumerate(lines):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number == 0 and len(lines) > 1 and line.strip() in ("{", "["):
                raise MalformedError(f"is not JSON ({_json_words(whole_file)})") from whole_file
            raise MalformedError(f"row {number} is not JSON ({_json_words(error)})") from error
    return records, "JSON Lines"


def _json_words(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _number(value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | str | np.number):
        return math.nan
    try:
        return float(value) if not isinstance(value, str) or _NUMBER.fullmatch(value.strip()) else math.nan
    except OverflowError:
        return math.inf


def _thousands(value: Any) -> bool:
    return (
        isinstance(value, str)
        and re.fullmatch(r"\d{1,3}([ ,.'_]\d{3})+([.,]\d+)?", value.strip()) is not None
    )
