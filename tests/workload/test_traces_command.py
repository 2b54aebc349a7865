"""``python -m runners.traces``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving_gym.envs.workload import load_file
from serving_gym.runners import traces


def test_list_names_every_workload(capsys, monkeypatch, no_traces):
    monkeypatch.setenv("COLUMNS", "200")
    assert traces.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in traces.workload_names())
    assert "fetch name=azure_conv" in shown


def test_describe_convert_and_fit(tmp_path, capsys):
    csv, figures, fitted = tmp_path / "a.csv", tmp_path / "b" / "a.json", tmp_path / "own.json"
    assert traces.main(["convert", "name=flying_priority", "num_requests=400", "seed=3", f"out={csv}"]) == 0
    assert traces.main(["describe", f"path={csv}", f"out={figures}"]) == 0
    assert json.loads(figures.read_text(encoding="utf-8"))["requests"] == 400
    assert traces.main(["fit", f"path={csv}", f"out={fitted}"]) == 0
    assert json.loads(fitted.read_text(encoding="utf-8"))["provenance"]["rows"] == 400
    assert traces.main(["convert", f"path={fitted}", "num_requests=50", f"out={tmp_path / 'c.parquet'}"]) == 0
    assert len(load_file(tmp_path / "c.parquet")) == 50
    assert traces.main(["describe", "name=azure_code_fitted", "num_requests=300", "rate_rps=null"]) == 0
    assert "trace_sha256" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "unknown verb 'lst'; did you mean 'list'"),
        (["list", "name=azure_conv"], "unknown word 'name'"),
        (["describe"], "give name=WORKLOAD or path=FILE"),
        (["describe", "azure_conv"], "expected key=value, got 'azure_conv'"),
        (["describe", "nam=azure_conv"], "unknown word 'nam'; did you mean 'name'"),
        (["describe", "name=a", "name=b"], "name is given twice"),
        (["describe", "name=azure_cov_fitted"], "did you mean 'azure_conv_fitted'"),
        (
            ["describe", "name=flying_long", "num_requests=many"],
            "num_requests must be a whole number, got 'many'",
        ),
        (["describe", "name=flying_long", "rate_scale=fast"], "rate_scale must be a number, got 'fast'"),
        (["describe", "path=nowhere.csv"], "nowhere.csv does not exist"),
        (["fetch"], "fetch needs name="),
        (["fetch", "name=azure_con"], "unknown trace 'azure_con'; did you mean 'azure_conv'"),
        (
            ["fetch", "name=azure_conv", "base_url=http://127.0.0.1:9"],
            "cannot download http://127.0.0.1:9/data/",
        ),
        (["convert", "name=flying_long"], "convert needs out="),
        (["convert", "name=flying_long", "out=x.txt"], "must end in .csv, .parquet or .jsonl"),
        (["fit", "name=flying_long", "out=x.txt"], "out must end in .json"),
    ],
)
def test_mistakes_give_one_sentence_and_a_status(words, message, capsys, no_traces, monkeypatch, tmp_path):
    monkeypatch.setattr("serving_gym.envs.workload.fetch.cache_dir", lambda: tmp_path)
    assert traces.main(words) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.startswith("error: ")
    assert "Traceback" not in shown


def test_help(capsys):
    assert traces.main(["--help"]) == 0
    assert traces.main([]) == 2
    assert "python -m runners.traces fetch" in capsys.readouterr().out


def test_as_a_module():
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "runners.traces", "describe", "name=nothing"],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
