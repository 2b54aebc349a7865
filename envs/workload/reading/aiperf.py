"""AIPerf's records of single requests, ``profile_export.jsonl``.

Each line has ``metadata`` (``request_start_ns, request_end_ns, x_correlation_id, conversation_id, turn_index,
benchmark_phase``) and ``metrics`` (``input_sequence_length, output_sequence_length`` with a ``value`` each). Turns of a
conversation wait for one another. Requests of the warm-up and those without lengths (failed ones) are left out. Source:
ai-dynamo/aiperf, "Per-Request Records JSONL".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from serving_gym.envs.workload.reading.context import MalformedError, Reading, counted
from serving_gym.envs.workload.reading.graph import recorded_waits
from serving_gym.envs.workload.reading.rows import Rows
from serving_gym.envs.workload.reading.tables import Table, numbers, table_of_records, whole
from serving_gym.envs.workload.reading.times import arrivals

_START, _END = "metadata.request_start_ns", "metadata.request_end_ns"
_PROMPT, _ANSWER = "metrics.input_sequence_length", "metrics.output_sequence_length"


def is_aiperf(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is such a record."""
    return isinstance(record.get("metadata"), dict) and ("metrics" in record or "error" in record)


def rows_of_aiperf(reading: Reading, records: list[dict[str, Any]]) -> tuple[Table, Rows]:
    """Requests of a run.

    Raises:
        MalformedError: no request, or an entry that is refused.
    """
    flat, places, conversations = [], [], list[Hashable]()
    warm_up = failed = 0
    for number, record in enumerate(records):
        about, metrics = (record.get(key) for key in ("metadata", "metrics"))
        if not isinstance(about, dict):
            raise MalformedError(f"row {number}, column 'metadata': is not an object")
        if about.get("benchmark_phase") == "warmup":
            warm_up += 1
            continue
        prompt = _value(metrics, "input_sequence_length", "input_token_count")
        if prompt is None:
            failed += 1
            continue
        answer = _value(metrics, "output_sequence_length", "output_token_count")
        flat.append(
            {
                _START: about.get("request_start_ns"),
                _END: about.get("request_end_ns"),
                _PROMPT: prompt,
                _ANSWER: 0 if answer is None else answer,
            }
        )
        conversations.append(about.get("x_correlation_id") or about.get("conversation_id"))
        places.append(f"row {number}")
    for count, what in ((warm_up, "of the warm-up"), (failed, "that failed, without lengths,")):
        if count:
            reading.note(f"{counted(count, 'request')} {what} left out")
    if not flat:
        raise MalformedError("is empty: it holds no request that was answered")
    return _rows(reading, table_of_records(flat, places), conversations)


def _rows(reading: Reading, table: Table, conversations: list[Hashable]) -> tuple[Table, Rows]:
    start = numbers(reading, table, _START)
    order = np.argsort(start, kind="stable")
    table = Table(
        {name: column[order] for name, column in table.columns.items()},
        table.num_rows,
        places=[table.place(row) for row in order.tolist()],
    )
    start_s = (numbers(reading, table, _START) - start.min()) / 1e9
    end_s = np.fmax((numbers(reading, table, _END, np.ones(len(order), bool)) - start.min()) / 1e9, start_s)
    labels = [str(conversations[row]) if conversations[row] else None for row in order.tolist()]
    several = {label for label, count in Counter(labels).items() if label is not None and count > 1}
    agents: list[Hashable] = [label if label in several else None for label in labels]
    numbered = {label: number for number, label in enumerate(dict.fromkeys(each for each in agents if each))}
    waits = recorded_waits(start_s, end_s, agents, {}) if several else None
    return table, Rows(
        format="AIPerf records",
        arrival_s=arrivals(reading, table, _START, "ns", True, None if waits is None else waits.waiting),
        input_tokens=whole(reading, table, _PROMPT, least=1),
        output_tokens=whole(reading, table, _ANSWER, least=0),
        sessions=np.array([numbered.get(each, -1) for each in agents], np.int32) if several else None,
        waits=waits,
        sort=True,
        time_column=_START,
    )


def _value(metrics: Any, *names: str) -> Any:
    for name in names:
        value = metrics.get(name) if isinstance(metrics, dict) else None
        if value is not None:
            return value.get("value") if isinstance(value, dict) else value
    return None
