"""Tables with one request a row: our own columns, and what publishers call the same.

* Ours: ``arrival_s, input_tokens, output_tokens`` and, optionally, ``max_output_tokens, predicted_tokens, priority,
  class, model, region, hash_ids, hash_block_tokens, session_id, delay_s, after, patience_s``. ``after`` has the numbers
  of earlier rows (from 0) whose answers a row waits for. Without it, a row with a ``delay_s`` waits for the row of its
  session before it.
* Azure 2023 and 2024: ``TIMESTAMP, ContextTokens, GeneratedTokens``. Source: Azure/AzurePublicDataset,
  ``AzureLLMInferenceDataset2023.md`` and ``...2024.md``.
* BurstGPT: ``Timestamp`` (seconds), ``Request tokens, Response tokens``. Source: HPMLL/BurstGPT.
* SageServe: ``arrival_timestamp`` (seconds), ``prompt_size, token_size``. Source: kjain1810/SageServe,
  ``generate_random_trace.py``.
* ServeGen: ``request_id, timestamp`` (seconds), ``input_tokens, output_tokens``. Source: alibaba/ServeGen,
  ``save_requests_to_csv``.

Of a publisher's further columns (models, tiers, log types) none is read unless ``columns`` says so: they name what was
served there, not what this cluster serves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.reading.blocks import (
    Blocks,
    blocks_in,
    blocks_of,
    check_counts,
    dense_ids,
    lists_of,
)
from serving_gym.envs.workload.reading.context import MalformedError, Reading
from serving_gym.envs.workload.reading.rows import Rows, Waits
from serving_gym.envs.workload.reading.tables import (
    Table,
    is_missing,
    names,
    normal,
    numbers,
    parsed_numbers,
    whole,
)
from serving_gym.envs.workload.reading.times import arrivals
from serving_gym.envs.workload.schema import DEFAULT_HASH_BLOCK_TOKENS, FloatArray, TokenArray

METADATA_KEY = b"serving_gym"
NAMED_COLUMNS = {"class": "classes", "model": "models", "region": "regions"}  # columns of names, and of which
_COUNTS = ("max_output_tokens", "predicted_tokens", "priority")
_LENGTHS = ("token", "length", "prompt", "len")


@dataclass(frozen=True)
class Published:
    """A published format of one request a row.

    Attributes:
        name: of the format.
        columns: those that tell it, in normal form.
        rebased: whether its times count from its first arrival; None: as our own.
        foreign: whether its further columns name what was served there, and are not read unless the user says so.
    """

    name: str
    columns: tuple[str, ...]
    rebased: bool | None = True
    foreign: bool = True


FORMATS = (
    Published("Azure", ("timestamp", "contexttokens", "generatedtokens")),
    Published("BurstGPT", ("timestamp", "request_tokens", "response_tokens")),
    Published("SageServe", ("arrival_timestamp", "prompt_size", "token_size")),
    Published("ServeGen", ("request_id", "timestamp", "input_tokens", "output_tokens"), foreign=False),
)
_OWN = Published("own columns", ("arrival_s", "input_tokens", "output_tokens"), None, foreign=False)
_OTHER = Published("columns by other names", (), None, foreign=False)


def rows_of_table(reading: Reading, table: Table) -> Rows:
    """Requests of a table.

    Raises:
        MalformedError: a needed column is missing, or an entry is refused.
    """
    published = next((each for each in (_OWN, *FORMATS) if table.has(*each.columns)), _OTHER)
    foreign = published.foreign
    about = _about(table)
    if about:
        published = replace(published, rebased=False)
    time = _time_column(reading, table)
    prompt, answer = table.need(reading, "input_tokens"), table.need(reading, "output_tokens")
    sessions = _sessions(reading, table, foreign)
    waits = _waits(reading, table, sessions, foreign)
    input_tokens = whole(reading, table, prompt, least=1)
    output_tokens = whole(reading, table, answer, least=0)
    return Rows(
        format=published.name,
        arrival_s=arrivals(
            reading, table, time, "s", published.rebased, None if waits is None else waits.waiting
        ),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        blocks=_blocks(reading, table, about, input_tokens, output_tokens, foreign),
        sessions=sessions,
        waits=waits,
        time_column=time,
        others=_others(reading, table, about, foreign),
    )


def _about(table: Table) -> dict[str, Any]:
    """What our writer put beside the columns of a parquet file."""
    try:
        about = json.loads(table.metadata.get(METADATA_KEY, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _time_column(reading: Reading, table: Table) -> str:
    name = table.find(reading, "arrival_s")
    if name is None and any(part in normal(column) for column in table.columns for part in _LENGTHS):
        raise MalformedError(
            "holds lengths without arrival times (such as the ShareGPT or arXiv length files): a workload needs a "
            f"column 'arrival_s'; it has {[str(each) for each in list(table.columns)[:20]]}; "
            "columns={arrival_s: NAME} says which one it is"
        )
    return table.need(reading, "arrival_s") if name is None else name


def _optional(reading: Reading, table: Table, own: str, foreign: bool) -> str | None:
    """An optional column; of a published format only where the user names it."""
    if foreign and own not in reading.options.columns:
        return None
    return table.find(reading, own)


def _others(reading: Reading, table: Table, about: dict[str, Any], foreign: bool) -> dict[str, Any]:
    """Optional columns of the workload."""
    others: dict[str, Any] = {}
    for own in _COUNTS:
        if (name := _optional(reading, table, own, foreign)) is not None:
            others[own] = whole(reading, table, name)
    for own, known in NAMED_COLUMNS.items():
        if (name := _optional(reading, table, own, foreign)) is not None:
            writers = about.get(known, ())
            found, ids = names(
                reading,
                table,
                name,
                writers if isinstance(writers, list) else (),
                None if own == "class" else "",
            )
            others |= {known: found, f"{own}_id": ids}
    if (name := _optional(reading, table, "patience_s", foreign)) is not None:
        others["patience_s"] = _patience(reading, table, name)
    for key in ("name", "provenance"):
        if isinstance(about.get(key), str):
            others[key] = about[key]
    return others


def _patience(reading: Reading, table: Table, name: str) -> FloatArray:
    """Seconds that clients wait; missing: as long as it takes."""
    raw = table[name]
    values = np.where(is_missing(raw), np.inf, parsed_numbers(raw, reading.decimal_comma))
    forever = np.fromiter(
        (isinstance(v, str) and v.strip().lower() in ("inf", "infinity") for v in raw), bool, len(raw)
    )
    values = np.where(forever, np.inf, values)
    bad = ~(values > 0)
    reading.refuse(table, name, raw, bad, "is not a positive number of seconds")
    return np.where(bad, np.inf, values)


def _blocks(
    reading: Reading,
    table: Table,
    about: dict[str, Any],
    prompt: TokenArray,
    answer: TokenArray,
    foreign: bool,
) -> Blocks | None:
    name = _optional(reading, table, "hash_ids", foreign)
    if name is None:
        return None
    offsets, ids = blocks_of(reading, table, name)
    tokens = about.get("hash_block_tokens")
    size = table.find(reading, "hash_block_tokens")
    if size is not None:
        sizes = whole(reading, table, size, least=1)
        reading.refuse(
            table, size, sizes, sizes != sizes[:1], f"differs from {sizes[:1].sum()}, the size of row 0"
        )
        tokens = int(sizes[0]) if sizes.size else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        tokens = DEFAULT_HASH_BLOCK_TOKENS
    blocks = Blocks(offsets, ids, tokens, own=True)
    named = blocks_in(prompt.astype(np.int64) + answer, tokens)  # ids beyond the prompt name the answer
    check_counts(reading, table, name, blocks, prompt, np.zeros(len(prompt), np.int64), named)
    return blocks


def _sessions(reading: Reading, table: Table, foreign: bool) -> TokenArray | None:
    """Numbers of the sessions, -1 for none."""
    name = _optional(reading, table, "session_id", foreign)
    if name is None:
        return None
    raw = table[name]
    numbers_only = parsed_numbers(raw, False)
    missing = is_missing(raw) | (numbers_only == -1)
    if (
        np.isfinite(numbers_only[~missing]).all()
        and (numbers_only[~missing] == np.floor(numbers_only[~missing])).all()
    ):
        values = numbers_only[~missing]
        if values.size == 0 or (values.min() >= 0 and values.max() < 2**31):
            return np.where(missing, -1, np.where(missing, 0, numbers_only)).astype(np.int32)
    labels = np.array([str(raw[row]) for row in np.flatnonzero(~missing)], dtype=object)
    sessions = np.full(len(raw), -1, np.int32)
    sessions[~missing] = dense_ids(np.array([f"s{label}" for label in labels], dtype=object))
    return sessions


def _waits(reading: Reading, table: Table, sessions: TokenArray | None, foreign: bool) -> Waits | None:
    """What rows wait for: as `after` says, else for the row of the session before where there is a delay."""
    delay, after = (_optional(reading, table, own, foreign) for own in ("delay_s", "after"))
    if after is not None:
        offsets, rows = _after(reading, table, after)
        waiting = np.diff(offsets) > 0
        return Waits(offsets, rows, _delays(reading, table, delay, ~waiting))
    if delay is None:
        return None
    if sessions is None:
        raise MalformedError(
            f"has column {delay!r}, but neither 'session_id' nor 'after' says after which answer"
        )
    given = ~is_missing(table[delay])
    before = last_of_session(sessions)
    waiting = given & (before >= 0)
    values = _delays(reading, table, delay, ~given)
    lost = given & (before < 0) & (values > 0)
    reading.refuse(table, delay, table[delay], lost, "has no earlier row of its session to wait for")
    offsets = np.concatenate([[0], np.cumsum(waiting)]).astype(np.int64)
    return Waits(offsets, before[waiting], values)


def last_of_session(sessions: TokenArray) -> NDArray[np.int64]:
    """The row of the same session before each row, -1 where there is none, (N,)."""
    order = np.argsort(sessions, kind="stable")
    before = np.full(len(sessions), -1, np.int64)
    same = (sessions[order][1:] == sessions[order][:-1]) & (sessions[order][1:] >= 0)
    before[order[1:][same]] = order[:-1][same]
    return before


def _delays(reading: Reading, table: Table, name: str | None, may_lack: NDArray[np.bool_]) -> FloatArray:
    if name is None:
        return np.zeros(table.num_rows)
    values = np.nan_to_num(numbers(reading, table, name, may_lack))
    bad = values < 0
    reading.refuse(table, name, table[name], bad, "is negative")
    return np.where(bad, 0.0, values)


def _after(reading: Reading, table: Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets and rows that rows wait for."""
    offsets, entries = lists_of(reading, table, name)
    rows = parsed_numbers(entries) if entries.size else np.zeros(0)
    owner = np.repeat(np.arange(table.num_rows), np.diff(offsets))
    bad = ~((rows >= 0) & (rows < owner) & (rows == np.floor(rows)))
    wrong = np.zeros(table.num_rows, bool)
    wrong[owner[bad]] = True
    reading.refuse(
        table, name, table[name], wrong, "names a row that is not an earlier one (rows count from 0)"
    )
    kept = ~bad
    counts = np.bincount(owner[kept], minlength=table.num_rows)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), rows[kept].astype(np.int64)
