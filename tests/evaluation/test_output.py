import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from serving_gym.runners.reporting.output import (
    write_json,
    write_json_columns,
    write_jsonl,
    write_parquet,
    write_text,
)
from serving_gym.runners.reporting.tables import format_value


def test_json_is_strict(tmp_path: Path) -> None:
    write_json(tmp_path / "deep" / "a.json", {"a": math.inf, "b": math.nan, "c": (1, 2.5)})
    assert json.loads((tmp_path / "deep" / "a.json").read_text()) == {"a": None, "c": [1, 2.5]}
    write_jsonl(tmp_path / "b.jsonl", [{"a": 1}, {"a": -math.inf}])
    assert (tmp_path / "b.jsonl").read_text() == '{"a": 1}\n{"a": null}\n'


def test_columns_are_the_same_text_as_the_whole(tmp_path: Path) -> None:
    columns = {
        "itls": [[0.25, 0.25], [], [0.1], [0.1, 0.2], [math.inf, math.inf], [-0.0, 0.0], [1.0, 1], [[0.5]]],
        "ttfts": [0.1, math.inf, math.nan],
        "errors": ["", 'refused "x"'],
        "lens": np.arange(3).tolist(),
        "array": np.array([0.5, math.nan]),
        "goodput": None,
        "nothing": math.nan,
        "none": [],
    }
    write_json(tmp_path / "whole.json", columns, indent=None)
    write_json_columns(tmp_path / "columns.json", columns)
    assert (tmp_path / "columns.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, pd.DataFrame({"a": [1]}))
    with pytest.raises(ValueError, match="Duplicate column names"):
        write_parquet(path, pd.DataFrame([[1, 2]], columns=["a", "a"]))
    assert pd.read_parquet(path)["a"].tolist() == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_place_names_the_file(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "x")
    with pytest.raises(OSError, match="file"):
        write_text(tmp_path / "file" / "below", "x")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (math.nan, "-"), (math.inf, "inf"), (-math.inf, "-inf"), (0.123456, "0.1235"), (12345.6, "12,346"),
        (3, "3"), ((1.0, 0.5, math.inf), "1 [0.5, inf]"), ("x", "x"),
    ],
)  # fmt: skip
def test_values_are_short(value: object, shown: str) -> None:
    assert format_value(value) == shown
