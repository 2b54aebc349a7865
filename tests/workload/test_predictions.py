"""Predicted output lengths where there is no text: the errors of published predictors."""

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.envs.workload.predictions import (
    PREDICTORS,
    TABLE_2,
    PredictionSpec,
    accuracy,
    error_probabilities,
    predict_lengths,
)
from serving_gym.envs.workload.schema import Workload


def spec_of(name, **changes):
    return PredictionSpec(name, median_tokens=87 if name == "median" else None, **changes)


def requests(n=200_000, **changes):
    """Answers as long as ShareGPT's: 5 % to 5 tokens, median 87, 95 % to 632 (PreServe, section 3.1.2)."""
    rng = np.random.default_rng(7)
    output = np.interp(rng.random(n), (0.0, 0.05, 0.5, 0.95, 1.0), (1.0, 5.0, 87.0, 632.0, 2000.0))
    columns = {
        "arrival_s": np.arange(n) * 0.1,
        "input_tokens": np.full(n, 50),
        "output_tokens": np.rint(output).astype(np.int32),
        "max_output_tokens": np.full(n, 4096),
        "predicted_tokens": np.rint(output * 1.5 + 3).astype(np.int32),
    }
    return Workload(**{**columns, **changes}).validate()


@pytest.fixture(scope="module")
def sharegpt():
    return requests()


@pytest.mark.parametrize("name", TABLE_2)
def test_error_distributions_have_the_figures_of_table_2(name):
    probabilities, row = error_probabilities(name), TABLE_2[name]
    assert probabilities.shape == (4096,)
    assert probabilities.min() > 0
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    assert probabilities @ np.arange(4096) == pytest.approx(row.mae, abs=1e-8)
    shares = [probabilities[: band + 1].sum() for band in (25, 50, 100)]
    assert shares == pytest.approx(row.within, abs=1e-12)


@pytest.mark.parametrize("name", TABLE_2)
def test_errors_are_of_maximum_entropy(name):
    """Moving mass so that the four figures stay only ever loses entropy: log-probabilities are linear in each band."""
    slopes = [
        np.diff(np.log(error_probabilities(name)[first : last + 1]))
        for first, last in ((0, 25), (26, 50), (51, 100), (101, 4095))
    ]
    slope = slopes[0][0]
    assert slope < 0
    assert np.allclose(np.concatenate(slopes), slope, atol=1e-9)


@pytest.mark.parametrize("name", TABLE_2)
def test_predictions_of_answers_like_sharegpts_have_the_figures_of_table_2(name, sharegpt):
    found = accuracy(predict_lengths(PredictionSpec(name), sharegpt, seed=3), sharegpt.output_tokens)
    row = TABLE_2[name]
    # Four standard errors of a mean whose standard deviation is at most 1.1 times the mean absolute error of 355.
    assert found["mae"] == pytest.approx(row.mae, rel=0.015)
    for band, share in zip((25, 50, 100), row.within, strict=True):
        assert found[f"acc_{band}"] == pytest.approx(share, abs=0.005)


def test_the_better_predictor_is_better_on_every_request(sharegpt):
    error = {
        name: np.abs(predict_lengths(PredictionSpec(name), sharegpt, 0) - sharegpt.output_tokens)
        for name in ("preserve", "mu_serve")
    }
    assert (error["preserve"] <= error["mu_serve"]).mean() > 0.999


def test_sign_is_a_fair_coin_where_both_are_possible():
    middle = requests(50_000, output_tokens=np.full(50_000, 2048))
    error = predict_lengths(PredictionSpec(), middle, 0) - 2048
    assert (error > 0).sum() / (error != 0).sum() == pytest.approx(0.5, abs=0.01)
    assert error.mean() == pytest.approx(0.0, abs=3.0)


def test_errors_that_fit_one_way_only_go_that_way_and_others_are_clipped():
    short = requests(50_000, output_tokens=np.full(50_000, 1), max_output_tokens=np.full(50_000, 4096))
    assert accuracy(predict_lengths(PredictionSpec(), short, 0), 1)["mae"] == pytest.approx(78.25, rel=0.03)
    long = requests(50_000, output_tokens=np.full(50_000, 5000), max_output_tokens=np.full(50_000, 9000))
    predicted = predict_lengths(PredictionSpec(), long, 0)
    assert predicted.max() == 4096
    capped = requests(50_000, output_tokens=np.full(50_000, 20), max_output_tokens=np.full(50_000, 30))
    predicted = predict_lengths(PredictionSpec("mu_serve"), capped, 0)
    assert set(np.unique(predicted)) == set(range(1, 31))
    # What fits neither way ends at the end that the coin chose: about half of all errors above 19 tokens.
    missed = error_probabilities("mu_serve")[20:].sum()
    assert (predicted == 30).mean() == pytest.approx(missed / 2, abs=0.02)


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_prediction_is_a_length_and_depends_on_seed_and_row_alone(name):
    table = requests(500)
    spec = spec_of(name)
    predicted = predict_lengths(spec, table, 5)
    assert predicted.dtype == np.int32
    assert predicted.shape == (500,)
    assert predicted.min() >= 1
    assert (predicted <= table.max_output_tokens).all()
    assert np.array_equal(predicted, predict_lengths(spec, table, 5))
    assert np.array_equal(predicted[:100], predict_lengths(spec, table.head(100), 5))
    draws = name in TABLE_2 or name == "lognormal"
    assert np.array_equal(predicted, predict_lengths(spec, table, 6)) != draws


def test_predictors_that_draw_nothing():
    table = requests(500)
    assert np.array_equal(predict_lengths(spec_of("oracle"), table, 0), table.output_tokens)
    assert np.array_equal(predict_lengths(spec_of("max"), table, 0), table.max_output_tokens)
    assert set(predict_lengths(spec_of("median"), table, 0)) == {87}
    assert np.array_equal(predict_lengths(spec_of("column"), table, 0), table.predicted_tokens)
    assert [name for name in PREDICTORS if spec_of(name).clairvoyant] == ["oracle"]


def test_lognormal_is_unbiased_in_the_median(sharegpt):
    thousand = replace(sharegpt, output_tokens=np.full(len(sharegpt), 1000))
    factor = np.log(predict_lengths(spec_of("lognormal"), thousand, 1) / 1000)
    assert np.median(factor) == pytest.approx(0.0, abs=0.005)
    assert factor.std() == pytest.approx(0.4, abs=0.005)
    wide = np.log(predict_lengths(spec_of("lognormal", spread=0.5, sigma=0.2), thousand, 1) / 1000)
    assert wide.std() == pytest.approx(0.1, abs=0.002)


def test_spread_scales_errors(sharegpt):
    once, twice = (
        predict_lengths(PredictionSpec("preserve", spread=spread), sharegpt, 3) for spread in (1.0, 2.0)
    )
    truth = sharegpt.output_tokens
    ratio = accuracy(twice, truth)["mae"] / accuracy(once, truth)["mae"]
    assert ratio == pytest.approx(2.0, rel=0.02)
    table = requests(4, output_tokens=[10, 20, 30, 40], predicted_tokens=[12, 10, 30, 60])
    assert predict_lengths(spec_of("column", spread=2.0), table, 0).tolist() == [14, 1, 30, 80]
    for name in PREDICTORS:
        nothing = predict_lengths(spec_of(name, spread=0.0), table, 0)
        if name not in ("max", "median"):
            assert nothing.tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "presrve"}, "unknown prediction name 'presrve'; did you mean 'preserve'"),
        ({"spread": -1.0}, "prediction spread must be finite and not negative, got -1.0"),
        ({"spread": float("nan")}, "prediction spread must be finite"),
        ({"name": "lognormal", "sigma": float("inf")}, "prediction sigma must be finite"),
        ({"name": "median"}, "median_tokens must be given for prediction 'median'"),
        ({"name": "median", "median_tokens": 0}, "median_tokens must be at least 1, got 0"),
        ({"median_tokens": 87}, "for no other; 'preserve' has median_tokens=87"),
    ],
)
def test_a_bad_specification_gives_one_sentence(words, message):
    with pytest.raises(ValueError, match=message):
        PredictionSpec(**words)


def test_what_cannot_be_predicted_says_so():
    table = requests(5)
    with pytest.raises(ValueError, match="needs a workload with a column 'predicted_tokens'; 'unnamed' has"):
        predict_lengths(spec_of("column"), replace(table, predicted_tokens=None), 0)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        predict_lengths(PredictionSpec(), table, -1)
    with pytest.raises(ValueError, match="at least one prediction"):
        accuracy([], [])
    with pytest.raises(ValueError, match="unknown row of Table 2 'oracle'"):
        error_probabilities("oracle")
