"""What a person sees of a node."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.interface.commands import SetLayout, SwitchMode
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import make_env

LOAD = WorkloadSpec(name="flying_bursty", num_requests=400)


def test_text_shows_every_group_and_where_it_is_going() -> None:
    env = make_env("dp_tp", workload=LOAD, render_mode="ansi")
    env.reset(seed=0)
    lines = env.render().splitlines()
    assert "layout 8x1" in lines[0]
    assert len(lines) == 1 + 8
    for _ in range(20):
        env.step(None)
    env.step(SetLayout((4, 2, 2), SwitchMode.HARD))
    text = env.render()
    assert "layout 4+2+2" in text
    assert len(text.splitlines()) == 1 + 3


def test_picture_grows_with_the_episode_and_tells_layouts_apart() -> None:
    pictures = []
    for command in (None, SetLayout((8,), SwitchMode.HARD)):
        env = make_env("dp_tp", workload=LOAD, render_mode="rgb_array")
        env.reset(seed=0)
        env.step(command)
        for _ in range(5):
            env.step(None)
        pictures.append(env.render())
    for picture in pictures:
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.shape[2] == 3
        assert picture.std() > 0
    assert (pictures[0] != pictures[1]).any()
