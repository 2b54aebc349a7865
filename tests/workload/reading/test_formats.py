"""Each published format, from a made-up sample of five requests."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.reading.load import read_trace
from serving_gym.envs.workload.reading.options import ReadOptions
from serving_gym.envs.workload.schema import Workload

SAMPLES = Path(__file__).parent / "samples"
EXPECTED = {  # format, arrivals (of those that wait: the earliest), prompts, answers
    "own.csv": ("own columns (CSV)", [0, 0.5, 1.25, 2, 3.5], [700, 1100, 300, 800, 90], [10, 12, 9, 1, 30]),
    "own_sessions.jsonl": (
        "own columns (JSON Lines)",
        [0, 0.2, 1.0, 1.5, 2.0],
        [100, 120, 240, 220, 400],
        [10] * 5,
    ),
    "azure_2023.csv": (
        "Azure (CSV)",
        [0, 4.314579, 4.541877, 4.710427, 5.892655],
        [374, 396, 879, 91, 91],
        [44, 109, 55, 16, 1],
    ),
    "azure_2024.csv": (
        "Azure (CSV)",
        [0, 0.007405, 0.21707, 0.99007, 2.49007],
        [2162, 2399, 76, 2376, 7670],
        [5, 6, 15, 6, 1],
    ),
    "burstgpt.csv": (
        "BurstGPT (CSV)",
        [0, 40, 113, 295, 296],
        [472, 1087, 417, 90, 1360],
        [18, 230, 276, 1, 647],
    ),
    "mooncake.jsonl": (
        "Mooncake (JSON Lines)",
        [0, 1.535, 2.748, 2.748, 9],
        [655, 672, 1655, 100, 10],
        [52, 26, 1, 5, 5],
    ),
    "mooncake_sessions.jsonl": (
        "Mooncake with sessions (JSON Lines)",
        [0, 0.5, 3, 3.2505, 4.5],
        [600, 512, 1000, 1500, 900],
        [52] * 5,
    ),
    "mooncake_agentic.jsonl": (
        "Mooncake with sessions (JSON Lines)",
        [0, 0.2, 0.5, 0.55, 2],
        [600, 900, 700, 1500, 10],
        [40, 10, 20, 30, 5],
    ),
    "dynamo.jsonl": (
        "Dynamo request trace (JSON Lines)",
        [0, 0.2, 0.3, 0.6, 9],
        [128, 64, 100, 200, 64],
        [16] * 5,
    ),
    "weka.jsonl": (
        "Weka agentic trace (JSON Lines)",
        [0, 0, 0.6, 1.0, 4.5],
        [128, 130, 64, 200, 192],
        [20, 2, 9, 30, 2],
    ),
    "aiperf.jsonl": ("AIPerf records (JSON Lines)", [0, 1, 1, 5], [550, 551, 700, 52], [100, 90, 50, 1]),
    "vllm_bench.json": (
        "vllm bench serve (JSON)",
        [0, 0.5, 0.75, 1.5, 2.5],
        [100, 200, 50, 80, 70],
        [10, 20, 5, 8, 1],
    ),
    "sageserve.csv": ("SageServe (CSV)", [0, 1, 2, 2, 4], [300, 301, 302, 303, 304], [20, 20, 20, 1, 20]),
    "servegen.csv": ("ServeGen (CSV)", [0, 0.7, 0.8, 2, 2.5], [10, 15, 150, 1000, 15], [20, 25, 2, 200, 25]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_format_is_told_by_its_content(name, tmp_path):
    told, arrivals, prompts, answers = EXPECTED[name]
    file = tmp_path / "no_suffix"
    file.write_bytes((SAMPLES / name).read_bytes())
    workload, report = read_trace(file)
    assert report.format == told
    assert workload.arrival_s.tolist() == pytest.approx(arrivals, abs=1e-9)
    assert workload.input_tokens.tolist() == prompts
    assert workload.output_tokens.tolist() == answers
    assert report.warnings == ()


def test_every_sample_is_expected():
    assert {file.name for file in SAMPLES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", ["own.csv", "mooncake.jsonl", "vllm_bench.json"])
@pytest.mark.parametrize(
    "packed", ["gzip", "zstd", "utf-16", "byte order mark", "line ends", "last line open"]
)
def test_packing_changes_nothing(name, packed, tmp_path):
    content = (SAMPLES / name).read_bytes()
    text = content.decode()
    file = tmp_path / name
    file.write_bytes(
        {
            "gzip": gzip.compress(content),
            "zstd": pa.Codec("zstd").compress(content, asbytes=True),
            "utf-16": text.encode("utf-16"),
            "byte order mark": b"\xef\xbb\xbf" + content,
            "line ends": text.replace("\n", "\r\n").encode(),
            "last line open": text.rstrip("\n").encode(),
        }[packed]
    )
    workload, report = read_trace(file)
    assert workload.equals(read_trace(SAMPLES / name)[0])
    assert (packed in report.format) == (packed in ("gzip", "zstd"))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_separators(separator, tmp_path):
    text = (SAMPLES / "own.csv").read_text(encoding="utf-8").replace(",", separator)
    (tmp_path / "a.csv").write_text(text.replace(".", ",") if separator == ";" else text, encoding="utf-8")
    assert read_trace(tmp_path / "a.csv")[0].equals(read_trace(SAMPLES / "own.csv")[0])


@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("# made up\n# twice\n", ""), ("sep=,\r\n", ""), ("\n", "\n\n"), ("", ",\n")],
    ids=["plain", "comments", "spreadsheet", "blank lines", "open fields"],
)
def test_what_is_around_a_table(before, after, tmp_path):
    rows = f"0,5,6{after}\n1,7,8{after}\n".replace("\n\n\n", "\n\n")
    (tmp_path / "a.csv").write_text(f"{before}arrival_s,input_tokens,output_tokens\n{rows}", encoding="utf-8")
    workload, _ = read_trace(tmp_path / "a.csv")
    assert workload.arrival_s.tolist() == [0, 1]
    assert workload.output_tokens.tolist() == [6, 8]


@pytest.mark.parametrize(
    "header",
    [
        "Arrival_S,INPUT_TOKENS,Output Tokens",
        "arrival_time,prompt_tokens,completion_tokens",
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        '"timestamp",input_len,output_len',
    ],
)
def test_other_names_of_columns(header, tmp_path):
    (tmp_path / "a.csv").write_text(header + '\n0.0,"12",3\n1.5,40,5\n', encoding="utf-8")
    workload, _ = read_trace(tmp_path / "a.csv")
    assert workload.arrival_s.tolist() == [0.0, 1.5]
    assert workload.input_tokens.tolist() == [12, 40]


def test_columns_are_what_the_user_says(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("when,prompt,reply,llm\n0,12,3,small\n2,40,5,large\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"is no trace that can be read.*columns=\{arrival_s: NAME, ...\}"):
        read_trace(file)
    said = {"arrival_s": "when", "input_tokens": "prompt", "output_tokens": "reply", "model": "llm"}
    workload, report = read_trace(file, ReadOptions(columns=said))
    assert workload.models == ("small", "large")
    assert report.unused_columns == ()
    with pytest.raises(
        ValueError, match=r"a.csv: has no column 'promt' \(columns.input_tokens\); did you mean 'prompt'"
    ):
        read_trace(file, ReadOptions(columns={**said, "input_tokens": "promt"}))
    with pytest.raises(ValueError, match="unknown column in columns 'input'; did you mean 'input_tokens'"):
        ReadOptions(columns={"input": "prompt"})


def test_columns_of_a_publisher_name_what_was_served_there():
    plain, report = read_trace(SAMPLES / "burstgpt.csv")
    assert plain.models == ("",)
    assert report.unused_columns == ("Model", "Total tokens", "Log Type")
    named, report = read_trace(SAMPLES / "burstgpt.csv", ReadOptions(columns={"model": "Model"}))
    assert named.models == ("ChatGPT", "GPT-4")
    assert report.unused_columns == ("Total tokens", "Log Type")


def test_two_columns_for_one_thing_are_refused(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("arrival_s,prompt_tokens,context_tokens,output_tokens\n0,1,2,3\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match="'prompt_tokens' and 'context_tokens', which both may be input_tokens"
    ):
        read_trace(file)
    workload, _ = read_trace(file, ReadOptions(columns={"input_tokens": "context_tokens"}))
    assert workload.input_tokens.tolist() == [2]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_all_columns_come_back(suffix, tmp_path):
    rng = np.random.default_rng(5)
    workload = Workload(
        arrival_s=np.cumsum(rng.exponential(size=6)),
        input_tokens=rng.integers(40, 90, 6),
        output_tokens=rng.integers(1, 9, 6),
        predicted_tokens=rng.integers(1, 9, 6),
        priority=np.array([0, 1, 0, 0, 1, 0]),
        class_id=np.array([0, 1, 1, 0, 0, 1]),
        classes=("a", "b"),
        model_id=np.array([0, 1, 1, 0, 0, 1]),
        models=("m", "n"),
        hash_offsets=np.array([0, 2, 2, 4, 5, 6, 6]),
        hash_ids=np.array([1, 2, 1, 3, 1, 9]),
        hash_block_tokens=16,
        patience_s=np.array([np.inf, 1.5, 30.0, np.inf, np.inf, 2.0]),
        session_id=np.array([0, 1, 0, -1, 0, 1]),
        delay_s=np.array([0, 0, 0.1, 0, 0.3, 0.7]),
        after_offsets=np.array([0, 0, 0, 1, 1, 3, 4]),
        after=np.array([0, 0, 2, 1]),
    ).planned()
    back = read_trace(write_trace(workload.validate(), tmp_path / f"trace{suffix}"))[0]
    assert back.equals(workload)
    assert back.hash_block_tokens == 16
    plain = replace(workload, after=None, after_offsets=None, delay_s=None, session_id=None, patience_s=None)
    assert read_trace(write_trace(plain, tmp_path / f"plain{suffix}"))[0].equals(plain)
