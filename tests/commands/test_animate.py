"""`runners.animate`: one file of even times, and sentences about mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from serving_gym.envs.registration import make_env
from serving_gym.runners import animate
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.reporting.film import Filmed, write_gif
from tests.environments.cases import CASES

TINY = ["env=dp_tp", "workload=flying_bursty", "workload.num_requests=60", "seconds=2", "fps=6"]


def test_two_policies_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert animate.main([*TINY, "policies=[static_4x2,static_dp]", f"out={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "12 pictures" in said
    assert "static_4x2" in said
    with Image.open(tmp_path / "animation.gif") as film:
        assert film.size == (2 * 640 + 2, 500 + 24)
        assert 2 < film.n_frames <= 12, "equal pictures are merged"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["policies=[static_4x2,static_dp,static_tp,random]"], "policies must name 1 to 3 policies"),
        (["from_s=20", "to_s=10"], "from_s must lie between 0 and to_s"),
        (["fps=0"], "fps must be"),
    ],
)
def test_mistakes_are_named(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert animate.main([*TINY, *words]) == USER_ERROR
    assert sentence in capsys.readouterr().err


def test_pictures_are_taken_at_even_times() -> None:
    env = Filmed(make_env("dp_tp", render_mode="rgb_array", **CASES["dp_tp"]), 5, 2.0, 10.0)
    env.reset(seed=0)
    core = env.unwrapped
    taken: list[int] = []
    for _ in range(12):
        *_, terminated, _, _ = env.step(None)
        taken.append(len(env.pictures))
        assert terminated or len(env.pictures) == sum(due <= core.state.now_s for due in (2, 4, 6, 8, 10))
        if terminated:
            break
    assert taken[-1] == 5


def test_a_large_file_has_fewer_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (40, 60, 3)).astype(np.uint8) for _ in range(41)]
    path = tmp_path / "film.gif"
    assert write_gif(path, pictures, 10.0, np.inf) == 41
    whole = path.stat().st_size
    assert write_gif(path, pictures, 10.0, 0.6 * whole) == 21
    assert path.stat().st_size <= 0.6 * whole
    with Image.open(path) as film:
        assert film.info["duration"] == 200
