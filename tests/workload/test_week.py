"""Weeks of several models and regions: their shape, their noise and their past."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.seeding import seed_sequence
from serving_gym.envs.workload.week import WeekTraffic, joined
from serving_gym.envs.workload.weekly_fit import fit_curves, fit_memory, main
from serving_gym.envs.workload.weekly_profile import WeeklyProfile, load_profile, profile_names

TWO = {
    "models": {
        "large": {"share": 3.0},
        "small": {"share": 1.0, "profile": "azure_code", "regions": {"west": 1.0}},
    },
    "regions": {"east": {"share": 2.0}, "west": {"share": 1.0, "later_h": 3.0}},
}
STEP = WeeklyProfile("step", ("work",) * 5 + ("free",) * 2, {"work": (np.log(4.0),), "free": (0.0,)}, 0.0, ())


def episode(duration_h, past_h=0.0, seed=0, **params):
    source = WorkloadSource(WorkloadSpec(name="week", params=params))
    return source.stream(seed, past_s=past_h * 3600, duration_s=duration_h * 3600)


def test_a_profile_by_hand():
    """Five days at 4 and two at 1 have a mean of 22 / 7, but for the blend on two nights."""
    noon = STEP.shape(np.array([12.0, 36.0, 132.0, 156.0, 12.0 - 168.0, 12.0 + 168.0]))
    np.testing.assert_allclose(noon, np.array([4, 4, 1, 1, 4, 4]) / (22 / 7), rtol=0.01)
    midnight = STEP.shape(np.array([120.0 - 1e-9, 120.0 + 1e-9]))  # Friday to Saturday: the geometric mean
    np.testing.assert_allclose(midnight, 2 / (22 / 7), rtol=0.01)


@pytest.mark.parametrize("name", profile_names())
def test_profiles_have_a_mean_of_one_and_say_where_they_come_from(name):
    profile = load_profile(name)
    hours = np.arange(0, 168, 0.05)
    assert profile.shape(hours).mean() == pytest.approx(1.0, rel=1e-3)
    assert np.abs(np.diff(np.log(profile.shape(hours)))).max() < 0.08  # no jumps at midnight
    assert {"source", "licence", "clock", "values", "method"} <= set(profile.provenance)
    assert 0 < profile.fit["mean_ape_held_out"] < 0.35
    assert 0.05 < profile.noise_variance**0.5 < 0.4


def test_weekdays_are_busier_than_weekends_where_the_series_say_so():
    for name in ("azure_code", "azure_conv", "m365_interactive"):
        by_day = load_profile(name).shape(np.arange(168.0)).reshape(7, 24).mean(axis=1)
        assert by_day[5:].max() < 0.7 * by_day[:5].min()
    small = load_profile("servegen_m_small").shape(np.arange(24.0))
    assert small.max() > 2 * small.min()


def test_curves_and_memory_are_found_again():
    hour = np.arange(0, 168, 0.1)
    angle = 2 * np.pi * hour / 24
    rate = np.where(hour < 120, np.exp(1 + 0.5 * np.cos(angle)), np.exp(0.2))
    curves = fit_curves(hour, rate, STEP.days, {"work": 1, "free": 0})
    np.testing.assert_allclose(curves["work"], [1.0, 0.5, 0.0], atol=1e-4)
    np.testing.assert_allclose(curves["free"], [0.2], atol=1e-4)
    decay = np.exp(-600 / 5400)
    shocks = np.random.default_rng(0).standard_normal(40_000) * np.sqrt(1 - decay**2) * 0.3
    wander = np.zeros(40_000)
    for t in range(1, len(wander)):
        wander[t] = decay * wander[t - 1] + shocks[t]
    found = {part.time_scale_s: part.variance for part in fit_memory(wander, 600.0)}
    assert sum(found.values()) == pytest.approx(0.09, rel=0.1)
    assert found[5400.0] > 0.6 * 0.09


@pytest.mark.skipif("SERVING_GYM_DATA" not in os.environ, reason="reads the reference data")
def test_the_files_are_what_the_fit_writes(tmp_path):
    main(Path(os.environ["SERVING_GYM_DATA"]) / "traces", tmp_path)
    written = {file.stem: file.read_text() for file in tmp_path.glob("*.json")}
    assert set(written) == set(profile_names())
    for name, text in written.items():
        again = pd.read_json(tmp_path / f"{name}.json", typ="series")
        assert again["fit"] == pytest.approx(dict(load_profile(name).fit), rel=1e-3)
        assert len(text) > 500


def test_shares_of_models_regions_and_tiers():
    stream = episode(168.0, requests_per_week=200_000, start_h=0.0, noise=0.0, **TWO)
    workload = joined([stream.piece(number) for number in range(stream.num_pieces)]).validate()
    assert len(workload) == pytest.approx(200_000, rel=0.01)
    cells = np.bincount(2 * workload.model_id + workload.region_id, minlength=4) / len(workload)
    np.testing.assert_allclose(cells, [0.5, 0.25, 0.0, 0.25], atol=0.005)
    tiers = np.bincount(workload.class_id) / len(workload)
    np.testing.assert_allclose(tiers, [0.75 * 0.40 / 0.72, 0.75 * 0.32 / 0.72, 0.25], atol=0.005)
    assert (workload.models, workload.regions) == (("large", "small"), ("east", "west"))


def test_a_region_s_day_begins_later():
    rates = episode(24.0, requests_per_week=1e6, start_h=48.0, noise=0.0, **TWO).rates_rps[0, 0]
    np.testing.assert_allclose(rates[1, 180:1300], rates[0, : 1300 - 180] / 2.0, rtol=1e-9)


def test_a_number_of_requests_is_a_begin_of_the_stream():
    source = WorkloadSource(
        WorkloadSpec(name="week", num_requests=5000, params={"requests_per_week": 1e5, **TWO})
    )
    fewer = WorkloadSource(WorkloadSpec(name="week", num_requests=100, params=source.spec.params))
    assert source.sample(5).head(100).equals(fewer.sample(5))
    assert not source.sample(6).equals(source.sample(5))
    assert not source.sample(5, "validation").equals(source.sample(5))


def test_a_longer_past_and_a_longer_episode_hold_the_shorter_ones():
    short = episode(5.0, past_h=3.0, start_h=30.0)
    long = episode(50.0, past_h=30.0, start_h=30.0)
    np.testing.assert_allclose(long.rates_rps[..., 27 * 60 : 35 * 60], short.rates_rps)
    assert long.piece(2).equals(short.piece(2))
    assert short.clock_s == 30 * 3600.0


def test_the_past_goes_over_into_the_present():
    """Noise that lasts is one path across the begin: the last minutes before it are like the first after it."""
    ratios, levels = [], []
    for seed in range(40):
        rates = episode(0.5, past_h=0.5, seed=seed, requests_per_week=1e6, start_h=60.0).rates_rps[0, 0, 0]
        ratios.append(np.log(rates[:30].mean() / rates[30:].mean()))
        levels.append(np.log(rates.mean()))
    assert np.std(levels) > 0.18
    assert np.std(ratios) < 0.13  # two independent paths would differ by 0.3


def test_bursts_raise_the_interactive_load():
    calm, burst = (episode(48.0, start_h=56.0, noise=0.0, bursts_per_day=number) for number in (0, 1))
    traffic = WeekTraffic(start_h=56.0, bursts_per_day=1)
    begins_s = traffic.burst_begins_s(seed_sequence(0, "week", "train"), 48 * 3600.0)
    assert len(begins_s) == 2
    assert ((begins_s % 86_400 > 8640) & (begins_s % 86_400 < 0.9 * 86_400)).all()
    ratio = burst.rates_rps / calm.rates_rps
    for begin_s in begins_s:
        first = round(begin_s / 60)
        np.testing.assert_allclose(ratio[:2, ..., first : first + 15], 8.0)
    assert (ratio[:2] > 1).sum() == 2 * 2 * 15
    np.testing.assert_allclose(ratio[2], 1.0)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"models": {"a": {"profile": "nobody"}}}, "unknown profile"),
        ({"models": {"a": {"chare": 1}}}, "models.a has no field 'chare'"),
        ({"models": {"a": {"regions": {"mars": 1}}}}, "models.a.regions names 'mars'"),
        ({"models": {"a": {"share": -1}}}, "models must have shares"),
        ({"models": {"a": {"code_share": 2}}}, "code_share must lie in"),
        ({"regions": {"a": 3}}, "regions.a must be a mapping"),
        ({"requests_per_week": 0}, "requests_per_week must be positive"),
        ({"iw_to_niw": -1}, "iw_to_niw must be finite and not negative"),
        ({"fast_share": 1.5}, "fast_share must lie"),
        ({"start_h": 168}, "start_h must lie"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(params, words):
    with pytest.raises(ValueError, match=words):
        WeekTraffic(**params)
