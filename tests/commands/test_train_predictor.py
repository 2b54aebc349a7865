"""`python -m runners.train_predictor`, and the way from conversations to a simulation with predicted lengths."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from serving_gym.baselines.length_prediction.registry import PREDICTORS, load_predictor
from serving_gym.envs.workload import load_file
from serving_gym.envs.workload.predictions import PredictionSpec, accuracy, predict_lengths
from serving_gym.runners import simulate, traces, train_predictor
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.policies import CONFIG_DIR
from serving_gym.runners.configuration.predictor_config import TrainPredictorConfig
from serving_gym.runners.configuration.schema import register_command
from tests.baselines.length_prediction.corpus import write_sharegpt

ROOT = Path(__file__).parents[2]
TINY = ["predictor.epochs=1", "predictor.max_tokens=48"]


@pytest.fixture(scope="module")
def sharegpt(tmp_path_factory):
    return write_sharegpt(tmp_path_factory.mktemp("data") / "sharegpt.json", 400)


@pytest.fixture(scope="module")
def run(sharegpt, tmp_path_factory):
    """A run that has learned something."""
    out = tmp_path_factory.mktemp("run")
    synonyms = out / "synonyms.tsv"
    synonyms.write_text("ba\tbi,bu\nstory\ttale\n", encoding="utf-8")
    words = [f"data={sharegpt}", f"out={out}", f"predictor.synonyms={synonyms}"]
    settings = ["learning_rate=6e-3", "batch_size=16", "max_tokens=64"]
    assert train_predictor.main([*words, *(f"predictor.{setting}" for setting in settings)]) == 0
    return out


def test_metrics_and_predictions(run, sharegpt):
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["predictor"] == "preserve"
    assert metrics["data"] == {
        "file": str(sharegpt),
        "conversations": 400,
        "left_out": {"no turn of the user": 1, "no answer": 1},
        "lengths_in": "words and punctuation marks",
        "train": 280,
        "test": 120,
    }
    assert metrics["mae"] < 0.7 * metrics["constant"]["mae"]
    assert metrics["ms_per_prediction"] > 0
    assert metrics["published"] == {"mae": 78.25, "acc_25": 0.5677, "acc_50": 0.6879, "acc_100": 0.7795}
    assert metrics["fit"]["synonyms"] == 2
    assert metrics["fit"]["trained_on"] > 280
    frame = pd.read_parquet(run / "predictions.parquet")
    assert len(frame) == 120
    found = accuracy(frame["predicted_tokens"], frame["output_tokens"])
    assert {name: metrics[name] for name in found} == pytest.approx(found)
    entries = {
        entry["id"]: entry["conversations"] for entry in json.loads(sharegpt.read_text(encoding="utf-8"))
    }
    for row in frame.itertuples():
        prompt, answer = (turn["value"] for turn in entries[row.id])
        assert (row.input_tokens, row.output_tokens) == (len(prompt.split()), len(answer.split()))
    order = [int(name[1:]) for name in frame["id"]]
    assert order == sorted(order)


def test_the_test_part_is_a_workload_with_predictions(run, tmp_path):
    workload = load_file(run / "workload.parquet")
    frame = pd.read_parquet(run / "predictions.parquet")
    for column in ("input_tokens", "output_tokens", "predicted_tokens"):
        assert getattr(workload, column).tolist() == frame[column].tolist()
    shown = predict_lengths(PredictionSpec("column"), workload, 0)
    assert shown.tolist() == frame["predicted_tokens"].tolist()
    words = ["workload=file", f"workload.path={run / 'workload.parquet'}", "workload.rate_rps=4"]
    assert simulate.main([*words, f"out={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["metrics"]["completed"] == 120


def test_convert_predicts_other_conversations(run, tmp_path):
    other = write_sharegpt(tmp_path / "other.json", 40, seed=5)
    out = tmp_path / "other.parquet"
    words = [f"path={other}", f"predictor={run}", "num_requests=30", "rate_rps=8", f"out={out}"]
    assert traces.main(["convert", *words]) == 0
    workload = load_file(out)
    entries = [
        entry for entry in json.loads(other.read_text(encoding="utf-8")) if len(entry["conversations"]) == 2
    ]
    prompts = [entry["conversations"][0]["value"] for entry in entries[:30]]
    assert workload.predicted_tokens.tolist() == load_predictor(run).predict(prompts).tolist()
    assert workload.rate_rps == pytest.approx(8.0)
    assert np.array_equal(workload.input_tokens, [len(prompt.split()) for prompt in prompts])
    assert traces.main(["convert", f"path={other}", f"out={tmp_path / 'bare.csv'}"]) == 0
    assert len(load_file(tmp_path / "bare.csv")) == 40
    assert load_file(tmp_path / "bare.csv").predicted_tokens is None


def test_mu_serve_says_what_its_figures_are_not(sharegpt, tmp_path, capsys):
    words = [f"data={sharegpt}", f"out={tmp_path}", "predictor=mu_serve", "limit=50", "test_share=0.2", *TINY]
    assert train_predictor.main(words) == 0
    said = capsys.readouterr()
    assert "a tiny random encoder is trained" in said.err
    assert "10 conversations of sharegpt.json not trained on; 40 trained on" in said.out
    metrics = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["fit"] == {"trained_on": 40, "untrained_encoder": True}
    assert load_predictor(tmp_path).config.name == "mu_serve"


def test_every_predictor_composes():
    train_predictor.register_predictors()
    register_command("train_predictor", TrainPredictorConfig)
    assert {path.stem for path in (CONFIG_DIR / "predictor").glob("*.yaml")} == set(PREDICTORS)
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        for name in PREDICTORS:
            config = compose("train_predictor", overrides=["data=x", f"predictor={name}", "out=y"])
            typed = TrainPredictorConfig(data="x", predictor=dict(config.predictor), out="y")
            # The file and the dataclass give the same defaults.
            assert typed.predictor_config == type(typed.predictor_config)()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "data must be given: add data=..."),
        (["data=nowhere.json"], "conversations nowhere.json do not exist"),
        (["data=DATA", "predictor=muserve"], "unknown predictor 'muserve'; did you mean 'mu_serve'"),
        (
            ["data=DATA", "predictor.num_buckts=3"],
            "unknown key 'predictor.num_buckts'; did you mean 'num_buckets'",
        ),
        (["data=DATA", "predictor.epochs=0"], "predictor.epochs must be at least 1, got 0"),
        (["data=DATA", "test_share=1"], "test_share must lie in (0, 1), got 1"),
        (["data=DATA", "limit=1"], "limit must be at least 2, got 1"),
        (["data=DATA", "tokenizer=nowhere"], "tokenizer must be a folder with a saved tokenizer"),
        (
            ["data=DATA", "predictor.encoder=nowhere"],
            "predictor.encoder must be a folder with a saved encoder",
        ),
    ],
)
def test_mistakes_give_one_sentence(words, message, sharegpt, tmp_path, capsys):
    given = [word.replace("DATA", str(sharegpt)) for word in words]
    assert train_predictor.main([*given, f"out={tmp_path}"]) == USER_ERROR
    said = capsys.readouterr().err
    assert message in said
    assert said.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["path=DATA", "split=test"], "unknown word for conversations 'split'"),
        (["path=DATA", "rate_rps=0"], "rate_rps must be positive and finite"),
        (["path=DATA", "predictor=nowhere"], "no length predictor in 'nowhere'"),
        (["name=flying_long", "predictor=x"], "predictor is for conversations in ShareGPT's form"),
    ],
)
def test_mistakes_of_convert_give_one_sentence(words, message, sharegpt, tmp_path, capsys):
    given = [word.replace("DATA", str(sharegpt)) for word in words]
    assert traces.main(["convert", *given, f"out={tmp_path / 'x.csv'}"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.full
def test_as_a_module(sharegpt, tmp_path):
    words = [f"data={sharegpt}", f"out={tmp_path}", "limit=20", *TINY]
    done = subprocess.run(
        [sys.executable, "-m", "runners.train_predictor", *words],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Results in" in done.stdout
    assert (tmp_path / "checkpoint" / "weights.pt").is_file()
