"""Models invoked as serverless functions are."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.workload.functions import FITTED_FILE, FittedFunctions, limited, load_function_fit
from serving_gym.envs.workload.functions_fit import fit_functions, is_periodic
from serving_gym.envs.workload.registry import SPLITS, WorkloadSource, WorkloadSpec, make_workload
from serving_gym.envs.workload.seeding import stream

MIX = {"sizes": ("llama-3.2-3b", "llama-2-7b", "llama-2-13b"), "ratio": (4, 1, 1)}


def test_models_are_named_by_size_in_their_ratio_whatever_the_seed():
    traffic = FittedFunctions(num_models=12, **MIX)
    sizes = [name.split("#")[0] for name in traffic.models]
    assert [sizes.count(size) for size in MIX["sizes"]] == [8, 2, 2]
    assert [name.split("#")[1] for name in traffic.models] == [str(i) for i in range(12)]
    assert WorkloadSource(WorkloadSpec("functions_fitted", params={"num_models": 12, **MIX})).models == (
        traffic.models
    )


def test_sequences_are_no_longer_than_asked_and_answers_whole():
    workload = FittedFunctions(num_models=64, max_tokens=2048).sample(10**6, stream(0, "x")).validate()
    longest = workload.input_tokens + workload.max_output_tokens
    assert longest.max() <= 2048
    plain = FittedFunctions(num_models=64).sample(10**6, stream(0, "x"))
    np.testing.assert_array_equal(workload.output_tokens, plain.output_tokens)
    assert plain.input_tokens.max() > 2048 > workload.input_tokens.max()


def test_half_an_hour_at_the_fitted_rate():
    source = WorkloadSource(WorkloadSpec("functions_fitted", params={"num_models": 128}))
    episodes = [source.sample(seed) for seed in range(40)]
    assert all(e.arrival_s[0] >= 0 and e.arrival_s[-1] < 1800.0 for e in episodes)
    mean = np.mean([len(e) for e in episodes]) / 1800.0
    assert mean == pytest.approx(source.rate_rps, rel=0.2)  # 3.6 % of functions make half of the invocations


def test_the_fit_is_as_close_to_the_trace_as_it_says():
    fit = load_function_fit().fit
    assert max(value for name, value in fit.items() if name.startswith("ks_")) < 0.06
    assert 0.95 < fit["mean_ratio"] < 1.05


def test_the_fit_finds_again_what_it_draws():
    fit = load_function_fit()
    again = fit_functions(fit.draw(4000, stream(1, "x")))
    np.testing.assert_allclose(again.counts[:19], fit.counts[:19], atol=2.0)
    # Chance makes some functions even that were not drawn to be.
    assert (np.array(again.periodic) >= np.array(fit.periodic) - 0.06).all()
    assert again.stickiness[5] == pytest.approx(fit.stickiness[5], abs=0.1)


def test_periodic_functions_are_told_by_their_gaps_and_counts():
    row = np.zeros(30, np.int64)
    row[::5] = 2
    assert is_periodic(row)
    row[5] = 9
    assert not is_periodic(row)
    assert not is_periodic(np.eye(30, dtype=np.int64)[3])


@pytest.mark.parametrize("band", range(7))
def test_a_function_is_invoked_as_often_as_drawn(band):
    fit = load_function_fit()
    rng = np.random.default_rng(band)
    total = fit.bands[band]
    for _ in range(200):
        row = fit._function(total, rng)
        assert row.shape == (30,)
        assert row.sum() == total
        assert row.min() >= 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_models": 0}, "num_models must be at least 1"),
        ({"minutes": 31}, "minutes must be at most 30"),
        ({"ratio": (1, 1)}, "ratio must have an entry for each of sizes"),
        ({"max_tokens": 100}, "max_tokens must be above the longest answer"),
        ({"first_minute": 3}, "first_minute is of the trace"),
        ({"num_model": 3}, "did you mean 'num_models'"),
    ],
)
def test_refusals(params, message):
    with pytest.raises(ValueError, match=message):
        WorkloadSource(WorkloadSpec("functions_fitted", params=params))


def test_without_data_the_trace_says_where_it_should_be(monkeypatch):
    monkeypatch.delenv("SERVING_GYM_DATA", raising=False)
    with pytest.raises(ValueError, match="take workload=functions_fitted"):
        make_workload(WorkloadSpec("functions_2019"), 0)


def test_the_trace_gives_its_own_minutes(real_traces):
    assert FITTED_FILE.is_file()
    source = WorkloadSource(WorkloadSpec("functions_2019", params={"num_models": 563}))
    whole = source.sample(0)
    assert len(whole) == 13603  # all that was invoked in the first half hour
    assert len({source.sample(0, split).sha256() for split in SPLITS}) == len(SPLITS)
    fitted = fit_functions(_first_half_hour())
    assert fitted == load_function_fit()


def _first_half_hour():
    from serving_gym.envs.workload.functions import minute_counts

    return minute_counts()[:, :30]


def test_no_function_has_more_than_its_share_and_the_others_keep_theirs():
    counts = np.array([[900, 100], [30, 0], [0, 50], [20, 0]])
    kept = limited(counts, 0.5, stream(0, "x"))
    np.testing.assert_array_equal(kept[1:], counts[1:])
    assert kept[0].sum() == 100
    assert (kept <= counts).all()
    assert limited(counts, 0.1, stream(0, "x")).sum() == len(counts)  # four cannot have a tenth each
    whole, less = (
        FittedFunctions(num_models=32, largest_share=share).sample(10**6, stream(1, "x"))
        for share in (1.0, 0.2)
    )
    assert np.bincount(whole.model_id).max() / len(whole) > 0.2
    assert np.bincount(less.model_id).max() / len(less) <= 0.2


def test_functions_may_be_taken_by_how_often_they_are_invoked():
    fit = load_function_fit()
    for popularity in (0.01, 0.5):
        traffic = FittedFunctions(num_models=1, popularity=popularity)
        expected = round(float(np.interp(1 - popularity, fit.levels, fit.counts)))
        assert len(traffic.sample(10**6, stream(0, "x"))) == max(expected, 1)
