"""The page of trace formats: examples of each, with what the reader says of them, and what it refuses.

Every example is read when the page is written, so that the page says what the readers do.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from serving_gym.envs.workload.reading.load import read_trace
from serving_gym.envs.workload.reading.tables import ALIASES
from serving_gym.runners.documentation.markdown import block, code, table
from serving_gym.runners.documentation.schemas import prose_of

PATH = "docs/traces.md"
_READERS = "serving_gym.envs.workload.reading"
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")  # of Sphinx, in docstrings


@dataclass(frozen=True)
class TraceFormat:
    """A format of trace files.

    Attributes:
        title: Its name.
        file: Name of the example.
        content: The example, two requests.
        columns: What is read, with units: names and meanings in turn.
        told_by: How the content tells it.
        reader: Module of `envs.workload.reading` whose docstring describes it further, and names its source; "": none.
    """

    title: str
    file: str
    content: str
    columns: tuple[tuple[str, str], ...]
    told_by: str
    reader: str = ""


_PROMPT, _ANSWER = "prompt, tokens, at least 1", "answer, tokens; 0: it failed"
_OWN_COLUMNS = (
    ("arrival_s", "arrival, s, never decreasing"),
    ("input_tokens", _PROMPT),
    ("output_tokens", _ANSWER),
    ("max_output_tokens", "limit that the client declares, tokens; optional, as all below"),
    ("predicted_tokens", "predicted answer, tokens"),
    ("priority", "whole number; the lower is served first"),
    ("class", "name of the request class"),
    ("model, region", "where it goes in a fleet of several endpoints"),
    ("hash_ids", "prefix blocks of the prompt"),
    ("hash_block_tokens", "tokens a block, 512 if missing"),
    ("session_id", "session of a chat or an agent"),
    (
        "delay_s",
        "s after the answer to the session's request before; without it the row arrives at `arrival_s`",
    ),
    ("after", "numbers of earlier rows, from 0, whose answers it waits for"),
    ("patience_s", "s until the client hangs up"),
)
_MOONCAKE = (
    ("timestamp", "arrival, ms"),
    ("input_length", _PROMPT),
    ("output_length", _ANSWER),
    ("hash_ids", "prefix blocks of 512 tokens; optional"),
)
_DYNAMO = (
    '{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": {"session_id": "p"}, '
    '"request": {"request_received_ms": %d, "total_time_ms": 1000, "output_tokens": 16, '
    '"replay": {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": [%s]}}}\n'
)
_AIPERF = (
    '{"metadata": {"conversation_id": "c", "x_correlation_id": "c", "turn_index": %d, '
    '"request_start_ns": %d, "request_end_ns": %d, "benchmark_phase": "profiling"}, '
    '"metrics": {"input_sequence_length": {"value": %d}, "output_sequence_length": {"value": 12}}}\n'
)
TRACE_FORMATS = (
    TraceFormat(
        "Own columns",
        "own.csv",
        "arrival_s,input_tokens,output_tokens,priority,class\n0.0,700,10,0,chat\n0.5,1100,12,1,code\n",
        _OWN_COLUMNS,
        "the first three columns; CSV, parquet or JSON Lines",
    ),
    TraceFormat(
        "Sessions in own columns",
        "sessions.jsonl",
        '{"arrival_s": 0.0, "input_tokens": 100, "output_tokens": 10, "session_id": "a"}\n'
        '{"input_tokens": 220, "output_tokens": 10, "session_id": "a", "delay_s": 1.5, "patience_s": 30}\n',
        _OWN_COLUMNS[-4:],
        "`session_id` or `after` beside own columns",
    ),
    TraceFormat(
        "Columns by other names",
        "other.csv",
        "request_time;prompt_len;completion_tokens\n0,5;700;10\n1,5;300;20\n",
        tuple((own, f"also {', '.join(map(code, ALIASES[own][1:]))}") for own in list(ALIASES)[:3]),
        "another name of each needed column; `workload.columns={arrival_s: NAME}` names others",
    ),
    TraceFormat(
        "Azure 2023",
        "azure_2023.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
        (("TIMESTAMP", "arrival, a date"), ("ContextTokens", _PROMPT), ("GeneratedTokens", _ANSWER)),
        "its three columns",
    ),
    TraceFormat(
        "Azure 2024",
        "azure_2024.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,6\n",
        (
            ("TIMESTAMP", "arrival, a date with time zone"),
            ("ContextTokens", _PROMPT),
            ("GeneratedTokens", _ANSWER),
        ),
        "its three columns",
    ),
    TraceFormat(
        "BurstGPT",
        "burstgpt.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n",
        (("Timestamp", "arrival, s"), ("Request tokens", _PROMPT), ("Response tokens", _ANSWER)),
        "its three columns",
    ),
    TraceFormat(
        "SageServe",
        "sageserve.csv",
        "request_id,arrival_timestamp,batch_size,prompt_size,token_size\n0,0,1,300,20\n1,1,1,301,20\n",
        (("arrival_timestamp", "arrival, s"), ("prompt_size", _PROMPT), ("token_size", _ANSWER)),
        "its three columns",
    ),
    TraceFormat(
        "ServeGen",
        "servegen.csv",
        "request_id,timestamp,input_tokens,output_tokens\n0,0.5,10,20\n1,1.2,15,25\n",
        (("timestamp", "arrival, s"), ("input_tokens", _PROMPT), ("output_tokens", _ANSWER)),
        "its four columns",
    ),
    TraceFormat(
        "Mooncake",
        "mooncake.jsonl",
        '{"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 1535, "input_length": 672, "output_length": 26, "hash_ids": [46, 47]}\n',
        _MOONCAKE,
        "`timestamp`, `input_length`, `output_length` in JSON Lines",
    ),
    TraceFormat(
        "Mooncake with sessions",
        "mooncake_sessions.jsonl",
        '{"session_id": "a", "timestamp": 0, "input_length": 600, "output_length": 52, "hash_ids": [1, 2]}\n'
        '{"session_id": "a", "delay": 3000, "input_length": 1000, "output_length": 52, "hash_ids": [1, 2]}\n',
        (
            *_MOONCAKE,
            ("session_id", "its session"),
            ("delay, delay_ms", "ms after the answer to the turn before"),
        ),
        "`session_id` beside Mooncake's",
    ),
    TraceFormat(
        "Mooncake, agentic",
        "mooncake_agentic.jsonl",
        '{"request_id": "plan", "timestamp": 0, "input_length": 600, "output_length": 40}\n'
        '{"request_id": "read", "input_length": 900, "output_length": 10, "wait_for": ["plan"], "delay": 200}\n',
        (
            *_MOONCAKE,
            ("request_id", "its name"),
            ("wait_for", "names of earlier requests whose answers it waits for"),
            ("delay, tool_wait_ms", "ms after the last of them, added"),
        ),
        "`request_id` with `wait_for` beside Mooncake's",
        "mooncake",
    ),
    TraceFormat(
        "Dynamo",
        "dynamo.jsonl",
        _DYNAMO % (1777312800000, "11, 12") + _DYNAMO % (1777312802000, "11, 13"),
        (
            ("request.request_received_ms", "arrival, ms"),
            ("request.total_time_ms", "ms until the answer ended"),
            ("request.output_tokens", _ANSWER),
            ("request.replay.input_length", _PROMPT),
            ("request.replay.input_sequence_hashes", "prefix blocks of `trace_block_size` tokens"),
            ("agent_context.session_id", "the agent; optional"),
        ),
        "`schema` is `dynamo.request.trace.v1`",
        "dynamo",
    ),
    TraceFormat(
        "Weka",
        "weka.jsonl",
        '{"id": "t0", "block_size": 64, "hash_id_scope": "local", "requests": ['
        '{"t": 0.0, "type": "s", "in": 128, "out": 20, "hash_ids": [1, 2], "api_time": 2.0}, '
        '{"t": 4.0, "type": "n", "in": 192, "out": 30, "hash_ids": [1, 2, 3], "api_time": 1.0}]}\n',
        (
            ("requests[].t", "s from the session's beginning"),
            ("requests[].in", _PROMPT),
            ("requests[].out", _ANSWER),
            ("requests[].api_time", "s until the answer ended"),
            ("requests[].hash_ids", "prefix blocks of `block_size` tokens"),
        ),
        "an object a session with `requests`",
        "weka",
    ),
    TraceFormat(
        "AIPerf",
        "profile_export.jsonl",
        _AIPERF % (0, 1765000000000000000, 1765000001000000000, 100)
        + _AIPERF % (1, 1765000003000000000, 1765000004000000000, 220),
        (
            ("metadata.request_start_ns, request_end_ns", "beginning and end, ns"),
            ("metadata.conversation_id, turn_index", "its conversation and turn"),
            ("metrics.input_sequence_length.value", _PROMPT),
            ("metrics.output_sequence_length.value", _ANSWER),
        ),
        "`metadata` and `metrics`",
        "aiperf",
    ),
    TraceFormat(
        "vllm bench serve",
        "vllm_bench.json",
        '{"input_lens": [100, 200], "output_lens": [10, 20], "start_times": [1000.5, 1001.0], '
        '"total_input_tokens": 300, "request_throughput": 1.0}\n',
        (("start_times", "arrival, s"), ("input_lens", _PROMPT), ("output_lens", _ANSWER)),
        "its lists (`--save-result --save-detailed`)",
        "vllm_bench",
    ),
)
_HEAD = "arrival_s,input_tokens,output_tokens"
# Name and content of files that are refused.
REFUSED = (
    ("empty.csv", f"{_HEAD}\n"),
    ("backwards.csv", f"{_HEAD}\n1,5,5\n0,5,5\n"),
    ("missing.csv", f"{_HEAD}\n0,5,\n"),
    ("thousands.csv", f'{_HEAD}\n0,"1,234",5\n'),
    ("prompt.csv", f"{_HEAD}\n0,0,5\n"),
    ("fields.csv", f"{_HEAD}\n0,5,5,7\n"),
    ("header.csv", "0,512,64\n1,512,64\n"),
    ("after.csv", f"{_HEAD},after\n0,5,5,\n1,5,5,2\n"),
    ("lengths.csv", "input_tokens,output_tokens\n5,5\n"),
    ("chats.json", '[{"conversations": []}]'),
    ("wait_for.jsonl", '{"request_id": "b", "timestamp": 0, "input_length": 5, "output_length": 5, "wait_for": ["c"]}'),
    ("bench.json", '{"input_lens": [1], "output_lens": [1]}'),
)  # fmt: skip
_LEAD = """# Trace formats

`workload=file workload.path=FILE` plays a trace in any of these formats, plain, gzip or zstd. The content tells the
format, not the name; letter case does not matter, and CSV may be separated by commas, semicolons, tabs or bars. What
the reader understood is the first line of a run, shown below each example. `workload.time_unit`, `workload.rebase`,
`workload.columns` and `workload.max_gap_s` [override it](workloads.md#files-of-your-own).

    python -m runners.traces describe path=FILE
    python -m runners.traces validate FILE"""


def traces_page() -> str:
    """The page.

    Raises:
        ValueError: An example is not read, or one that is to be refused is read.
    """
    rows = ([f"[{one.title}](#{_anchor(one.title)})", one.told_by] for one in TRACE_FORMATS)
    text = [_LEAD, table(["format", "told by"], rows)]
    for one in TRACE_FORMATS:
        text += _section(one)
    text += ["## Refused", "A file is refused with one sentence that names file, row and column:"]
    text.append(
        table(["last line of the file", "sentence"], ([code(line), said] for line, said in refusals()))
    )
    return "\n\n".join(text) + "\n"


def _section(one: TraceFormat) -> Iterator[str]:
    yield f"## {one.title}"
    yield table(["read", "is"], ([code(name), meaning] for name, meaning in one.columns))
    yield block(one.content)
    yield f"Understood as: {understood(one.file, one.content)}."
    if one.reader:
        said = prose_of(import_module(f"{_READERS}.{one.reader}")).partition("\n\n")[2]
        yield _ROLE.sub(r"`\1`", said).replace("``", "`")


def understood(name: str, content: str) -> str:
    """What the reader says of a file, without its path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(content, encoding="utf-8")
        return read_trace(path)[1].line.removeprefix(f"{path}: ")


def refusals(files: Sequence[tuple[str, str]] = REFUSED) -> Iterator[tuple[str, str]]:
    """Last line of each file, and the sentence that refuses it.

    Raises:
        ValueError: One of them is read.
    """
    for name, content in files:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(content, encoding="utf-8")
            try:
                read_trace(path)
            except ValueError as error:
                yield content.splitlines()[-1], str(error).removeprefix(f"{path}: ")
                continue
        raise ValueError(f"{name} is to be refused, and was read")


def _anchor(title: str) -> str:
    """The anchor of a heading."""
    return title.lower().replace(",", "").replace(" ", "-")
