"""Pictures of episodes: shapes, scales that stay, no effect on the episode, and the window."""

from __future__ import annotations

import time
from importlib.util import find_spec
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import RecordVideo
from matplotlib import pyplot as plt
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from serving_gym.envs.base.drawing.boxes import Grain, grain_of
from serving_gym.envs.base.drawing.canvas import Area
from serving_gym.envs.base.drawing.timeline import BINS, Curve, Plot, Timeline, format_number, nice
from serving_gym.envs.base.window import NO_DISPLAY
from serving_gym.envs.registration import make_env
from tests.environments.cases import CASES, NAMES, possible

SECONDS_A_FRAME = 1.0  # far above what a frame takes: 20 to 50 ms


def play(env, seed=0, most=12):
    """Yields what `step` returns for random possible actions."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    for _ in range(most):
        result = env.step(possible(env.action_space, env.unwrapped.action_masks(), rng))
        yield result
        if result[2] or result[3]:
            return


def scales(renderer):
    """What must stay through an episode that ends when it should."""
    plots = [(plot.title, plot.low, plot.high, plot.ticks()) for plot in renderer.plots()]
    return renderer.timeline.horizon_s, plots


@pytest.mark.parametrize("name", NAMES)
def test_pictures_have_one_shape_and_follow_the_episode(name):
    env = make_env(name, render_mode="rgb_array", **CASES[name])
    env.reset(seed=0)
    frames, kept = [env.render()], [scales(env.unwrapped.renderer)]
    for _ in play(env):
        frames.append(env.render())
        if env.unwrapped.state.now_s <= kept[0][0]:
            kept.append(scales(env.unwrapped.renderer))
    assert len(kept) > 2
    assert {(frame.shape, frame.dtype) for frame in frames} == {(frames[0].shape, np.dtype(np.uint8))}
    assert frames[0].ndim == 3
    assert frames[0].shape[2] == 3
    assert all((before != after).any() for before, after in pairwise(frames))
    assert all(entry == kept[0] for entry in kept), "time axis and scales stay through an episode"


@pytest.mark.parametrize("name", NAMES)
def test_drawing_changes_nothing(name):
    drawn, plain = make_env(name, render_mode="rgb_array", **CASES[name]), make_env(name, **CASES[name])
    for ours, theirs in zip(play(drawn), play(plain), strict=True):
        np.testing.assert_array_equal(drawn.render(), drawn.render())
        assert ours[1:4] == theirs[1:4]
        assert ours[4]["reward_terms"] == theirs[4]["reward_terms"]
        for key, value in ours[0].items():
            np.testing.assert_array_equal(value, theirs[0][key])


@pytest.mark.parametrize("name", NAMES)
def test_text_and_decision_are_written(name):
    env = make_env(name, render_mode="ansi", **CASES[name])
    for _ in play(env, most=3):
        assert env.unwrapped.renderer.decision
        assert len(env.render().splitlines()) >= 1


def test_a_frame_is_drawn_fast_enough_to_watch():
    env = make_env("routing", render_mode="rgb_array", **CASES["routing"])
    list(play(env))
    env.render()
    begun = time.perf_counter()
    env.render()
    assert time.perf_counter() - begun < SECONDS_A_FRAME


def test_the_chosen_engine_is_marked():
    env = make_env("routing", render_mode="rgb_array", **CASES["routing"]).unwrapped
    env.reset(seed=0)
    place = int(np.flatnonzero(env.action_masks())[1])
    env.step(place)
    assert env.renderer.decision.startswith(f"send to engine {place} request 0 ")
    env.step(env.config.num_rows)
    assert env.renderer.decision.startswith("hold request ")


def test_human_says_once_that_there_is_no_display(monkeypatch):
    said = []
    monkeypatch.setattr(gym.logger, "warn", lambda text, *_: said.append(text))
    plt.switch_backend("agg")
    env = make_env("dp_tp", render_mode="human", **CASES["dp_tp"])
    list(play(env, most=3))
    assert env.render() is None
    env.close()
    assert said == [NO_DISPLAY]


def test_human_shows_each_step_in_a_window_that_closes(monkeypatch):
    waits = []
    plt.switch_backend("agg")
    monkeypatch.setattr(FigureCanvasAgg, "required_interactive_framework", "headless")
    monkeypatch.setattr(FigureCanvasAgg, "start_event_loop", lambda self, timeout: waits.append(timeout))
    monkeypatch.setattr(FigureManagerBase, "show", lambda self: None)
    env = make_env("dp_tp", render_mode="human", **CASES["dp_tp"])
    list(play(env, most=3))
    assert waits == [1.0 / env.metadata["render_fps"]] * 4, "one after reset, one after each step"
    assert len(plt.get_fignums()) == 1
    env.close()
    assert not plt.get_fignums()


@pytest.mark.skipif(find_spec("moviepy") is None, reason="RecordVideo needs moviepy")
def test_videos_can_be_recorded(tmp_path):
    env = RecordVideo(make_env("dp_tp", render_mode="rgb_array", **CASES["dp_tp"]), str(tmp_path))
    list(play(env))
    env.close()
    assert list(tmp_path.glob("*.mp4"))


def test_amounts_are_spread_over_their_interval():
    timeline = Timeline(BINS * 10.0)
    timeline.add({"arrived": 30.0}, 5.0, 20.0)
    np.testing.assert_allclose(timeline.column("arrived")[:3], [10.0, 20.0, 0.0])
    np.testing.assert_allclose(timeline.per("arrived", "seconds")[:2], [2.0, 2.0])
    timeline.add({"arrived": 4.0}, 20.0, 20.0)
    assert timeline.column("arrived").sum() == pytest.approx(34.0), "no time has passed"


def test_a_time_axis_grows_when_an_episode_outlasts_it():
    timeline = Timeline(100.0)
    timeline.add({"arrived": 10.0}, 0.0, 100.0)
    timeline.add({"arrived": 5.0}, 100.0, 150.0)
    assert timeline.horizon_s == 150.0
    assert timeline.column("arrived").sum() == pytest.approx(15.0)
    np.testing.assert_allclose(timeline.per("arrived", "seconds")[:], 0.1)


def test_scales_are_round_and_values_beyond_them_are_drawn_at_the_edge():
    assert [nice(value) for value in (0.0, 0.7, 51.0, 1000.0)] == [1.0, 0.8, 60.0, 1000.0]
    curve = Curve("", np.zeros(BINS), "#000000")
    plot = Plot("latency / SLO", (curve,), 0.01, 100.0, log=True, limit=1.0)
    np.testing.assert_allclose(plot.place(np.array([1.0, 1e6, 0.0])), [0.5, 1.0, 0.0])
    assert plot.ticks() == [0.01, 0.1, 1.0, 10.0, 100.0]
    assert [format_number(value) for value in (0.05, 1500.0, 2.5e6)] == ["0.05", "1.5k", "2.5M"]


def test_squares_stand_for_several_requests_in_small_boxes():
    assert grain_of(Area(0, 0, 300, 200), 256) == Grain(1, 13.0)
    small = grain_of(Area(0, 0, 60, 60), 256)
    assert small is not None
    assert small.unit > 1
    assert grain_of(Area(0, 0, 30, 18), 256) is None
