import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.envs.interface.metrics import (
    FAILED,
    FINISHED,
    REFUSED,
    UNFINISHED,
    RequestRecords,
    percentiles,
    summarise,
    to_jsonable,
)
from serving_gym.envs.interface.slo import SLO

NAN = math.nan
SLOS = {"standard": SLO(ttft_s=1.0, tpot_s=0.1), "long": SLO(ttft_s=10.0, tpot_s=0.1)}


def make_records(**columns: Any) -> RequestRecords:
    """Records with the given columns; the others get plain values."""
    rows = len(columns["arrival_s"])
    plain: dict[str, Any] = dict.fromkeys(
        ("class_id", "priority", "preemptions", "engine", "generated_tokens"), np.zeros(rows)
    )
    plain |= dict.fromkeys(("first_token_s", "finish_s"), np.full(rows, NAN))
    plain |= {
        "index": np.arange(rows),
        "first_scheduled_s": columns["arrival_s"],
        "outcome": np.full(rows, FINISHED),
    }
    plain |= dict.fromkeys(("input_tokens", "output_tokens"), np.full(rows, 100))
    kinds = {"index": np.int64, "outcome": np.int8}
    merged = plain | columns
    for name, values in merged.items():
        kind = np.float64 if name.endswith("_s") else kinds.get(name, np.int32)
        merged[name] = np.asarray(values, dtype=kind)
    return RequestRecords(**merged)


@pytest.fixture
def mixed() -> RequestRecords:
    """Two finished (one within its SLO), one refused, one failed after its first token, one unfinished."""
    return make_records(
        arrival_s=[0.0, 1.0, 2.0, 3.0, 4.0],
        first_scheduled_s=[0.1, 1.5, NAN, 3.1, 4.1],
        first_token_s=[0.5, 3.0, NAN, 3.5, 4.5],
        finish_s=[1.4, 4.0, NAN, NAN, NAN],
        generated_tokens=[10, 11, 0, 5, 3],
        preemptions=[0, 2, 0, 1, 0],
        engine=[0, 1, -1, 0, 1],
        outcome=[FINISHED, FINISHED, REFUSED, FAILED, UNFINISHED],
    )


def test_every_request_counts(mixed: RequestRecords) -> None:
    summary = summarise(mixed, SLOS, ("standard",), duration_s=10.0)
    assert summary["arrived"] == 5
    assert [summary[k] for k in ("completed", "refused", "failed", "unfinished", "preemptions")] == [
        2,
        1,
        1,
        1,
        3,
    ]
    assert summary["slo_attainment"] == pytest.approx(1 / 5)
    assert summary["ttft_attainment"] == pytest.approx(1 / 5)  # 2 s is late; the rest has no answer
    assert summary["tpot_attainment"] == pytest.approx(2 / 5)
    assert summary["goodput_rps"] == pytest.approx(0.1)
    assert summary["ttft_p50_s"] == math.inf
    assert summary["ttft_mean_finished_s"] == pytest.approx((0.5 + 2.0) / 2)
    assert summary["tpot_mean_finished_s"] == pytest.approx(0.1)
    assert summary["e2e_mean_finished_s"] == pytest.approx((1.4 + 3.0) / 2)
    assert summary["queue_mean_finished_s"] == pytest.approx((0.1 + 0.5) / 2)
    assert summary["throughput_tokens_per_s"] == pytest.approx(2.9)


def test_latencies_of_the_served_and_shares_of_the_refused() -> None:
    """By hand: of three critical requests one is refused; 0.5 and 1.0 s; P90 of the served is 0.95 s."""
    records = make_records(
        arrival_s=[0.0, 1.0, 2.0, 3.0],
        first_token_s=[0.5, 2.0, NAN, NAN],
        finish_s=[1.0, 2.5, NAN, NAN],
        outcome=[FINISHED, FINISHED, REFUSED, REFUSED],
        class_id=[0, 0, 0, 1],
    )
    summary = summarise(records, SLOS, ["standard", "long"], 10.0)
    assert summary["refused_share"] == 0.5
    assert summary["refused_share/standard"] == pytest.approx(1 / 3)
    assert summary["refused_share/long"] == 1.0
    assert summary["ttft_p90_s/standard"] == math.inf, "of all"
    assert summary["ttft_served_p90_s/standard"] == pytest.approx(0.95)
    assert math.isnan(summary["ttft_served_p90_s/long"])


def test_rejecting_and_never_finishing_do_not_pay() -> None:
    served = make_records(arrival_s=[0, 0], first_token_s=[5, 5], finish_s=[9, 9], generated_tokens=[9, 9])
    for outcome in (REFUSED, FAILED, UNFINISHED):
        cheat = make_records(
            arrival_s=[0, 0], first_token_s=[0.1, NAN], finish_s=[0.1, NAN], generated_tokens=[1, 0],
            outcome=[FINISHED, outcome],
        )  # fmt: skip
        honest, cheated = (summarise(r, SLOS, ("standard",), 10.0) for r in (served, cheat))
        assert cheated["ttft_p99_s"] == math.inf > honest["ttft_p99_s"]
        assert cheated["slo_attainment"] == 0.5


def test_single_token_answers_have_no_tpot() -> None:
    records = make_records(
        arrival_s=[0, 0], first_token_s=[0.5, 0.5], finish_s=[0.5, 1.5], generated_tokens=[1, 11]
    )
    summary = summarise(records, SLOS, ("standard",), 2.0)
    assert summary["tpot_p50_s"] == pytest.approx(0.1)
    assert summary["tpot_attainment"] == 1.0


def test_classes_have_their_own_promises_and_figures() -> None:
    records = make_records(
        arrival_s=[0, 0],
        first_token_s=[5, 5],
        finish_s=[5.5, 5.5],
        generated_tokens=[11, 11],
        class_id=[0, 1],
    )
    summary = summarise(records, SLOS, ("standard", "long"), 10.0)
    assert summary["slo_attainment/standard"] == 0.0
    assert summary["slo_attainment/long"] == 1.0
    assert summary["ttft_p50_s/long"] == 5.0
    empty = summarise(records, {**SLOS, "idle": SLO(1, 1)}, ("standard", "long", "idle"), 10.0)
    assert math.isnan(empty["slo_attainment/idle"])
    assert set(empty) == set(summary) | {k.replace("/long", "/idle") for k in summary if k.endswith("/long")}


def test_a_class_without_slo_is_refused(mixed: RequestRecords) -> None:
    with pytest.raises(
        ValueError, match="no SLO for class 'priority'; slos are declared for: standard, long"
    ):
        summarise(mixed, SLOS, ("priority",), 1.0)
    with pytest.raises(ValueError, match="duration_s must be positive, got 0"):
        summarise(mixed, SLOS, ("standard",), 0.0)


def test_no_requests() -> None:
    summary = summarise(make_records(arrival_s=[]), SLOS, ("standard",), 1.0)
    assert summary["arrived"] == summary["goodput_rps"] == summary["peak_throughput_tokens_per_s"] == 0
    assert math.isnan(summary["ttft_p99_s"])


def test_peak_throughput_by_hand() -> None:
    # 21 tokens over [0.5, 2.5]: one at 0.5, then 10 a second; a burst of 7 tokens at 1.2.
    records = make_records(
        arrival_s=[0, 1], first_token_s=[0.5, 1.2], finish_s=[2.5, 1.2], generated_tokens=[21, 7]
    )
    assert summarise(records, SLOS, ("standard",), 3.0)["peak_throughput_tokens_per_s"] == pytest.approx(17.0)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 30), st.integers(1, 200)), min_size=1, max_size=20))
def test_tokens_are_conserved_by_the_spreading(rows: list[tuple[float, float, int]]) -> None:
    first, length, tokens = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    records = make_records(
        arrival_s=first, first_token_s=first, finish_s=first + length, generated_tokens=tokens
    )
    peak = summarise(records, SLOS, ("standard",), 100.0)["peak_throughput_tokens_per_s"]
    seconds = math.floor((first + length).max()) + 1
    assert tokens.sum() / seconds - 1e-6 <= peak <= tokens.sum() + 1e-6


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(0, 40))
def test_percentiles_equal_numpys_where_finite_and_never_sink(values: list[float], infinite: int) -> None:
    array = np.array(values)
    np.testing.assert_allclose(percentiles(array), np.percentile(array, (50, 90, 99)), rtol=1e-12, atol=1e-9)
    worse = percentiles(np.concatenate([array, np.full(infinite, np.inf)]))
    assert all(w >= p - 1e-9 for w, p in zip(worse, percentiles(array), strict=True))
    assert not any(math.isnan(w) for w in worse)


def test_frame_and_parquet(mixed: RequestRecords, tmp_path: Any) -> None:
    mixed.to_parquet(tmp_path / "requests.parquet")
    frame = pd.read_parquet(tmp_path / "requests.parquet")
    assert frame["outcome"].tolist() == ["finished", "finished", "refused", "failed", "unfinished"]
    assert frame["first_token_s"].isna().sum() == 1
    pd.testing.assert_frame_equal(frame, mixed.to_frame(), check_dtype=False)


def test_vllm_keys(mixed: RequestRecords) -> None:
    report = json.loads(
        json.dumps(to_jsonable(mixed.to_vllm_json(10.0, SLOS, ("standard",))), allow_nan=False)
    )
    detailed = (
        "input_lens",
        "output_lens",
        "ttfts",
        "itls",
        "latencies",
        "start_times",
        "queue_times",
        "errors",
    )
    assert all(len(report[key]) == 5 for key in detailed)
    assert (report["completed"], report["failed"], report["request_goodput"]) == (2, 3, 0.1)
    assert report["request_throughput"] == 0.2
    assert report["output_throughput"] == 2.1
    assert report["ttfts"][2] is None
    assert report["errors"] == ["", "", "refused", "failed", "unfinished"]
    assert report["ttfts"][0] + sum(report["itls"][0]) == pytest.approx(report["latencies"][0])
    assert mixed.to_vllm_json()["duration"] == 4.5
    assert mixed.to_vllm_json()["request_goodput"] is None


def test_jsonable() -> None:
    value = {
        "inf": math.inf,
        "nan": NAN,
        "list": [NAN, np.float64(1.5), (2,)],
        3: np.array([1, 2]),
        "n": np.float32(NAN),
    }
    assert to_jsonable(value) == {"inf": None, "list": [None, 1.5, [2]], "3": [1, 2]}


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        make_records(arrival_s=[0.0, 1.0], finish_s=[1.0])
