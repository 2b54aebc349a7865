"""Mooncake: JSON Lines of requests with prefix blocks of 512 tokens, and its extension by sessions.

``timestamp`` (milliseconds), ``input_length, output_length`` and, optionally, ``hash_ids``. Source:
kvcache-ai/Mooncake, FAST'25 release. Turns of a session share a ``session_id``; a later one waits for the turn before
and then ``delay`` (or ``delay_ms``) milliseconds, or the difference of their timestamps. Source: ai-dynamo/dynamo,
"DynoSim Runs" (formats ``mooncake`` and ``agentic_mooncake``) and ai-dynamo/aiperf (``mooncake_trace``). In its agentic
form rows have a ``request_id`` and wait for all that ``wait_for`` names, and then ``delay + tool_wait_ms``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.reading.blocks import (
    Blocks,
    blocks_in,
    blocks_of,
    check_counts,
    inferred_size,
    lists_of,
)
from serving_gym.envs.workload.reading.context import MalformedError, Reading, counted
from serving_gym.envs.workload.reading.options import UNITS_PER_S
from serving_gym.envs.workload.reading.own import last_of_session
from serving_gym.envs.workload.reading.rows import Rows, Waits
from serving_gym.envs.workload.reading.tables import Table, is_missing, numbers, whole
from serving_gym.envs.workload.reading.times import arrivals
from serving_gym.envs.workload.schema import DEFAULT_HASH_BLOCK_TOKENS, FloatArray, TokenArray


def is_mooncake(table: Table) -> bool:
    """Whether a table of JSON objects is Mooncake's."""
    return table.has("input_length") or (table.has("timestamp", "hash_ids") and not table.has("input_tokens"))


def rows_of_mooncake(reading: Reading, table: Table) -> Rows:
    """Requests of a Mooncake trace.

    Raises:
        MalformedError: a needed column is missing, an entry is refused, or a first turn has no time.
    """
    prompt, answer = table.need(reading, "input_tokens"), table.need(reading, "output_tokens")
    time = table.known.get("timestamp") or table.find(reading, "arrival_s")
    if time is None:
        raise MalformedError(
            "has no column 'timestamp': its requests have no arrival times (traces for a fixed concurrency have none)"
        )
    sessions = _sessions(table)
    waits = (
        _explicit(reading, table, time) if table.has("wait_for") else _turns(reading, table, sessions, time)
    )
    arrival_s = arrivals(reading, table, time, "ms", True, None if waits is None else waits.waiting)
    if waits is not None:
        waits = Waits(waits.offsets, waits.after, _delays(reading, table, waits, time))
    input_tokens = whole(reading, table, prompt, least=1)
    return Rows(
        format="Mooncake" if sessions is None and waits is None else "Mooncake with sessions",
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=whole(reading, table, answer, least=0),
        blocks=_blocks(reading, table, input_tokens),
        sessions=sessions,
        waits=waits,
        time_column=time,
    )


def _blocks(reading: Reading, table: Table, prompt: TokenArray) -> Blocks | None:
    name = table.find(reading, "hash_ids")
    if name is None:
        return None
    offsets, ids = blocks_of(reading, table, name)
    size = table.find(reading, "hash_block_tokens")
    if size is not None:
        tokens = int(whole(reading, table, size, least=1)[0])
    else:
        tokens = inferred_size(np.diff(offsets), prompt, DEFAULT_HASH_BLOCK_TOKENS)
        if tokens != DEFAULT_HASH_BLOCK_TOKENS:
            reading.note(f"prefix ids cover {tokens} tokens each, as their numbers say")
    blocks = Blocks(offsets, ids, tokens)
    fit = blocks_in(prompt, tokens)
    check_counts(reading, table, name, blocks, prompt, fit, fit)
    return blocks


def _sessions(table: Table) -> TokenArray | None:
    if not table.has("session_id"):
        return None
    raw = table[table.known["session_id"]]
    missing = is_missing(raw)
    numbered: dict[str, int] = {}
    return np.array(
        [
            -1 if gone else numbered.setdefault(str(value), len(numbered))
            for value, gone in zip(raw, missing, strict=True)
        ],
        np.int32,
    )


def _turns(reading: Reading, table: Table, sessions: TokenArray | None, time: str) -> Waits | None:
    """A later turn waits for the one before it."""
    delays = [table.known[name] for name in ("delay", "delay_ms") if table.has(name)]
    if sessions is None:
        if delays and not all(is_missing(table[name]).all() for name in delays):
            raise MalformedError(f"has column {delays[0]!r}, but no 'session_id' says after which turn")
        return None
    before = last_of_session(sessions)
    waiting = before >= 0
    reading.refuse(
        table, time, table[time], is_missing(table[time]) & ~waiting,
        "is missing in the first turn of a session", "",
    )  # fmt: skip
    offsets = np.concatenate([[0], np.cumsum(waiting)]).astype(np.int64)
    return Waits(offsets, before[waiting], np.zeros(table.num_rows))


def _explicit(reading: Reading, table: Table, time: str) -> Waits:
    """Rows wait for the requests that they name."""
    if not table.has("request_id"):
        raise MalformedError("has column 'wait_for', but no 'request_id' that it could name")
    ids = [str(each) for each in table[table.known["request_id"]]]
    number = {name: row for row, name in enumerate(ids)}
    twice = next((name for row, name in enumerate(ids) if number[name] != row), None)
    if twice is not None:
        raise MalformedError(f"has request_id {twice!r} twice")
    name = table.known["wait_for"]
    offsets, entries = lists_of(reading, table, name)
    owner = np.repeat(np.arange(table.num_rows), np.diff(offsets))
    rows = np.array([number.get(str(entry), -1) for entry in entries], np.int64)
    bad = (rows < 0) | (rows >= owner)
    wrong = np.zeros(table.num_rows, bool)
    wrong[owner[bad]] = True
    reading.refuse(table, name, table[name], wrong, "names a request that is not in an earlier row")
    counts = np.bincount(owner[~bad], minlength=table.num_rows)
    return Waits(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), rows[~bad], np.zeros(table.num_rows)
    )


def _delays(reading: Reading, table: Table, waits: Waits, time: str) -> FloatArray:
    """Seconds between an answer and the next turn."""
    unit = reading.times[0]
    per_s = UNITS_PER_S.get(unit, 1e3)
    total = np.full(table.num_rows, np.nan)
    for name, scale in (("delay", per_s), ("delay_ms", 1e3), ("tool_wait_ms", 1e3)):
        if table.has(name):
            column = table.known[name]
            values = numbers(reading, table, column, np.ones(table.num_rows, bool)) / scale
            bad = values < 0
            reading.refuse(table, column, table[column], bad, "is negative")
            total = np.where(np.isnan(values) | bad, total, np.nan_to_num(total) + values)
    return _inferred(reading, table, waits, time, total, per_s)


def _inferred(
    reading: Reading, table: Table, waits: Waits, time: str, total: FloatArray, per_s: float
) -> NDArray[np.float64]:
    """Differences of timestamps where no delay is given."""
    lacking = waits.waiting & np.isnan(total)
    if lacking.any() and not table.has("wait_for"):
        raw = numbers(reading, table, time, np.ones(table.num_rows, bool)) / per_s
        before = np.zeros(table.num_rows, np.int64)
        before[waits.waiting] = waits.after
        gap_s = raw - raw[before]
        none = lacking & np.isnan(gap_s)
        reading.refuse(table, time, table[time], none, "is missing where a turn has no delay", "")
        negative = lacking & (gap_s < 0)
        reading.refuse(table, time, table[time], negative, "is earlier than the turn before")
        total = np.where(lacking, np.maximum(np.nan_to_num(gap_s), 0.0), total)
        reading.note(
            f"{counted(int(lacking.sum()), 'turn')} without a delay: after the difference of the timestamps"
        )
    return np.nan_to_num(total)
