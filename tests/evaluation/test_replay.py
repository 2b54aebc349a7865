"""Runs on a server, simulated anew: a simulated run in the clothes of a real one is met to the last digit."""

import json
from pathlib import Path

import pandas as pd
import pytest

from serving_gym.runners import simulate, validate
from serving_gym.runners.validation import replay

SERVER = {
    "url": "http://127.0.0.1:1",
    "root": "meta/llama",
    "version": "0.32.0",
    "cache": {"num_blocks": 9000, "block_size": 16},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    words = ["workload=azure_conv_fitted", "workload.num_requests=60", "cluster=llama31_8b_h100_x8"]
    engine = [
        "cluster.num_gpus=1",
        "cluster.kv_blocks_override=9000",
        "router=round_robin",
        'cluster.engine=""',
    ]
    assert simulate.main([*words, *engine, f"out={folder}"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "servers": [SERVER]}))
    return folder


def figures(out: Path) -> dict[str, dict[str, float]]:
    (found,) = json.loads((out / "validation.json").read_text())["runs"].values()
    return found


def test_what_simulation_served_is_met(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"traffic=[{run}]", "cluster=llama31_8b_h100_x8", 'cluster.engine=""', f"out={tmp_path}"]
    assert validate.main(words) == 0
    found = figures(tmp_path)
    assert set(found) == set(replay.COMPARED)
    assert all(abs(figure["error"]) < 1e-9 for figure in found.values())
    assert "the profile knows no front end" in capsys.readouterr().out


def test_another_profile_is_off_and_its_front_end_counts(run: Path, tmp_path: Path) -> None:
    words = [f"traffic=[{run}]", "cluster=llama31_8b_h100_x8", f"out={tmp_path}"]
    assert validate.main([*words, "profile=llama-3.1-8b_h100_vllm-0.24"]) == 0
    found = figures(tmp_path)
    assert found["ttft_p50_s"]["error"] > 0.1
    assert 0.0 < abs(found["tpot_mean_finished_s"]["error"]) < 0.2
    records = pd.read_parquet(run / "requests.parquet")
    e2e_s = (records.finish_s - records.arrival_s).mean()
    assert found["e2e_mean_finished_s"]["live"] == pytest.approx(e2e_s)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "either data must name a table of measurements, or traffic the folders of runs"),
        (["data=x", "traffic=[y]"], "either data must name a table of measurements, or traffic"),
        (["traffic=[nowhere]"], "has no summary.json and requests.parquet"),
        (["traffic=[RUN]", "profile=wrong"], "profile='wrong' is neither a file nor a committed profile"),
        (["traffic=[RUN]", "cluster=nodes_tiny_cpu_x2"], "choose a cluster that is a node"),
        (["traffic=[RUN]", "cluster.max_length=100"], "unknown key 'cluster.max_length'"),
    ],
)
def test_mistakes(
    run: Path, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate.main([*(word.replace("RUN", str(run)) for word in words), f"out={tmp_path}"]) == 2
    assert said in capsys.readouterr().err


def test_requests_that_the_engine_cannot_take(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    small = {**SERVER, "cache": {"num_blocks": 40, "block_size": 16}}
    (folder / "summary.json").write_text(json.dumps({"servers": [small], "metrics": {}}))
    pd.read_parquet(run / "requests.parquet").to_parquet(folder / "requests.parquet")
    words = [f"traffic=[{folder}]", "cluster=llama31_8b_h100_x8", f"out={tmp_path / 'out'}"]
    assert validate.main(words) == 2
    assert (
        "do not fit the simulated engine, which has the server's KV cache of 40 blocks"
        in capsys.readouterr().err
    )
