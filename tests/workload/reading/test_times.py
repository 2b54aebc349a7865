"""Unit and base of times, and how long a trace may be."""

import numpy as np
import pytest

from serving_gym.envs.simulator.traffic import make_traffic, priorities_of
from serving_gym.envs.workload.reading.load import read_trace
from serving_gym.envs.workload.reading.options import ReadOptions
from serving_gym.envs.workload.reading.writing import write_trace
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.reporting.trace_lines import say_traces, trace_lines


def own(folder, times, name="a.csv", column="arrival_s"):
    path = folder / name
    rows = "".join(f"{time},512,64\n" for time in times)
    path.write_text(f"{column},input_tokens,output_tokens\n{rows}", encoding="utf-8")
    return path


def mooncake(folder, times):
    path = folder / "a.jsonl"
    row = '{{"timestamp": {}, "input_length": 20, "output_length": 5}}\n'
    path.write_text("".join(row.format(time) for time in times), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("times", "column", "unit", "arrivals"),
    [
        (["0.25", "1.0"], "arrival_s", "s", [0.25, 1.0]),
        (["59.5", "61"], "arrival_s", "s", [59.5, 61.0]),
        (["60", "61.5"], "arrival_s", "s", [0.0, 1.5]),
        (["43200.0", "43200.5"], "arrival_s", "s", [0.0, 0.5]),
        (["1787000000", "1787000000.5"], "arrival_s", "s", [0.0, 0.5]),
        (["1787000000000", "1787000000500"], "arrival_s", "ms", [0.0, 0.5]),
        (["1787000000000000", "1787000000500000"], "arrival_s", "us", [0.0, 0.5]),
        (["1787000000000000000", "1787000000500000001"], "arrival_s", "ns", [0.0, 0.500000001]),
        (["250", "1000"], "timestamp_ms", "ms", [0.25, 1.0]),
        (["150000250", "150001000"], "timestamp_ms", "ms", [0.0, 0.75]),
        (["2026-08-18T10:13:20Z", "2026-08-18T10:13:20.5Z"], "arrival_time", "date and time", [0.0, 0.5]),
        (["2026-08-18 10:13:20", "2026-08-18 10:13:20.5"], "timestamp", "date and time", [0.0, 0.5]),
    ],
)
def test_unit_and_base_are_inferred(times, column, unit, arrivals, tmp_path):
    workload, report = read_trace(own(tmp_path, times, column=column))
    assert workload.arrival_s.tolist() == pytest.approx(arrivals, abs=1e-10)
    assert report.time_unit == unit
    assert report.rebased == (arrivals[0] == 0)
    assert ("were moved to 0" in report.line) == (arrivals[0] == 0 and unit != "date and time")


def test_what_the_user_says_goes_before(tmp_path):
    path = own(tmp_path, [100_000, 101_000])
    assert read_trace(path, ReadOptions(time_unit="ms"))[0].arrival_s.tolist() == [0.0, 1.0]
    assert read_trace(path, ReadOptions(rebase=False))[0].arrival_s.tolist() == [100_000.0, 101_000.0]
    spec = WorkloadSpec(name="file", path=str(path), split="all", time_unit="ms", rebase=False)
    assert WorkloadSource(spec).sample(0).arrival_s.tolist() == [100.0, 101.0]
    assert WorkloadSource(spec).report.time_unit == "ms"


def test_seconds_taken_for_milliseconds_and_the_reverse(tmp_path):
    path = mooncake(tmp_path, [0.0, 0.2, 0.4])
    _, report = read_trace(path)
    assert report.warnings == (
        "times read as milliseconds give 5,000 requests/s; they look like seconds: time_unit=s",
    )
    workload, report = read_trace(path, ReadOptions(time_unit="s"))
    assert workload.arrival_s.tolist() == pytest.approx([0.0, 0.2, 0.4])
    assert report.warnings == ()
    assert read_trace(mooncake(tmp_path, [0, 200, 400]))[1].warnings == ()
    workload, report = read_trace(mooncake(tmp_path, [1787000000, 1787000001, 1787000003]))
    assert workload.arrival_s.tolist() == [0.0, 1.0, 3.0]
    assert "times in s, the first at 1,787,000,000 s (2026-08-17 " in report.line
    _, report = read_trace(own(tmp_path, ["08/17/2026 10:00:00", "08/17/2026 10:00:02"], column="timestamp"))
    assert report.warnings == (
        "dates in column 'timestamp' are not of ISO 8601; they are read with the month before the day",
    )
    _, report = read_trace(own(tmp_path, [0, 250, 500, 900]))
    assert report.warnings[0].endswith("requests an hour; if they are milliseconds: time_unit=ms")


def test_a_trace_longer_than_a_run_loses_idle_time(tmp_path):
    path = own(tmp_path, 3600 + 86400 * np.arange(122))
    workload, report = read_trace(path)
    assert workload.arrival_s.tolist() == pytest.approx((43200.0 * np.arange(122)).tolist())
    assert (
        "121 idle gaps longer than 12 h are simulated as 12 h, so that 121 days become 60.5 days"
        in report.line
    )
    assert workload.skipped_s is not None
    whole_s = workload.arrival_s + workload.skipped_s
    assert whole_s.tolist() == pytest.approx((86400.0 * np.arange(122)).tolist())
    again, _ = read_trace(write_trace(workload, tmp_path / "again.csv"))
    assert again.equals(workload)
    shorter, _ = read_trace(path, ReadOptions(max_gap_s=600.0))
    assert shorter.duration_s == pytest.approx(121 * 600.0)
    traffic = make_traffic(workload, priorities_of(workload))
    assert (np.diff(traffic.arrival_ps) > 0).all()


def test_times_that_no_run_can_hold(tmp_path):
    with pytest.raises(ValueError, match="row 1 arrives 20,683 days after the one before"):
        read_trace(own(tmp_path, [0, 1787000000, 1787000001]))
    with pytest.raises(
        ValueError, match=r"begins .* days after 0, and a run lasts at most 100 days: leave rebase unset"
    ):
        read_trace(own(tmp_path, [1787000000, 1787000001]), ReadOptions(rebase=False))
    late = Workload(np.array([0.0, 200 * 86400.0]), np.array([1, 1]), np.array([1, 1]))
    with pytest.raises(
        ValueError, match="its last request arrives after 200 days, and a run lasts at most 105"
    ):
        make_traffic(late, priorities_of(late))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"time_unit": "min"}, "unknown time_unit 'min'"),
        ({"max_gap_s": 0.0}, "max_gap_s must be positive"),
        ({"columns": {"input_token": "x"}}, "did you mean 'input_tokens'"),
        ({"name": "flying_long", "time_unit": "s", "path": None}, "time_unit is for workload 'file'"),
    ],
)
def test_wrong_words(said, message):
    with pytest.raises(ValueError, match=message):
        WorkloadSource(WorkloadSpec(**{"name": "file", "path": "a.csv", **said}))


def test_models_on_a_cluster_of_one_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,model\n0,5,5,a\n1,5,5,b\n", encoding="utf-8")
    report = read_trace(path)[1]
    assert trace_lines(report)[0] == report.line
    assert trace_lines(report, single_model=True)[0].endswith(
        "column 'model' has 2 names; the cluster serves one model, to which all requests go"
    )


def test_a_run_says_each_file_once(tmp_path, capsys):
    path, other = own(tmp_path, [0, 1, 2]), mooncake(tmp_path, [0.0, 0.2, 0.4])
    parts = [{"name": "file", "path": str(each), "split": "all"} for each in (path, other, path)]
    say_traces(WorkloadSpec(name="mixture", params={"parts": [*parts, {"name": "flying_long"}]}))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [str(path), str(other), "warning"]
    say_traces(WorkloadSpec(name="flying_long"))
    assert capsys.readouterr().err == ""
