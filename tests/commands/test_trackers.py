"""Trackers: few named curves, pictures, the checkpoint, and one W&B run over several commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from serving_gym.runners.configuration.schema import TrackerConfig
from serving_gym.runners.reporting.plots import plot_learning_curve
from serving_gym.runners.reporting.trackers import compared_curves, make_tracker, wandb_mode

CONFIG = {"env": {"name": "dp_tp"}, "agent": {"name": "api"}, "seed": 1}
ROWS = [
    {"steps": 0, "minutes": 0.0, "return": -100.0},
    {"steps": 1000, "minutes": 0.5, "return": -90.0},
    {"steps": 2000, "minutes": 1.0, "return": -80.0},
]
REFERENCES = {"jsq": (-85.0, "plain"), "random": (-900.0, "random"), "oracle": (-70.0, "clairvoyant")}


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    plot_learning_curve(tmp_path / "curve.png", ROWS, REFERENCES, "jsq", "title")
    return tmp_path / "curve.png"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "card.md").write_text("card")
    return tmp_path / "checkpoint"


def test_a_learning_curve_of_one_validation_is_drawn_too(tmp_path):
    from matplotlib.image import imread

    for rows, references in ((ROWS, REFERENCES), (ROWS[:1], {})):
        plot_learning_curve(tmp_path / "one.png", rows, references, "an untrained network", "title")
        image = imread(tmp_path / "one.png")
        assert image.shape[0] > 400
        assert np.ptp(image[..., :3]) > 0.5


def test_a_reference_far_below_leaves_the_curve_readable(tmp_path, monkeypatch):
    from serving_gym.runners.reporting import plots

    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, *_: drawn.append(figure))
    plot_learning_curve(tmp_path / "c.png", ROWS, REFERENCES, "jsq", "title")
    axis = drawn[0].axes[0]
    assert axis.get_ylim()[0] > -200.0
    labels = axis.get_legend_handles_labels()[1]
    assert "random (random): -900, below the picture" in labels
    assert "start of training (jsq): -100" in labels
    assert "kept policy: -80" in labels


def test_tensorboard_has_curves_pictures_and_the_config(tmp_path, curve, checkpoint):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with make_tracker(TrackerConfig("tensorboard"), tmp_path, CONFIG) as tracker:
        tracker.log({"train/loss": 1.0}, 10)
        tracker.summary({"comparison/return/jsq": -5.0})
        tracker.picture("validation/learning_curve", curve, 10)
        tracker.checkpoint("checkpoint", checkpoint)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"train/loss", "comparison/return/jsq"}
    assert events.Tags()["images"] == ["validation/learning_curve"]
    assert any(tag.startswith("config") for tag in events.Tags()["tensors"])


def test_wandb_goes_on_with_the_same_run(tmp_path, curve, checkpoint, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = []
    for step in (1, 2):
        with make_tracker(TrackerConfig("wandb"), tmp_path, CONFIG) as tracker:
            run = tracker._run
            ids.append(run.id)
            assert run.group == "dp_tp-api"
            assert run.config["seed"] == 1
            tracker.log({"train/loss": 1.0}, step)
            tracker.picture("validation/learning_curve", curve, step)
            tracker.checkpoint("checkpoint", checkpoint)
    assert ids[0] == ids[1] == json.loads((tmp_path / "tracker.json").read_text())["wandb_id"]
    assert list((tmp_path / "wandb").glob(f"offline-run-*-{ids[0]}"))


def test_the_environment_variable_goes_before_the_setting(monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode(TrackerConfig("wandb")) == "disabled"
    assert capsys.readouterr().err == "WANDB_MODE=disabled overrides tracker.mode=offline.\n"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wandb_mode(TrackerConfig("wandb")) == "offline"
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(ValueError, match="WANDB_MODE 'ofline'; did you mean 'offline'"):
        wandb_mode(TrackerConfig("wandb"))


def test_a_comparison_has_a_few_dozen_curves():
    metrics = {f"figure_{i}": {"iqm": 1.0} for i in range(60)}
    metrics |= {name: {"iqm": 2.0} for name in ("return", "slo_attainment", "ttft_p99_s")}
    curves = compared_curves({"policies": {f"p{i}": {"metrics": metrics} for i in range(12)}})
    assert len(curves) == 36
    assert curves["comparison/return/p3"] == 2.0
