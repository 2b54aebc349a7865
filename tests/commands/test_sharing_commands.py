"""The sharing environment by the commands people type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from serving_gym.runners import compare, evaluate, simulate, tune
from serving_gym.runners.command_line.cli import USER_ERROR
from tests.commands.test_commands import failure

TINY = [
    "env=sharing",
    "workload.params.num_models=16",
    "workload.params.minutes=2",
    "workload.num_requests=40",
    "seeds=2",
]


def test_evaluate_and_compare(tmp_path: Path) -> None:
    words = [*TINY, "policies=[first_fit,random]", "plots=false", f"out={tmp_path / 'compare'}"]
    assert compare.main(words) == 0
    comparison = json.loads((tmp_path / "compare" / "comparison.json").read_text())
    assert comparison["env"] == "sharing"
    metrics = comparison["policies"]["first_fit"]["metrics"]
    assert {"reward/node_hours/cpu", "reward/node_hours/gpu", "reward/ooms"} <= set(metrics)
    words = [*TINY, "policy=first_fit", "env.token_scheduler=policy", f"out={tmp_path / 'evaluate'}"]
    assert evaluate.main(words) == 0
    decisions = (tmp_path / "evaluate" / "decisions.jsonl").read_text().splitlines()
    assert len(decisions) > 80  # iterations were asked for as well


def test_tune(tmp_path: Path) -> None:
    words = [*TINY, "policy=first_fit", "evaluations=2", f"out={tmp_path}"]
    assert tune.main(words) == 0
    assert set(yaml.safe_load((tmp_path / "tuned.yaml").read_text())["params"]) == {"fill"}


def test_mixes_and_clusters_by_words(tmp_path: Path) -> None:
    words = [*TINY, "cluster=nodes_gpu4", "policy=first_fit", f"out={tmp_path}"]
    words += ["workload.params.sizes=[llama-3.2-3b,llama-2-7b,llama-2-13b]", "workload.params.ratio=[1,1,4]"]
    assert evaluate.main(words) == 0
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert "reward/node_hours/cpu" not in metrics
    assert metrics["gpu_hours"]["iqm"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["policy=jsq"], "policy 'jsq' does not fit env=sharing: it decides in env=routing"),
        (["policy=first_fit", "cluster=fleet_h100_x4"], "choose a cluster with nodes"),
        (["policy=first_fit", "env.token_scheduler=fair"], "unknown token_scheduler 'fair'"),
        (["policy=first_fit", "env.manager.watermrk=1"], "did you mean 'watermark'"),
        (["policy=first_fit", "workload=azure_conv_fitted"], "names no models"),
        (
            [
                "policy=first_fit",
                "backend=vllm",
                "backend.endpoints=[http://127.0.0.1:8000]",
            ],
            "env=sharing starts and stops servers itself: backend.launch must be true",
        ),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [word for word in TINY if "workload=azure_conv_fitted" not in words or "params" not in word]
    assert evaluate.main([*own, *words, f"out={tmp_path}"]) == USER_ERROR
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: ")
    assert message in said


def test_shared_nodes_are_not_simulated_without_a_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(simulate.main, ["cluster=nodes_cpu4_gpu4", f"out={tmp_path}"], capsys)
    assert "cluster has nodes on which a policy places instances" in said
