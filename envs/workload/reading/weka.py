"""Weka's agentic traces (SemiAnalysis' ``cc-traces-weka``): an object a session, with its requests and sub-agents.

An object has ``id, block_size, hash_id_scope`` ("local": ids are the session's own) and ``requests``. A request has
``t`` and ``api_time`` (seconds from the session's beginning, and until its answer ended), ``in`` and ``out`` (or
``input_length, output_length``) and ``hash_ids``; an entry of type "subagent" has an ``agent_id`` and its ``requests``.
What waits for what is inferred by :mod:`~serving_gym.envs.workload.reading.graph`. The files do not say when
sessions begin: all begin at once. Source: the WEKA trace schema of ai-dynamo/aiperf and ai-dynamo/aisimulate.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from serving_gym.envs.workload.ragged import offsets_of
from serving_gym.envs.workload.reading.blocks import Blocks, blocks_in, blocks_of, check_counts
from serving_gym.envs.workload.reading.context import MalformedError, Reading
from serving_gym.envs.workload.reading.graph import recorded_waits
from serving_gym.envs.workload.reading.rows import Rows, Waits
from serving_gym.envs.workload.reading.tables import Table, is_missing, numbers, table_of_records, whole
from serving_gym.envs.workload.reading.times import arrivals
from serving_gym.envs.workload.schema import FloatArray, TokenArray

_DEFAULT_BLOCK_TOKENS = 64
_DEEPEST = 50


def is_weka(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a session of such a trace."""
    return isinstance(record.get("requests"), list)


def rows_of_weka(reading: Reading, records: list[dict[str, Any]]) -> tuple[Table, Rows]:
    """Requests of a trace.

    Raises:
        MalformedError: a session without requests, block sizes that differ, or an entry that is refused.
    """
    flat: list[dict[str, Any]] = []
    places: list[str] = []
    agents: list[Hashable] = []
    parents: dict[Hashable, Hashable] = {}
    session: list[int] = []
    scopes: list[int] = []
    tokens = _block_tokens(records)
    for number, record in enumerate(records):
        before = len(flat)
        if not is_weka(record):
            raise MalformedError(f"row {number} has no list 'requests'")
        _flatten(record["requests"], f"row {number}", (number, ""), flat, places, agents, parents, 0)
        session += [number] * (len(flat) - before)
        local = record.get("hash_id_scope", "local") != "global"
        scopes += [number + 1 if local else 0] * (len(flat) - before)
    if not flat:
        raise MalformedError("is empty: its sessions hold no requests")
    table, order = _sorted(reading, flat, places, session)
    ordered = [agents[row] for row in order.tolist()]
    sessions, scope = np.array(session, np.int32)[order], np.array(scopes, np.int64)[order]
    waits = _waits(reading, table, sessions, ordered, parents)
    prompt = whole(reading, table, "in", least=1)
    if len(records) > 1:
        reading.note("all sessions begin at once, as the file does not say when")
    return table, Rows(
        format="Weka agentic trace",
        arrival_s=arrivals(reading, table, "t", "s", True, waits.waiting),
        input_tokens=prompt,
        output_tokens=whole(reading, table, "out", least=0),
        blocks=_blocks(reading, table, prompt, scope, tokens),
        sessions=sessions,
        waits=waits,
        sort=True,
        time_column="t",
    )


def _flatten(
    entries: Any,
    place: str,
    agent: tuple[int, str],
    flat: list[dict[str, Any]],
    places: list[str],
    agents: list[Hashable],
    parents: dict[Hashable, Hashable],
    depth: int,
) -> None:
    """Appends the requests of an agent, then those of its sub-agents."""
    if depth > _DEEPEST:
        raise MalformedError(f"{place}: sub-agents are nested more than {_DEEPEST} deep")
    if not isinstance(entries, list):
        raise MalformedError(f"{place}, column 'requests': is not a list")
    for number, entry in enumerate(entries):
        where = f"{place}, request {number}"
        if not isinstance(entry, dict):
            raise MalformedError(f"{where} is not a JSON object")
        if "requests" in entry or entry.get("type") == "subagent":
            child = (agent[0], f"{agent[1]}/{entry.get('agent_id', number)}#{number}")
            parents[child] = agent
            _flatten(entry.get("requests"), where, child, flat, places, agents, parents, depth + 1)
            continue
        flat.append(
            {
                "t": entry.get("t"),
                "api_time": entry.get("api_time"),
                "in": entry.get("in", entry.get("input_length")),
                "out": entry.get("out", entry.get("output_length")),
                "hash_ids": entry.get("hash_ids"),
            }
        )
        places.append(where)
        agents.append(agent)


def _sorted(
    reading: Reading, flat: list[dict[str, Any]], places: list[str], session: list[int]
) -> tuple[Table, Any]:
    """Requests session after session, those of a session in order of time."""
    table = table_of_records(flat, places)
    start = numbers(reading, table, "t")
    order = np.lexsort((start, np.array(session)))
    columns = {name: column[order] for name, column in table.columns.items()}
    return Table(columns, len(order), places=[places[row] for row in order.tolist()]), order


def _waits(
    reading: Reading,
    table: Table,
    sessions: TokenArray,
    agents: list[Hashable],
    parents: Mapping[Hashable, Hashable],
) -> Waits:
    """What requests wait for, session by session."""
    start_s = numbers(reading, table, "t")
    took_s = np.nan_to_num(numbers(reading, table, "api_time", np.ones(table.num_rows, bool)))
    end_s = start_s + np.maximum(took_s, 0.0)
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(sessions)) + 1, [len(sessions)]])
    counts, after, delays = [], [], list[FloatArray]()
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = recorded_waits(start_s[first:last], end_s[first:last], agents[first:last], parents)
        counts.append(np.diff(part.offsets))
        after.append(part.after + first)
        delays.append(part.delay_s)
    return Waits(offsets_of(np.concatenate(counts)), np.concatenate(after), np.concatenate(delays))


def _block_tokens(records: list[dict[str, Any]]) -> int:
    sizes = {}
    for number, record in enumerate(records):
        size = record.get("block_size", _DEFAULT_BLOCK_TOKENS)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
            raise MalformedError(
                f"row {number}, column 'block_size': {size!r} is not a positive whole number"
            )
        sizes[size] = number
    if len(sizes) > 1:
        raise MalformedError(
            f"row {max(sizes.values())}, column 'block_size': sessions have {sorted(sizes)}; one is needed"
        )
    return next(iter(sizes), _DEFAULT_BLOCK_TOKENS)


def _blocks(reading: Reading, table: Table, prompt: TokenArray, scope: Any, tokens: int) -> Blocks | None:
    if is_missing(table["hash_ids"]).all():
        return None
    offsets, ids = blocks_of(reading, table, "hash_ids", scope)
    blocks = Blocks(offsets, ids, tokens)
    check_counts(
        reading,
        table,
        "hash_ids",
        blocks,
        prompt,
        prompt.astype(np.int64) // tokens,
        blocks_in(prompt, tokens),
    )
    return blocks
