"""The workload of service tiers against what SageServe's paper and the data say of it."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec, make_workload
from serving_gym.envs.workload.tiers import TieredTraffic
from serving_gym.envs.workload.tiers_fit import BURST_FILE, WEEK_FILE, fit_bursts, fit_week

WEEK_S = 168 * 3600
LEVEL = {"daily_amplitude": 0.0, "weekend_ratio": 1.0, "minute_noise": 0.0, "slow_noise": 0.0}


def draw(requests, seed=0, **params):
    return TieredTraffic(**params).sample(requests, np.random.default_rng(seed)).validate()


def week(seed=0, **params):
    """About a week, from Monday on."""
    workload = draw(250_000, seed, mean_rps=0.4, start_h=0.0, **params)
    return workload.window(0.0, WEEK_S)


def rates_by_hour(workload, class_id):
    return np.bincount((workload.arrival_s[workload.class_id == class_id] // 3600).astype(int), minlength=168)


def test_tiers_have_their_shares_and_priorities():
    workload = week()
    shares = np.bincount(workload.class_id) / len(workload)
    assert workload.classes == ("iw_f", "iw_n", "niw")
    np.testing.assert_allclose(shares, [0.40, 0.32, 0.28], atol=0.01)
    np.testing.assert_array_equal(workload.priority, workload.class_id)
    assert len(workload) / WEEK_S == pytest.approx(0.4, rel=0.02)


def test_interactive_tiers_follow_the_week_and_the_other_does_not():
    workload = week()
    for tier in (0, 1):
        by_hour = rates_by_hour(workload, tier)
        by_day = by_hour.reshape(7, 24)
        assert by_day[:5, 13:18].mean() > 1.8 * by_day[:5, 1:6].mean()
        assert by_day[5:].mean() < 0.3 * by_day[:5].mean()
    even = rates_by_hour(workload, 2)
    assert even.std() == pytest.approx(np.sqrt(even.mean()), rel=0.25)  # Poisson


def test_most_prompts_are_above_and_most_answers_below_1000_tokens():
    workload = week()
    assert (workload.input_tokens > 1000).mean() > 0.5
    assert (workload.output_tokens < 1000).mean() > 0.99
    means = [workload.input_tokens[workload.class_id == tier].mean() for tier in range(3)]
    np.testing.assert_allclose(means, np.mean(means), rtol=0.02)


def test_without_shape_and_noise_arrivals_are_poisson():
    gaps = np.diff(draw(20_000, **LEVEL).arrival_s)
    assert gaps.mean() == pytest.approx(0.1, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_noise_within_the_hour():
    """Rates by minute: of the asked mean and deviation, and only the slow part of the noise outlasts the minute."""
    level = {name: value for name, value in LEVEL.items() if "noise" not in name}
    traffic = TieredTraffic(mean_rps=200.0, shares={"iw_f": 1.0}, **level)
    random = np.random.default_rng(1)
    _, rate = traffic._rates(0.0, random.standard_normal(100_000), random.standard_normal(100_000))
    assert rate.mean() == pytest.approx(200.0, rel=0.01)
    log_rate = np.log(rate)
    variance = traffic.minute_noise**2 + traffic.slow_noise**2
    assert log_rate.var() == pytest.approx(variance, rel=0.03)
    for minutes in (1, 10, 30):
        share = traffic.slow_noise**2 / variance * np.exp(-60 * minutes / traffic.slow_memory_s)
        assert np.corrcoef(log_rate[:-minutes], log_rate[minutes:])[0, 1] == pytest.approx(share, abs=0.02)


def test_a_longer_workload_begins_with_the_shorter_one():
    short, long = draw(500, 3), draw(90_000, 3)
    assert short.equals(long.head(500))


def test_models_and_regions():
    params = {"models": {"a": 3.0, "b": 1.0}, "regions": {"east": 0.5, "west": 0.25, "central": 0.25}}
    workload = draw(20_000, **params)
    assert (workload.models, workload.regions) == (("a", "b"), ("east", "west", "central"))
    np.testing.assert_allclose(np.bincount(workload.model_id) / 20_000, [0.75, 0.25], atol=0.01)
    np.testing.assert_allclose(np.bincount(workload.region_id) / 20_000, [0.5, 0.25, 0.25], atol=0.01)


def test_a_tier_may_be_left_out():
    assert set(draw(2000, shares={"iw_f": 4, "iw_n": 1}).class_id) == {0, 1}
    assert set(draw(2000, shares={"niw": 1.0}).class_id) == {2}


def test_episodes_begin_at_any_hour_unless_told():
    spec = WorkloadSpec(name="sageserve_tiers", num_requests=3000, params={"mean_rps": 2.0})
    shares = [(make_workload(spec, seed).class_id == 2).mean() for seed in range(12)]
    assert max(shares) > 0.5 > 0.3 > min(shares)  # nights and weekends, and days
    assert WorkloadSource(spec).rate_rps == 2.0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"shares": {"iw": 1.0}}, "names the tier 'iw'; tiers are iw_f, iw_n, niw"),
        ({"shares": {"iw_f": -1.0}}, "shares must have shares that are not negative"),
        ({"shares": {}}, "shares must name at least one tier"),
        ({"regions": {"east": 0.0}}, "regions must have shares"),
        ({"mean_rps": 0.0}, "mean_rps must be positive and finite"),
        ({"slow_noise": -0.1}, "slow_noise must be finite and not negative"),
        ({"start_h": 168.0}, r"start_h must lie in \[0, 168\)"),
        ({"code_share": 2.0}, r"code_share must lie in \[0, 1\]"),
        ({"mean_rp": 1.0}, "did you mean 'mean_rps'"),
    ],
)
def test_mistakes_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        WorkloadSource(WorkloadSpec(name="sageserve_tiers", params=params))


def test_coefficients_are_those_that_the_data_give(real_traces):
    folder = Path(os.environ["SERVING_GYM_DATA"])
    folder = folder / "traces" if (folder / "traces").is_dir() else folder
    if not (folder / WEEK_FILE).is_file() or not (folder / BURST_FILE).is_file():
        pytest.skip("the digitised figures are not at hand")
    fitted = fit_week(pd.read_csv(folder / WEEK_FILE)) | fit_bursts(pd.read_csv(folder / BURST_FILE))
    assert fitted.pop("r2") > 0.9
    traffic = TieredTraffic()
    for name, value in fitted.items():
        assert getattr(traffic, name) == pytest.approx(value, rel=0.005), name


def test_fits_find_what_a_series_was_made_of():
    hours = np.arange(0, 168, 4.0)
    traffic = TieredTraffic(daily_amplitude=0.5, peak_h=10.0, weekend_ratio=0.3)
    found = fit_week(pd.DataFrame({"t_h": hours, "interactive_tokens_per_s": 5e4 * traffic.shape(hours)}))
    assert found == pytest.approx(
        {"daily_amplitude": 0.5, "peak_h": 10.0, "weekend_ratio": 0.3, "r2": 1.0}, rel=1e-6
    )
