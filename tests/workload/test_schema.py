"""The request table: construction, checks, and the operations that derive one workload from another."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.envs.workload.schema import Workload, counts_per_bin, variation


def workload(n=6, **changes):
    columns = {
        "arrival_s": np.arange(n) * 0.5,
        "input_tokens": np.arange(1, n + 1) * 10,
        "output_tokens": np.arange(1, n + 1),
        "name": "small",
    }
    return Workload(**{**columns, **changes})


def hashed(n=6, **changes):
    lengths = np.arange(n) % 3
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return workload(n, hash_offsets=offsets, hash_ids=np.arange(offsets[-1]) + 5, **changes)


def blocks(table):
    return [
        table.hash_ids[a:b].tolist()
        for a, b in zip(table.hash_offsets[:-1], table.hash_offsets[1:], strict=True)
    ]


@st.composite
def workloads(draw):
    n = draw(st.integers(1, 30))
    gaps = draw(st.lists(st.floats(0, 50), min_size=n, max_size=n))
    tokens = st.lists(st.integers(1, 10_000), min_size=n, max_size=n)
    lengths = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = draw(st.lists(st.integers(0, 9), min_size=int(offsets[-1]), max_size=int(offsets[-1])))
    hashes = (
        {"hash_offsets": offsets, "hash_ids": np.array(ids, dtype=np.int32)} if draw(st.booleans()) else {}
    )
    return Workload(
        arrival_s=np.cumsum(gaps), input_tokens=draw(tokens), output_tokens=draw(tokens), name="drawn", **hashes
    )  # fmt: skip


def test_defaults_are_filled_and_typed():
    table = workload().validate()
    assert table.arrival_s.dtype == np.float64
    assert {table.input_tokens.dtype, table.max_output_tokens.dtype, table.priority.dtype} == {
        np.dtype(np.int32)
    }
    assert table.max_output_tokens.tolist() == [6] * 6
    assert table.priority.tolist() == table.class_id.tolist() == [0] * 6
    assert len(table) == 6
    assert table.duration_s == 2.5
    assert table.rate_rps == 2.0


def test_rate_of_one_request_is_not_a_number():
    assert math.isnan(workload(1).rate_rps)
    assert math.isnan(variation(np.empty(0)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival_s": [0, 1, np.nan, 3, 4, 5]}, r"'small': row 2, column 'arrival_s': nan is not a finite"),
        ({"arrival_s": [-1, 1, 2, 3, 4, 5]}, r"row 0, column 'arrival_s': -1.0 is negative"),
        ({"arrival_s": [0, 1, 0.5, 3, 4, 5]}, r"row 2, column 'arrival_s': 0.5 is earlier"),
        ({"input_tokens": [1, 1, 1, 0, 1, 1]}, r"row 3, column 'input_tokens': 0 is below 1"),
        ({"output_tokens": [1, 1, 1, 1, -4, 1]}, r"row 4, column 'output_tokens': -4 is below 1"),
        (
            {"max_output_tokens": [6, 6, 2, 6, 6, 6]},
            r"row 2, column 'max_output_tokens': 2 is below output_tokens",
        ),
        ({"class_id": [0, 0, 0, 0, 0, 1]}, r"row 5, column 'class_id': 1 is not an index"),
        ({"priority": [0, 0]}, r"column 'priority' has 2 rows, arrival_s has 6"),
        ({"hash_ids": [1]}, "hash_ids and hash_offsets must be given together"),
        ({"hash_ids": [1], "hash_offsets": [0, 1]}, "'hash_offsets' must have 7 entries"),
        ({"hash_ids": [1], "hash_offsets": [0, 1, 0, 1, 1, 1, 1]}, "row 1, column 'hash_offsets'"),
        ({"hash_block_tokens": 0}, "hash_block_tokens must be at least 1"),
        ({"predicted_tokens": [5, 0, 5, 5, 5, 5]}, r"row 1, column 'predicted_tokens': 0 is below 1"),
        ({"predicted_tokens": [5]}, "column 'predicted_tokens' has 1 rows, arrival_s has 6"),
    ],
)
def test_validate_names_row_and_column(changes, message):
    with pytest.raises(ValueError, match=message):
        workload(**changes).validate()


@pytest.mark.parametrize("tokens", [[1, 2, 3.5, 4, 5, 6], [1, 2, np.nan, 4, 5, 6], [1, 2, 2**40, 4, 5, 6]])
def test_construction_refuses_tokens_that_are_not_whole_numbers(tokens):
    with pytest.raises(ValueError, match="row 2, column 'input_tokens'"):
        workload(input_tokens=tokens)
    with pytest.raises(ValueError, match="must hold whole numbers"):
        workload(input_tokens=["a"] * 6)


def test_empty_is_refused():
    with pytest.raises(ValueError, match="is empty"):
        workload(0).validate()
    with pytest.raises(ValueError, match="at least one workload"):
        Workload.merge()


def test_window_counts_from_its_start_and_keeps_its_blocks():
    part = hashed().window(0.5, 2.0).validate()
    assert part.arrival_s.tolist() == [0.0, 0.5, 1.0]
    assert blocks(part) == blocks(hashed())[1:4]
    assert part.max_output_tokens.tolist() == [6] * 3
    with pytest.raises(ValueError, match="no request between 90"):
        hashed().window(90.0, 91.0)


def test_shift_and_scale_refuse_nonsense():
    assert workload().shifted(3.0).arrival_s[0] == 3.0
    with pytest.raises(ValueError, match="before 0"):
        workload().shifted(-1.0)
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive number"):
            workload().with_rate_scale(factor)
    with pytest.raises(ValueError, match="at least 1 request"):
        workload().head(0)


def test_rows_are_copies():
    whole = hashed()
    part = whole.head(3)
    part.arrival_s[0] = 99.0
    part.hash_ids[:] = 0
    assert whole.arrival_s[0] == 0.0
    assert whole.hash_ids.min() == 5


def test_merge_unites_classes_and_separates_blocks():
    chat = hashed(4, classes=("chat",), name="chat", provenance="here")
    code = workload(3, classes=("code", "chat"), class_id=[0, 1, 0], name="code")
    merged = Workload.merge(chat, code, chat).validate()
    assert len(merged) == 11
    assert merged.name == "chat+code+chat"
    assert merged.classes == ("chat", "code")
    assert np.bincount(merged.class_id).tolist() == [9, 2]
    assert merged.hash_ids.size == 2 * chat.hash_ids.size
    assert np.unique(merged.hash_ids).size == 2 * np.unique(chat.hash_ids).size
    with pytest.raises(ValueError, match="differ in size"):
        Workload.merge(chat, hashed(hash_block_tokens=16))


def test_predicted_lengths_go_with_their_rows():
    table = workload(predicted_tokens=[7, 8, 9, 10, 11, 12]).validate()
    assert table.predicted_tokens.dtype == np.int32
    assert table.window(1.0, 2.0).predicted_tokens.tolist() == [9, 10]
    assert table.with_rate_scale(2.0).predicted_tokens.tolist() == table.predicted_tokens.tolist()
    copied = table.copy()
    assert copied.equals(table)
    copied.predicted_tokens[0] = 1
    assert not copied.equals(table)
    assert table.predicted_tokens[0] == 7
    assert not workload().equals(table)
    merged = Workload.merge(table, table.shifted(0.25)).validate()
    assert merged.predicted_tokens.tolist() == [7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12]
    assert table.summary()["predicted_tokens"]["mean"] == 9.5
    with pytest.raises(ValueError, match="'predicted_tokens' and 'bare' without it"):
        Workload.merge(table, workload(name="bare"))


def test_summary_and_digest():
    table = hashed(classes=("a", "b"), class_id=[0, 0, 0, 0, 1, 1])
    figures = table.summary()
    assert figures["requests"] == 6
    assert figures["classes"] == {"a": 4, "b": 2}
    assert figures["interarrival_cv"] == 0.0
    assert figures["repeated_block_ratio"] == 0.0
    assert table.sha256() == workload().sha256() != workload(5).sha256()
    assert "hash" not in repr(table)


def test_counts_leave_out_the_unfinished_bin():
    assert counts_per_bin(np.array([5.0, 5.1, 15.0, 26.0]), 10.0).tolist() == [2, 1]


@given(workloads(), st.floats(0.1, 10.0), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_derived_workloads_stay_valid(table, factor, n):
    table.validate()
    assert np.allclose(table.with_rate_scale(factor).validate().arrival_s * factor, table.arrival_s)
    assert len(table.head(n).validate()) == min(n, len(table))
    assert table.copy().equals(table)
    assert pickle.loads(pickle.dumps(table)).equals(table)
    assert table.head(1).equals(table) == (len(table) == 1)


@given(st.lists(workloads(), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_merge_keeps_every_request(parts):
    merged = Workload.merge(*parts).validate()
    for column in ("input_tokens", "output_tokens", "max_output_tokens"):
        given_values = np.concatenate([getattr(part, column) for part in parts])
        assert np.array_equal(np.sort(getattr(merged, column)), np.sort(given_values))
    if any(part.hash_ids is not None for part in parts):
        assert merged.hash_ids.size == sum(part.hash_ids.size for part in parts if part.hash_ids is not None)
    assert Workload.merge(parts[0]).equals(parts[0]) or parts[0].hash_ids is not None
