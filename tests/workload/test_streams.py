"""Workloads of days, drawn by the hour."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.streams import MinuteStream, WholeStream
from serving_gym.envs.workload.tiers import TIERS

DAY_S = 86_400.0
MODELS, REGIONS = {"small": 0.75, "large": 0.25}, {"east": 0.6, "west": 0.4}


def stream(seed: int = 0, split: str = "train", past_s: float = DAY_S, duration_s: float = DAY_S, **params):
    values = {"mean_rps": 1.0, "models": MODELS, "regions": REGIONS, "start_h": 24.0, **params}
    return WorkloadSource(WorkloadSpec("sageserve_tiers", params=values)).stream(
        seed, split, past_s, duration_s
    )


def test_pieces_can_be_drawn_in_any_order_and_again():
    own = stream()
    assert own.num_pieces == 24
    later, first, again = own.piece(5), own.piece(0), own.piece(5)
    np.testing.assert_array_equal(later.arrival_s, again.arrival_s)
    np.testing.assert_array_equal(later.input_tokens, again.input_tokens)
    assert first.arrival_s[-1] < 3600.0 <= 5 * 3600.0 <= later.arrival_s[0]
    assert (np.diff(later.arrival_s) >= 0).all()
    later.validate()


def test_seeds_and_splits_are_other_episodes():
    draws = [
        stream(seed, split).piece(0).arrival_s for seed, split in ((0, "train"), (1, "train"), (0, "test"))
    ]
    assert len({len(draw) for draw in draws}) == 3


def test_requests_have_the_rates_and_shares_that_were_asked_for():
    own = stream(mean_rps=4.0)
    pieces = [own.piece(number) for number in range(own.num_pieces)]
    model = np.concatenate([piece.model_id for piece in pieces])
    region = np.concatenate([piece.region_id for piece in pieces])
    expected = own.expected(3600.0, 24)
    assert expected.shape == (len(TIERS), 2, 2, 24, 3)
    assert len(model) == pytest.approx(expected[..., 0].sum(), rel=0.02)
    assert np.bincount(model) / len(model) == pytest.approx([0.75, 0.25], abs=0.01)
    assert np.bincount(region) / len(region) == pytest.approx([0.6, 0.4], abs=0.01)
    counts = np.array([len(piece) for piece in pieces])
    by_hour = expected[..., 0].sum(axis=(0, 1, 2))
    assert np.abs(counts - by_hour).max() < 5 * np.sqrt(by_hour.max())
    tokens = sum(int(piece.input_tokens.sum()) for piece in pieces)
    assert tokens == pytest.approx(expected[..., 1].sum(), rel=0.03)


def test_the_past_is_like_the_present_and_goes_before_it():
    own = stream(mean_rps=4.0, past_s=7 * DAY_S)
    past, coming = own.past(3600.0, 168), own.expected(3600.0, 24)
    assert past.shape == (len(TIERS), 2, 2, 168, 3)
    same_day = past[..., :24, 0].sum(axis=(0, 1, 2))  # a Tuesday, as the episode
    assert np.corrcoef(same_day, coming[..., 0].sum(axis=(0, 1, 2)))[0, 1] > 0.9
    assert (past[..., 1] >= past[..., 0]).all()
    weekend = past[:2, ..., 4 * 24 : 6 * 24, 0].sum() / past[:2, ..., :48, 0].sum()
    assert weekend == pytest.approx(0.22, abs=0.05)
    with pytest.raises(ValueError, match="the past must be at most"):
        own.past(3600.0, 169)
    with pytest.raises(ValueError, match="whole minutes"):
        own.past(90.5, 2)


def test_an_episode_may_end_within_an_hour_and_rates_may_be_scaled():
    short = stream(duration_s=5000.0)
    assert short.num_pieces == 2
    assert short.piece(1).arrival_s[-1] < 5000.0
    assert short.expected(600.0, 10)[..., -1:, 0].sum() < short.expected(600.0, 10)[..., :1, 0].sum()
    spec = WorkloadSpec("sageserve_tiers", rate_scale=3.0, params={"start_h": 24.0})
    fast = WorkloadSource(spec).stream(0, "train", 0.0, DAY_S)
    assert fast.expected(DAY_S, 1)[..., 0].sum() > 3 * 10 * DAY_S


def test_a_workload_that_does_not_stream_is_cut():
    source = WorkloadSource(WorkloadSpec("azure_conv_fitted", num_requests=500, rate_rps=0.1))
    own = source.stream(3, "test", 0.0, 1e9)
    assert isinstance(own, WholeStream)
    whole = source.sample(3, "test")
    pieces = [own.piece(number) for number in range(own.num_pieces)]
    np.testing.assert_array_equal(np.concatenate([piece.arrival_s for piece in pieces]), whole.arrival_s)
    assert own.duration_s == pytest.approx(whole.arrival_s[-1])
    assert own.expected(60.0, 10_000)[..., 0].sum() == 500
    before = own.past(60.0, 200)
    assert before[..., -1:, 0].sum() > 0
    cut = source.stream(3, "test", 0.0, 1800.0)
    assert cut.num_pieces == 1
    assert (cut.piece(0).arrival_s < 1800.0).all()


def test_rates_must_fit():
    values = {
        "name": "x",
        "seed": np.random.SeedSequence(0),
        "clock_s": 0.0,
        "classes": ("a",),
        "priorities": (0,),
        "models": ("",),
        "regions": ("",),
        "rates_rps": np.ones((1, 1, 1, 10)),
        "past_minutes": 4,
        "duration_s": 360.0,
        "lengths": lambda rng, c, m: (np.ones(len(c), np.int32), np.ones(len(c), np.int32)),
        "max_output_tokens": 9,
    }
    assert MinuteStream(**values).num_pieces == 1
    for change, words in (
        ({"duration_s": 361.0}, "at most the 6 minutes"),
        ({"rates_rps": np.ones((2, 1, 1, 10))}, "must have the shape"),
        ({"rates_rps": -np.ones((1, 1, 1, 10))}, "not negative"),
    ):
        with pytest.raises(ValueError, match=words):
            MinuteStream(**{**values, **change})
