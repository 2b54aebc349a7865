"""Sessions from files: who waits for whom, and how long."""

import json
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.reading.graph import recorded_waits
from serving_gym.envs.workload.reading.load import read_trace
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload

SAMPLES = Path(__file__).parent / "samples"


def waits(workload):
    """Per row: the rows that it waits for, and the delay."""
    rows = np.split(workload.after, workload.after_offsets[1:-1])
    return [(row.tolist(), pytest.approx(delay)) for row, delay in zip(rows, workload.delay_s, strict=True)]


@pytest.mark.parametrize(
    ("name", "expected", "sessions"),
    [
        # Row 3 was written before row 2, but can arrive earlier; the last row joins both.
        ("own_sessions.jsonl", [([], 0), ([], 0), ([0], 1), ([0], 1.5), ([3, 2], 0.5)], [0, 1, 0, 0, 0]),
        # Delays of 3 s and 250.5 ms, and 4.5 s less 0.5 s between the timestamps of session b.
        ("mooncake_sessions.jsonl", [([], 0), ([], 0), ([0], 3), ([2], 0.2505), ([1], 4)], [0, 1, 0, 0, 1]),
        # Fan-out to two, 100 + 400 ms of tools for the second, and a join.
        (
            "mooncake_agentic.jsonl",
            [([], 0), ([0], 0.2), ([0], 0.5), ([1, 2], 0.05), ([], 0)],
            [0, 0, 0, 0, -1],
        ),
        # Ends: parent 1.0 s, first child 1.7 s, second child 2.2 s; the parent goes on at 2.5 s.
        ("dynamo.jsonl", [([], 0), ([0], 0.2), ([0], 0.3), ([0, 1, 2], 0.3), ([], 0)], [0, 0, 0, 0, 1]),
        # The sub-agent begins 0.6 s after the first answer (2.0 s) and ends at 3.6 s; the parent goes on at 4.0 s.
        ("weka.jsonl", [([], 0), ([], 0), ([0], 0.6), ([0, 2], 0.4), ([1], 4.5)], [0, 1, 0, 0, 1]),
        ("aiperf.jsonl", [([], 0), ([], 0), ([0], 1), ([], 0)], [0, -1, 0, -1]),
    ],
)
def test_samples(name, expected, sessions):
    workload, report = read_trace(SAMPLES / name)
    assert waits(workload) == expected
    assert workload.session_id.tolist() == sessions
    assert report.waiting_rows == sum(bool(rows) for rows, _ in expected)


def test_hash_ids_of_a_session_are_its_own_unless_the_file_says_global(tmp_path):
    text = (SAMPLES / "weka.jsonl").read_text(encoding="utf-8")
    local = read_trace(SAMPLES / "weka.jsonl")[0]
    (tmp_path / "global.jsonl").write_text(text.replace('"local"', '"global"'), encoding="utf-8")
    shared = read_trace(tmp_path / "global.jsonl")[0]
    assert np.unique(local.hash_ids).size == 7
    assert np.unique(shared.hash_ids).size == 5  # 3 names two blocks: one that begins a prompt, one after 2
    assert local.hash_block_tokens == 64


def test_a_delay_without_after_follows_the_session(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text(
        "arrival_s,input_tokens,output_tokens,session_id,delay_s\n0,1,1,x,\n1,1,1,y,\n,1,1,x,2.5\n,1,1,x,1\n9,1,1,y,\n",
        encoding="utf-8",
    )
    workload, _ = read_trace(file)
    assert waits(workload) == [([], 0), ([], 0), ([0], 2.5), ([2], 1), ([], 0)]
    assert workload.arrival_s.tolist() == [0, 1, 2.5, 3.5, 9]
    assert workload.session_id.tolist() == [0, 1, 0, 0, 1]


def test_requests_of_an_agent_that_overlap_do_not_wait_for_one_another():
    start_s, end_s = np.array([0.0, 2.0, 2.5, 6.0]), np.array([1.0, 5.0, 4.0, 7.0])
    found = recorded_waits(start_s, end_s, ["a"] * 4, {})
    assert np.split(found.after, found.offsets[1:-1])[0].tolist() == []
    assert [part.tolist() for part in np.split(found.after, found.offsets[1:-1])] == [[], [0], [0], [1]]
    assert found.delay_s.tolist() == [0, 1, 1.5, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"session_id": "b", "timestamp": 0}, {"session_id": "a", "delay": 5}],
            "row 1, column 'timestamp': is missing in the first turn",
        ),
        ([{"timestamp": 0, "delay": 5}], "has column 'delay', but no 'session_id'"),
        (
            [{"session_id": "a", "timestamp": 0}, {"session_id": "a"}],
            "row 1, column 'timestamp': is missing where a turn has no delay",
        ),
        (
            [{"session_id": "a", "timestamp": 9}, {"session_id": "a", "timestamp": 5}],
            "row 1, column 'timestamp': '5.*' is earlier than the turn before",
        ),
        (
            [{"session_id": "a", "timestamp": 9}, {"session_id": "a", "delay": -5}],
            "row 1, column 'delay': '-5.*' is negative",
        ),
        (
            [{"request_id": "a", "timestamp": 0}, {"request_id": "b", "wait_for": ["c"]}],
            "row 1, column 'wait_for': .* names a request that is not in an earlier row",
        ),
        ([{"request_id": "a", "timestamp": 0, "wait_for": []}] * 2, "has request_id 'a' twice"),
    ],
)
def test_broken_mooncake_sessions(rows, message, tmp_path):
    file = tmp_path / "a.jsonl"
    lengths = {"input_length": 5, "output_length": 5}
    file.write_text("".join(json.dumps({**row, **lengths}) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_trace(file)


def test_windows_hold_whole_sessions(tmp_path):
    rng = np.random.default_rng(1)
    turns, rows = 3, 300
    first = np.sort(rng.uniform(0, 1000, rows))
    workload = Workload(
        arrival_s=np.repeat(first, turns),
        input_tokens=np.tile([10, 20, 30], rows),
        output_tokens=np.full(rows * turns, 5),
        session_id=np.repeat(np.arange(rows), turns),
        delay_s=np.tile([0.0, 40.0, 70.0], rows),
        after_offsets=np.concatenate([[0], np.cumsum(np.tile([0, 1, 1], rows))]),
        after=np.flatnonzero(np.tile([1, 1, 0], rows)),
    ).planned()
    path = str(write_trace(workload.validate(), tmp_path / "trace.parquet"))
    for split in ("train", "validation", "test"):
        for number in (None, 50):
            spec = WorkloadSpec(name="file", path=path, split=split, num_requests=number)
            part = WorkloadSource(spec).sample(3).validate()
            assert set(np.bincount(part.session_id)[np.unique(part.session_id)]) == {turns}
            assert part.arrival_s[0] == 0
            if number is not None:
                assert 50 - turns < len(part) <= 50


def test_clients_of_a_closed_loop_have_no_sessions():
    spec = WorkloadSpec(name="file", path=str(SAMPLES / "weka.jsonl"), split="all", num_clients=2)
    with pytest.raises(
        ValueError, match="wait for answers, a closed loop of its own; num_clients must be 0, got 2"
    ):
        WorkloadSource(spec).sample(0)
