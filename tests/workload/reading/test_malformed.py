"""Files that cannot be read: each gets one sentence with path, row and column."""

import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.reading.load import check_trace, read_trace
from serving_gym.runners import traces
from tests.tiers import given_in_tiers

SAMPLES = Path(__file__).parent / "samples"
OWN = "arrival_s,input_tokens,output_tokens\n"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 5}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b" \n\n", "is empty"),
        ("a.jsonl", b"[]", "is empty"),
        ("a.csv", OWN.encode(), "is empty"),
        ("a.csv", bytes(range(256)) * 8, "is not text: "),
        ("a.csv", OWN.encode() + b"0,5,\x005\n", "is not text: it has a zero byte at character"),
        ("a.csv", OWN.encode() + "0,5,é\n".encode("latin-1"), "is not text: byte 41 is not UTF-8"),
        ("a.csv.gz", gzip.compress(OWN.encode() * 99, mtime=0)[:40], "is a broken gzip file"),
        ("a.csv.gz", b"\x1f\x8bxx", "is a broken gzip file"),
        ("a.zst", pa.Codec("zstd").compress(OWN.encode() * 99, asbytes=True)[:20], "is a broken zstd file"),
        ("a.zip", b"PK\x03\x04rest", "is a zip archive, which is not read"),
        ("a.parquet", b"PAR1 and no more", "is not a parquet file"),
        ("a.csv", b"0,512,64\n1,512,64\n", "has no header: its first line holds numbers"),
        ("a.csv", b"0,1.2,0.9,Gamma,1,0.8\n600,1,1,Gamma,1,1\n", "client chunks of ServeGen hold rates, not requests"),
        ("a.csv", b"arrival_s input_tokens output_tokens\n0 5 5\n", "is no trace that can be read"),
        ("a.csv", OWN.encode() + b"0,5,5,7\n", "more fields than the header"),
        ("a.csv", OWN.encode() + b"0,5,5,7\n1,5,5,7\n", "more fields than the header"),
        ("a.csv", OWN.encode() + b"0,5,5\n1,5,5,5\n", "is not a table .row 1 has 4 fields, the header has 3"),
        ("a.csv", OWN.encode() + b"0,5\n", "row 0, column 'output_tokens': a missing value is not a number"),
        ("a.csv", OWN.encode() + b"0,5,5\nNaN,5,5\n", "row 1, column 'arrival_s': 'NaN' is not a number"),
        ("a.csv", OWN.encode() + b"0,5,5\ninf,5,5\n", "row 1, column 'arrival_s': 'inf' is not a number"),
        ("a.csv", OWN.encode() + b"-1,5,5\n", "row 0, column 'arrival_s': '-1' is negative"),
        ("a.csv", OWN.encode() + b"1e40,5,5\n", "row 0, column 'arrival_s': '1e[+]40' is too large"),
        ("a.csv", OWN.encode() + b"0,99999999999999999999999,5\n", "row 0, column 'input_tokens': .* is too large"),
        ("a.csv", OWN.encode() + b'0,"1,234",5\n', "'1,234' is not a number .write numbers without thousands"),
        ("a.csv", OWN.encode() + b"1,5,5\n0,5,5\n", "row 1, column 'arrival_s': '0' is earlier than the row before"),
        ("a.csv", b"arrival_s,input_tokens,input_tokens,output_tokens\n0,1,2,3\n", "has column 'input_tokens' twice"),
        ("a.csv", b"arrival_s,Input_Tokens,input tokens,output_tokens\n0,1,2,3\n", "one name twice"),
        ("a.csv", OWN[:-1].encode() + b",after\n0,5,5,\n1,5,5,2\n", "row 1, column 'after': '2' names a row that"),
        ("a.csv", OWN[:-1].encode() + b",after\n0,5,5,0\n", "row 0, column 'after': '0' names a row that"),
        ("a.csv", OWN[:-1].encode() + b",delay_s\n0,5,5,1\n", "neither 'session_id' nor 'after'"),
        ("a.csv", OWN[:-1].encode() + b",patience_s\n0,5,5,-1\n", "row 0, column 'patience_s': '-1.*' is not"),
        ("a.csv", OWN[:-1].encode() + b",class\n0,5,5,\n", "row 0, column 'class': a missing value is not a name"),
        ("a.jsonl", MOONCAKE.encode() + b"{oops}\n", "row 1 is not JSON"),
        ("a.jsonl", MOONCAKE.encode() + b"[1]\n", "row 1 is not a JSON object"),
        ("a.jsonl", b'{"timestamp": 0, "timestamp": 1, "input_length": 5}\n', "row 0 has key 'timestamp' twice"),
        ("a.jsonl", MOONCAKE.replace("5", "true", 1).encode(), "row 0, column 'input_length': 'True' is not a number"),
        ("a.jsonl", MOONCAKE.replace("5", "1e999", 1).encode(), "row 0, column 'input_length': 'inf' is not a number"),
        ("a.jsonl", MOONCAKE.replace("0", "[0]", 1).encode(), r"row 0, column 'timestamp': '\[0\]' is not a number"),
        ("a.jsonl", b'{"input_length": 5, "output_length": 5}\n', "has no column 'timestamp'"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", b'[{"conversations": []}]', "is a list of conversations without arrival times"),
        ("a.json", b'{"input_lens": [1], "output_lens": [1]}', "has no list 'start_times'"),
        ("a.json", b'{"input_lens": [1], "output_lens": [1], "start_times": []}', "lists of different lengths"),
        ("a.json", b'{"a": 1}', "is no trace that can be read"),
    ],
)  # fmt: skip
def test_one_sentence_with_the_path(name, content, message, tmp_path, capsys):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_trace(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
    assert traces.main(["validate", str(file)]) == 1
    assert "error: " in capsys.readouterr().out


def test_what_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        read_trace(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        read_trace(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="is not a regular file"):
        read_trace("/dev/null")


def test_parquet_columns_of_other_types(tmp_path):
    frame = pd.DataFrame({"arrival_s": [0, 1], "input_tokens": [5, 6], "output_tokens": [1, 2]})
    frame.assign(hash_ids=[["a", "b"], ["a", "c"]], session_id=["x", "y"]).to_parquet(tmp_path / "a.parquet")
    workload, _ = read_trace(tmp_path / "a.parquet")
    assert workload.hash_ids.tolist() == [0, 1, 0, 2]
    assert workload.session_id.tolist() == [0, 1]
    for column, values, message in (
        ("input_tokens", [True, False], "row 0, column 'input_tokens': 'True' is not a number"),
        ("output_tokens", [[1], [2]], "row 0, column 'output_tokens': .* is not a number"),
        ("arrival_s", [None, None], "row 0, column 'arrival_s': a missing value is not a number"),
    ):
        frame.assign(**{column: values}).to_parquet(tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=message):
            read_trace(tmp_path / "a.parquet")


def test_validate_lists_every_problem(tmp_path, capsys):
    file, out = tmp_path / "a.csv", tmp_path / "out" / "found.json"
    rows = ["0,5,5", "x,5,5", "2,-1,5", "3,5,1.5", *["4,many,5"] * 30]
    file.write_text(OWN + "\n".join(rows), encoding="utf-8")
    assert traces.main(["validate", str(file), f"out={out}"]) == 1
    shown = capsys.readouterr().out
    for each in (
        "row 1, column 'arrival_s': 'x' is not a number",
        "row 2, column 'input_tokens': '-1' is below 1",
        "row 3, column 'output_tokens': '1.5' is not a whole number",
        "row 23, column 'input_tokens': 'many' is not a number",
        "column 'input_tokens': 10 more: is not a number",
    ):
        assert each in shown
    assert "row 24" not in shown
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["good"] is False
    assert len(found["errors"]) == 23
    file.write_text(OWN + "0,5,5\n250,5,0\n900,5,5\n", encoding="utf-8")
    assert traces.main(["validate", f"path={file}", f"out={out}"]) == 0
    shown = capsys.readouterr().out
    assert "warning: times read as seconds" in shown
    assert "1 answer of 0 tokens becomes 1" in shown
    assert json.loads(out.read_text(encoding="utf-8"))["report"]["rows"] == 3


def test_describe_says_what_was_understood(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file, out = tmp_path / "a.jsonl", tmp_path / "a.json"
    file.write_text("".join(MOONCAKE.replace("0", str(0.2 * i), 1) for i in range(3)), encoding="utf-8")
    assert traces.main(["describe", f"path={file}", f"out={out}"]) == 0
    shown = capsys.readouterr().out
    assert "Mooncake (JSON Lines)" in shown
    assert "they look like seconds: time_unit=s" in shown
    assert traces.main(["describe", f"path={file}", "time_unit=s", f"out={out}"]) == 0
    assert "warning" not in capsys.readouterr().out
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures["duration_s"] == pytest.approx(0.4)
    assert figures["report"]["time_unit"] == "s"
    for word, message in (
        ("rebase=maybe", "true or false"),
        ("columns=x", "a mapping"),
        ("time_unit=h", "unknown time_unit"),
    ):
        assert traces.main(["describe", f"path={file}", word]) == 1
        assert message in capsys.readouterr().err


@given_in_tiers(
    st.sampled_from(sorted(file.name for file in SAMPLES.iterdir())),
    st.integers(0, 2**32),
    st.sampled_from(["cut", "byte", "number", "swap", "drop"]),
    default=60,
    full=1500,
)
def test_a_damaged_file_is_read_or_refused(name, seed, how):
    """Whatever is done to a file: a valid workload, or a ValueError that names it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(damaged((SAMPLES / name).read_bytes(), how, np.random.default_rng(seed)))
        refused = refusal(file)
        assert check_trace(file).good == (not refused)


def refusal(file):
    """The sentence that refuses a file; empty where it is read."""
    try:
        workload, report = read_trace(file)
    except ValueError as error:
        sentence = str(error)
    else:
        workload.validate()
        json.dumps(report.to_json())
        return ""
    assert sentence.startswith(f"{file}: ")
    assert "\n" not in sentence
    return sentence


def damaged(content, how, rng):
    """A file with something cut off, changed, swapped or left out."""
    if how == "cut":
        return content[: rng.integers(len(content))]
    if how == "byte":
        place = int(rng.integers(len(content)))
        return content[:place] + bytes([rng.integers(256)]) + content[place + 1 :]
    if how == "number":
        digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
        place = int(rng.choice(digits))
        values = [
            b"",
            b"-1",
            b"NaN",
            b"1e400",
            b'"x"',
            b"null",
            b"99999999999999999999",
            b"1.5",
            b"[1]",
            b"true",
        ]
        return content[:place] + values[rng.integers(len(values))] + content[place + 1 :]
    lines = content.splitlines(keepends=True)
    first, second = rng.integers(len(lines), size=2)
    if how == "swap":
        lines[first], lines[second] = lines[second], lines[first]
    else:
        del lines[first]
    return b"".join(lines)


def test_a_damaged_parquet_is_read_or_refused(tmp_path):
    rng = np.random.default_rng(2)
    file = write_trace(read_trace(SAMPLES / "own.csv")[0], tmp_path / "a.parquet")
    content = file.read_bytes()
    refused = 0
    for _ in range(100):
        file.write_bytes(damaged(content, ("cut", "byte")[rng.integers(2)], rng))
        refused += refusal(file) != ""
    assert 40 < refused < 100  # half of them are cut short; some single bytes change nothing
