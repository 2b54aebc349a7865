"""Reading and writing trace files, and fetching published ones."""

import functools
import http.server
import json
import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from serving_gym.envs.workload.fetch import fetch_trace
from serving_gym.envs.workload.formats import load_file, write_trace
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.traces import DATA_VARIABLE, TRACES, find_trace, load_trace, spread_arrivals

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,0
2023-11-16 18:15:51.2224670,879,55
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 600, "output_length": 0, "hash_ids": []}
{"timestamp": 3000, "input_length": 700, "output_length": 4, "hash_ids": [0, 9]}
"""


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return Workload(
        arrival_s=np.cumsum(rng.exponential(size=50)),
        input_tokens=rng.integers(1, 900, 50),
        output_tokens=rng.integers(1, 90, 50),
        priority=rng.integers(0, 2, 50),
        class_id=rng.integers(0, 2, 50),
        classes=("b", "a"),
        hash_offsets=np.arange(51) * 2,
        hash_ids=rng.integers(0, 30, 100),
        hash_block_tokens=16,
        name="mine",
        provenance="by hand",
    )


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_parquet_round_trip_loses_nothing(tmp_path, table):
    back = load_file(write_trace(table, tmp_path / "new" / "mine.parquet"))
    assert back.equals(table)
    assert (back.name, back.provenance, back.hash_block_tokens) == ("mine", "by hand", 16)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_predicted_lengths_are_kept(tmp_path, table, kind):
    predicted = np.random.default_rng(1).integers(1, 200, 50)
    back = load_file(write_trace(replace(table, predicted_tokens=predicted), tmp_path / f"mine.{kind}"))
    assert back.predicted_tokens.tolist() == predicted.tolist()


def test_csv_round_trip_keeps_the_requests(tmp_path, table):
    back = load_file(write_trace(table, tmp_path / "mine.csv"))
    order = [back.classes.index(name) for name in table.classes]
    same = replace(back, classes=table.classes, class_id=np.argsort(order)[back.class_id])
    assert same.equals(table)
    with pytest.raises(ValueError, match=r"must end in .csv, .parquet or .jsonl"):
        write_trace(table, tmp_path / "mine.xlsx")


def test_azure_csv(tmp_path):
    trace = load_file(write(tmp_path, "azure.csv", AZURE))
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-9)
    assert trace.input_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 1, 55]
    assert trace.max_output_tokens.tolist() == [55] * 3


def test_burstgpt_csv(tmp_path):
    trace = load_file(write(tmp_path, "burst.csv", BURSTGPT))
    assert trace.arrival_s.tolist() == [0.0, 40.0]
    assert trace.output_tokens.tolist() == [18, 1]


def test_mooncake_jsonl(tmp_path):
    trace = load_file(write(tmp_path, "mooncake.jsonl", MOONCAKE))
    assert trace.arrival_s.tolist() == [0.0, 3.0, 3.0]
    assert trace.hash_offsets.tolist() == [0, 3, 3, 5]
    assert trace.hash_ids.tolist() == [0, 1, 2, 0, 9]


def test_parquet_of_the_reference_data_layout(tmp_path):
    frame = pd.DataFrame({"arrival_s": [0.0, 1.0], "input_tokens": [3, 4], "output_tokens": [1, 0]})
    frame.assign(hash_ids=[[1, 2], [7]]).to_parquet(tmp_path / "t.parquet")
    trace = load_file(tmp_path / "t.parquet")
    assert trace.hash_ids.tolist() == [1, 2, 7]
    assert trace.output_tokens.tolist() == [1, 1]
    assert trace.hash_block_tokens == 512


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", AZURE.replace("396", "x"), r"a.csv: row 1, column 'ContextTokens': 'x' is not a number"),
        (
            "a.csv",
            AZURE.replace("396", ""),
            r"row 1, column 'ContextTokens': a missing value is not a number",
        ),
        ("a.csv", AZURE.replace("396", "0"), r"row 1, column 'ContextTokens': .*0.* is below 1"),
        (
            "a.csv",
            AZURE.replace("396", "1.5"),
            r"row 1, column 'ContextTokens': .*1.5.* is not a whole number",
        ),
        ("a.csv", AZURE.replace("18:15:50", "25:99:50"), r"row 1, column 'TIMESTAMP': .* is not a date"),
        ("a.csv", AZURE.replace("18:15:50", "18:15:59"), r"row 2, column 'TIMESTAMP': .* earlier"),
        (
            "a.csv",
            AZURE.replace("ContextTokens", "Context"),
            r"has no column 'input_tokens', nor .*'Context'",
        ),
        ("a.csv", AZURE.splitlines()[0] + "\n", "is empty"),
        ("a.csv", "", "is not a table"),
        ("a.csv", 'arrival_s,input_tokens,output_tokens\n1,2\n3,4,5,6,7\n"', "is not a table"),
        ("a.csv", "input_tokens,output_tokens\n1,2\n", "without arrival times"),
        (
            "a.csv",
            "arrival_s,input_tokens,output_tokens\n0,3e9,2\n",
            "row 0, column 'input_tokens': .* too large",
        ),
        (
            "a.csv",
            "arrival_s,input_tokens,output_tokens\n0,3,-2\n",
            "row 0, column 'output_tokens': .* below 0",
        ),
        ("a.csv", "arrival_s,input_tokens,output_tokens,after\n0,3,2,1 b\n", "row 0, column 'after'"),
        (
            "a.csv",
            "arrival_s,input_tokens,output_tokens,predicted_tokens\n0,3,2,0\n",
            "row 0, column 'predicted_tokens': 0 is below 1",
        ),
        ("a.jsonl", MOONCAKE.replace("600", "true!"), "row 1 is not JSON"),
        ("a.jsonl", "[1]\n", "row 0 is not a JSON object"),
        (
            "a.jsonl",
            MOONCAKE.replace('"input_length": 600, ', ""),
            "row 1, column 'input_length': .* is not a number",
        ),
        ("a.jsonl", MOONCAKE.replace("[]", "[[1]]"), "row 1, column 'hash_ids'"),
        ("a.jsonl", "", "is empty"),
        ("a.parquet", "hello", "is not a parquet file"),
        ("a.txt", "hello", "is no trace that can be read: .* readable: CSV"),
    ],
)
def test_malformed_files_give_one_sentence(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_file(write(tmp_path, name, text))
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_absent_file():
    with pytest.raises(ValueError, match=r"nowhere\.csv does not exist"):
        load_file("nowhere.csv")


def test_spread_keeps_order_and_step():
    times = np.repeat(np.arange(0.0, 60.0, 3.0), 7)
    spread = spread_arrivals(times, 3.0, np.random.default_rng(0))
    assert (np.diff(spread) >= 0).all()
    assert np.array_equal(np.floor(spread / 3.0) * 3.0, times)
    assert np.unique(spread).size == spread.size


def test_absent_trace_says_how_to_get_it(no_traces):
    assert find_trace("azure_conv") is None
    with pytest.raises(ValueError, match=r"python -m runners.traces fetch name=azure_conv"):
        load_trace("azure_conv")


def test_trace_is_found_in_the_data_folder_and_below(tmp_path, monkeypatch, table, no_traces):
    (tmp_path / "traces").mkdir()
    write_trace(table, tmp_path / "traces" / TRACES["azure_conv"].file)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert load_trace("azure_conv").equals(table)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "traces"))
    assert load_trace("azure_conv").name == "azure_conv"
    assert not load_trace("azure_conv", spread_s=5.0).equals(table)
    with pytest.raises(ValueError, match="spread_s must be at least 0"):
        load_trace("azure_conv", spread_s=-1.0)


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder on the local machine; ``cut`` announces more bytes than it sends."""

    cut = False


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send_header(self, key, value):
        if key == "Content-Length" and self.server.cut:
            value = str(int(value) + 100)
        super().send_header(key, value)


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, folder
    server.shutdown()
    server.server_close()


def publish(folder, info, rows):
    path = folder / info.source_path
    path.parent.mkdir(parents=True, exist_ok=True)
    line = '{{"timestamp": {}, "input_length": 600, "output_length": 5, "hash_ids": [0, {}]}}\n'
    path.write_text("".join(line.format(250 * row, row + 1) for row in range(rows)), encoding="utf-8")


def test_fetch_installs_a_verified_trace(tmp_path, mirror, monkeypatch):
    server, folder = mirror
    info, cache = TRACES["mooncake_synthetic"], tmp_path / "cache"
    base_url = f"http://127.0.0.1:{server.server_port}/"
    publish(folder, info, info.published_rows)
    path = fetch_trace(info, base_url, cache, show_progress=False)
    monkeypatch.setenv(DATA_VARIABLE, str(cache))
    trace = load_trace(info.name)
    assert len(trace) == info.published_rows
    assert trace.hash_ids.size == 2 * len(trace)
    sidecar = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert sidecar["rows"] == 3993
    assert sidecar["trace_sha256"] == trace.sha256()
    fetch_trace(info, base_url, cache, show_progress=False)
    assert sorted(entry.name for entry in cache.iterdir()) == sorted(
        [path.name, path.with_suffix(".json").name]
    )

    before = path.read_bytes()
    source = folder / info.source_path
    source.write_text(source.read_text(encoding="utf-8").replace("600", "601"), encoding="utf-8")
    with pytest.raises(ValueError, match="now has SHA-256"):
        fetch_trace(info, base_url, cache, show_progress=False)
    assert path.read_bytes() == before


def test_failed_fetches_leave_nothing(tmp_path, mirror):
    server, folder = mirror
    info, cache = TRACES["mooncake_synthetic"], tmp_path / "cache"
    base_url = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(ValueError, match=r"cannot download .* 404"):
        fetch_trace(info, base_url, cache, show_progress=False)
    publish(folder, info, 17)
    with pytest.raises(ValueError, match="has 17 requests, the published trace has 3993"):
        fetch_trace(info, base_url, cache, show_progress=False)
    server.cut = True
    with pytest.raises(ValueError, match=r"cut short|cannot download"):
        fetch_trace(info, base_url, cache, show_progress=False)
    assert list(cache.iterdir()) == []


def test_malformed_address(tmp_path):
    with pytest.raises(ValueError, match="cannot download"):
        fetch_trace(TRACES["azure_code"], "no-such-scheme", tmp_path, show_progress=False)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_models_and_regions_survive_a_file(tmp_path, suffix):
    """A fleet of several endpoints reads from them where a request goes."""
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 2.0]),
        input_tokens=np.array([10, 20, 30]),
        output_tokens=np.array([1, 2, 3]),
        model_id=np.array([1, 0, 1]),
        models=("small", "large"),
        region_id=np.array([0, 1, 0]),
        regions=("east", "west"),
    )
    again = load_file(write_trace(workload, tmp_path / f"trace{suffix}"))
    assert [again.models[i] for i in again.model_id] == ["large", "small", "large"]
    assert [again.regions[i] for i in again.region_id] == ["east", "west", "east"]
