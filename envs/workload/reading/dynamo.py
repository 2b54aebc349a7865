"""Dynamo's request traces, ``dynamo.request.trace.v1``: one event a line.

Read are `request_end` events: ``request.request_received_ms`` (or ``event_time_unix_ms`` less ``total_time_ms``),
``request.output_tokens`` and ``request.replay`` with ``trace_block_size, input_length, input_sequence_hashes``. One
with an ``agent_context`` belongs to its agent's session and waits for what
:mod:`~serving_gym.envs.workload.reading.graph` infers; tool times are part of the delays. Events may be wrapped in
``{"event": ...}``. Source: ai-dynamo/dynamo, "Request Replay Tracing".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from serving_gym.envs.workload.reading.blocks import Blocks, blocks_in, blocks_of, check_counts
from serving_gym.envs.workload.reading.context import MalformedError, Reading, counted
from serving_gym.envs.workload.reading.graph import recorded_waits
from serving_gym.envs.workload.reading.rows import Rows
from serving_gym.envs.workload.reading.tables import Table, is_missing, numbers, table_of_records, whole
from serving_gym.envs.workload.reading.times import arrivals
from serving_gym.envs.workload.schema import DEFAULT_HASH_BLOCK_TOKENS, FloatArray, TokenArray

SCHEMA = "dynamo.request.trace.v1"
_START, _EVENT, _TOTAL = "request.request_received_ms", "event_time_unix_ms", "request.total_time_ms"
_PROMPT, _ANSWER, _IDS = (
    "request.replay.input_length",
    "request.output_tokens",
    "request.replay.input_sequence_hashes",
)
_SIZE = "request.replay.trace_block_size"


def is_dynamo(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is an event of such a trace."""
    event = record.get("event") if isinstance(record.get("event"), dict) else record
    return isinstance(event, dict) and (
        event.get("schema") == SCHEMA or ("event_type" in event and "event_time_unix_ms" in event)
    )


def rows_of_dynamo(reading: Reading, records: list[dict[str, Any]]) -> tuple[Table, Rows]:
    """Requests of a trace.

    Raises:
        MalformedError: no request, another schema, or an entry that is refused.
    """
    table, contexts = _table(reading, records)
    start_ms, end_ms = _times(reading, table)
    order = np.lexsort((end_ms, start_ms))
    table = Table(
        {name: column[order] for name, column in table.columns.items()} | {_START: start_ms[order]},
        table.num_rows,
        places=[table.place(row) for row in order.tolist()],
        used=set(table.used),
    )
    agents, parents = _agents(contexts, order)
    first_ms = start_ms.min()
    waits = recorded_waits(
        (start_ms[order] - first_ms) / 1e3, (end_ms[order] - first_ms) / 1e3, agents, parents
    )
    prompt = whole(reading, table, _PROMPT, least=1)
    return table, Rows(
        format="Dynamo request trace",
        arrival_s=arrivals(reading, table, _START, "ms", True, waits.waiting),
        input_tokens=prompt,
        output_tokens=whole(reading, table, _ANSWER, least=0),
        blocks=_blocks(reading, table, prompt),
        sessions=_sessions(agents, parents),
        waits=waits,
        sort=True,
        time_column=_START,
    )


def _table(reading: Reading, records: list[dict[str, Any]]) -> tuple[Table, list[dict[str, Any]]]:
    flat, contexts, places, others = [], [], [], 0
    for number, record in enumerate(records):
        event = record["event"] if isinstance(record.get("event"), dict) else record
        schema = event.get("schema", SCHEMA)
        if schema != SCHEMA:
            raise MalformedError(f"row {number}, column 'schema': {schema!r} is not {SCHEMA!r}")
        if event.get("event_type", "request_end") != "request_end":
            others += 1
            continue
        request = _mapping(event.get("request"))
        replay = _mapping(request.get("replay"))
        flat.append(
            {
                _EVENT: event.get("event_time_unix_ms"),
                _START: request.get("request_received_ms"),
                _TOTAL: request.get("total_time_ms"),
                _PROMPT: replay.get("input_length", request.get("input_tokens")),
                _ANSWER: request.get("output_tokens"),
                _IDS: replay.get("input_sequence_hashes"),
                _SIZE: replay.get("trace_block_size"),
            }
        )
        contexts.append(_mapping(event.get("agent_context")))
        places.append(f"row {number}")
    if not flat:
        raise MalformedError("is empty: it holds no 'request_end' event")
    if others:
        reading.note(f"{counted(others, 'event')} of tools are part of the delays")
    return table_of_records(flat, places), contexts


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _times(reading: Reading, table: Table) -> tuple[FloatArray, FloatArray]:
    """Begin and end of each request, milliseconds of the epoch."""
    any_row = np.ones(table.num_rows, bool)
    start, event, total = (numbers(reading, table, name, any_row) for name in (_START, _EVENT, _TOTAL))
    span = np.where(np.isnan(total), np.maximum(event - start, 0.0), np.maximum(total, 0.0))
    span = np.nan_to_num(span)
    begin = np.where(np.isnan(start), event - span, start)
    reading.refuse(
        table, _START, table[_START], np.isnan(begin), "is missing, and 'event_time_unix_ms' as well", ""
    )
    begin = np.nan_to_num(begin)
    return begin, begin + span


def _agents(contexts: list[dict[str, Any]], order: Any) -> tuple[list[Hashable], dict[Hashable, Hashable]]:
    """The agent of each row, None for none, and who started whom."""
    key, parent_key = ("session_id", "parent_session_id")
    if any("trajectory_id" in context for context in contexts):
        key, parent_key = "trajectory_id", "parent_trajectory_id"
    agents: list[Hashable] = []
    parents: dict[Hashable, Hashable] = {}
    for row in order.tolist():
        context = contexts[row]
        agent = context.get(key)
        agents.append(None if agent is None else str(agent))
        if agent is not None and context.get(parent_key) is not None:
            parents.setdefault(str(agent), str(context[parent_key]))
    return agents, parents


def _sessions(agents: list[Hashable], parents: dict[Hashable, Hashable]) -> TokenArray | None:
    """Numbers of sessions: all agents that go back to one are of one session."""
    if all(agent is None for agent in agents):
        return None
    numbered: dict[Hashable, int] = {}
    sessions = []
    for agent in agents:
        root, seen = agent, {agent}
        while root in parents and parents[root] not in seen:
            root = parents[root]
            seen.add(root)
        sessions.append(-1 if agent is None else numbered.setdefault(root, len(numbered)))
    return np.array(sessions, np.int32)


def _blocks(reading: Reading, table: Table, prompt: TokenArray) -> Blocks | None:
    if is_missing(table[_IDS]).all():
        return None
    offsets, ids = blocks_of(reading, table, _IDS)
    sizes = whole(reading, table, _SIZE, least=1, fill=DEFAULT_HASH_BLOCK_TOKENS)
    given = ~is_missing(table[_SIZE])
    tokens = int(sizes[given][0]) if given.any() else DEFAULT_HASH_BLOCK_TOKENS
    reading.refuse(
        table, _SIZE, table[_SIZE], given & (sizes != tokens), f"is another block size than {tokens}"
    )
    blocks, fit = Blocks(offsets, ids, tokens), blocks_in(prompt, tokens)
    check_counts(reading, table, _IDS, blocks, prompt, fit, fit)
    return blocks
