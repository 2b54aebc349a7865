"""Results of ``vllm bench serve --save-result --save-detailed``, which ``runners.simulate`` writes as well.

One object with the lists ``input_lens, output_lens`` and ``start_times`` (seconds on a clock of its own). Source:
vllm-project/vllm, ``vllm/benchmarks/serve.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving_gym.envs.workload.reading.context import MalformedError, Reading
from serving_gym.envs.workload.reading.rows import Rows
from serving_gym.envs.workload.reading.tables import Table, column_of, whole
from serving_gym.envs.workload.reading.times import arrivals

_LISTS = ("start_times", "input_lens", "output_lens")


def is_vllm_bench(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is such a result."""
    return "input_lens" in record or ("total_input_tokens" in record and "request_throughput" in record)


def rows_of_vllm_bench(reading: Reading, records: list[dict[str, Any]]) -> tuple[Table, Rows]:
    """Requests of a run.

    Raises:
        MalformedError: several runs, no lists of single requests, lists of different lengths, or a refused entry.
    """
    if len(records) > 1:
        raise MalformedError(f"holds {len(records)} runs of vllm bench; keep one")
    columns = {}
    for name in _LISTS:
        values = records[0].get(name)
        if not isinstance(values, list):
            raise MalformedError(
                f"has no list {name!r} of its single requests: write it with --save-detailed of a vLLM that saves it"
            )
        columns[name] = column_of(values)
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise MalformedError(
            f"has lists of different lengths: {', '.join(f'{k} {v}' for k, v in sizes.items())}"
        )
    if not sizes["start_times"]:
        raise MalformedError("is empty: it holds no requests")
    table = Table(columns, sizes["start_times"])
    return table, Rows(
        format="vllm bench serve",
        arrival_s=arrivals(reading, table, "start_times", "s", True),
        input_tokens=whole(reading, table, "input_lens", least=1),
        output_tokens=whole(reading, table, "output_lens", least=0),
        sort=True,
        time_column="start_times",
    )
