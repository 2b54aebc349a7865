"""Generators: the fitted ones against their traces, the synthetic ones against their paper."""

import numpy as np
import pytest
from scipy.signal import lfilter

from serving_gym.envs.workload import flying
from serving_gym.envs.workload.fitting import (
    PROBABILITIES,
    fit,
    fit_memory,
    goodness,
    marginal_distances,
    rank_correlation,
)
from serving_gym.envs.workload.generators import (
    FittedWorkload,
    MemoryComponent,
    autoregress,
    fitted_names,
    load_fitted,
)
from serving_gym.envs.workload.mixing import with_long_prompts, with_priorities
from serving_gym.envs.workload.schema import Workload, counts_per_bin, variation
from serving_gym.envs.workload.sharegpt import sharegpt_poisson
from serving_gym.envs.workload.traces import TRACES, load_trace

FITTED = ("azure_code_fitted", "azure_conv_fitted", "mooncake_conv_fitted")


def model(**changes):
    """Exponential gaps of mean 0.5 s with slow memory, uniform lengths."""
    levels = PROBABILITIES
    values = {
        "name": "model",
        "rate_rps": 2.0,
        "probabilities": tuple(levels),
        "interarrival_s": tuple(-0.5 * np.log1p(-np.minimum(levels, 0.99999))),
        "input_tokens": tuple(1 + 999 * levels),
        "output_tokens": tuple(1 + 99 * levels),
        "memory": (MemoryComponent(100.0, 0.3),),
        "length_correlation": -0.5,
    }
    return FittedWorkload(**{**values, **changes})


def test_every_fitted_generator_ships():
    assert fitted_names() == FITTED


@pytest.mark.parametrize("name", FITTED)
def test_fitted_generators_carry_their_provenance(name):
    fitted = load_fitted(name)
    trace = TRACES[fitted.provenance["trace"]]
    assert fitted.provenance["licence"] == trace.licence
    assert fitted.provenance["publisher"] == trace.publisher
    assert len(fitted.provenance["trace_sha256"]) == 64
    assert 1000 < fitted.provenance["rows"] <= trace.published_rows
    assert len(fitted.probabilities) <= 101
    assert sum(component.weight for component in fitted.memory) <= 1.0


@pytest.mark.parametrize("name", FITTED)
def test_recorded_distances_are_small(name):
    recorded = load_fitted(name).fit
    assert recorded["ks_interarrival_s"] < 0.03
    assert recorded["ks_input_tokens"] < 0.01
    assert recorded["ks_output_tokens"] < 0.01


@pytest.mark.parametrize("name", FITTED)
def test_generated_workloads_are_like_their_trace(name, real_traces):
    """Marginals within 0.03 (gaps) and 0.01 (lengths) in Kolmogorov-Smirnov distance, counts within 20 %."""
    fitted = load_fitted(name)
    trace = load_trace(fitted.provenance["trace"])
    if len(trace) != fitted.provenance["rows"]:
        pytest.skip("another extract of the trace than the one fitted")
    assert trace.sha256() == fitted.provenance["trace_sha256"]
    measured = goodness(fitted, trace)
    assert measured == pytest.approx(fitted.fit, abs=1e-4)
    for figure in ("rate_rps", "interarrival_cv", "count_cv_10s", "count_cv_60s"):
        assert measured[f"{figure}_generated"] == pytest.approx(measured[f"{figure}_trace"], rel=0.2), figure
    correlations = measured["rank_correlation_generated"], measured["rank_correlation_trace"]
    assert correlations[0] == pytest.approx(correlations[1], abs=0.01)


def test_the_shipped_fit_is_what_fitting_gives(real_traces):
    shipped = load_fitted("azure_code_fitted")
    again = fit(load_trace("azure_code"), shipped.name)
    for table in ("interarrival_s", "input_tokens", "output_tokens"):
        assert getattr(again, table) == pytest.approx(getattr(shipped, table), rel=1e-4)
    assert [part.weight for part in again.memory] == pytest.approx(
        [part.weight for part in shipped.memory], abs=1e-3
    )


def test_fitting_recovers_a_known_model():
    truth = model(memory=(MemoryComponent(30.0, 0.3),))
    again = fit(truth.sample(20_000, np.random.default_rng(1)), "again")
    assert again.rate_rps == pytest.approx(2.0, rel=0.1)
    assert sum(part.weight for part in again.memory) == pytest.approx(0.3, abs=0.06)
    assert again.length_correlation == pytest.approx(-0.5, abs=0.03)
    draws = [again.sample(5000, np.random.default_rng(seed)) for seed in range(5)]
    assert max(marginal_distances(draws, truth.sample(20_000, np.random.default_rng(2))).values()) < 0.06


def test_poisson_gaps_have_no_memory():
    gaps = np.random.default_rng(0).exponential(size=20_000)
    assert sum(part.weight for part in fit_memory(gaps)) < 0.02


def test_memory_makes_counts_vary_more_than_poisson():
    def spread(memory):
        table = model(memory=memory).sample(20_000, np.random.default_rng(0))
        return variation(counts_per_bin(table.arrival_s, 30.0))

    poisson = 1 / np.sqrt(2.0 * 30.0)
    assert spread(()) == pytest.approx(poisson, rel=0.1)
    assert spread((MemoryComponent(100.0, 0.3),)) > 2 * poisson


def test_white_noise_alone_and_memory_alone_are_allowed():
    full = model(memory=(MemoryComponent(50.0, 1.0),), length_correlation=1.0).sample(
        500, np.random.default_rng(0)
    )
    assert rank_correlation(full.validate()) > 0.99
    constant = Workload([0.0, 1.0, 2.0], [5, 5, 5], [1, 2, 3])
    assert rank_correlation(constant) == 0.0


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.9997])
def test_doubling_is_theautoregression(decay):
    shocks = np.random.default_rng(0).standard_normal(3001)
    assert np.allclose(autoregress(shocks, decay), lfilter([1.0], [1.0, -decay], shocks), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("rows", "message"), [(50, "at least 200 requests"), (500, "are all equal")])
def test_fit_refuses_what_it_cannot_fit(rows, message):
    table = Workload(np.zeros(rows), np.ones(rows, dtype=int), np.ones(rows, dtype=int))
    with pytest.raises(ValueError, match=message):
        fit(table, "hopeless")


def test_save_and_load(tmp_path):
    path = tmp_path / "model.json"
    model().save(path)
    assert FittedWorkload.load(path) == model()
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a fitted generator"):
        FittedWorkload.load(path)
    with pytest.raises(ValueError, match="does not exist"):
        FittedWorkload.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "generator",
    [model(), flying.bursty(), flying.priority(), flying.long(), sharegpt_poisson()],
    ids=lambda g: g.name,
)
def test_a_longer_draw_begins_with_the_shorter_one(generator):
    short = generator.sample(100, np.random.default_rng(5)).validate()
    longer = generator.sample(1000, np.random.default_rng(5)).validate()
    assert longer.head(100).equals(short)
    assert short.input_tokens.max() <= generator.max_input_tokens
    assert short.max_output_tokens.tolist() == [generator.max_output_tokens] * 100


def test_flying_bursty_has_the_papers_rates():
    """Section 6.1.3: 2 to 5 requests/s alternating with 10 to 30, 4000 requests."""
    traffic = flying.bursty()
    assert traffic.num_requests == 4000
    rng = np.random.default_rng(0)
    durations, rates = traffic._draw_phases(rng)
    assert ((rates[::2] >= 2) & (rates[::2] <= 5)).all()
    assert ((rates[1::2] >= 10) & (rates[1::2] <= 30)).all()
    assert ((durations[::2] >= 40) & (durations[::2] <= 80)).all()
    assert ((durations[1::2] >= 15) & (durations[1::2] <= 40)).all()
    draws = [traffic.sample(4000, np.random.default_rng(seed)) for seed in range(20)]
    assert np.mean([draw.rate_rps for draw in draws]) == pytest.approx(traffic.rate_rps, rel=0.1)
    counts = counts_per_bin(draws[0].arrival_s, 10.0)
    assert counts.min() < 50 < 100 < counts.max()
    lengths = np.concatenate([draw.input_tokens for draw in draws])
    assert (lengths.min(), lengths.max()) == (512, 4096)
    assert lengths.mean() == pytest.approx(2304, rel=0.02)


def test_a_constant_rate_is_poisson():
    traffic = flying.bursty(low_rate_rps=[4.0, 4.0], burst_rate_rps=[4.0, 4.0])
    gaps = np.diff(traffic.sample(20_000, np.random.default_rng(0)).arrival_s)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert variation(gaps) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"low_rate_rps": [5.0, 2.0]}, "low_rate_rps must be a range"),
        ({"low_rate_rps": None}, "low_rate_rps must be a range of two numbers"),
        ({"low_duration_s": [1.0, 2.0, 3.0]}, "low_duration_s must be a range of two numbers"),
        ({"burst_rate_rps": [0.0, 1.0]}, "burst_rate_rps must be a range"),
        ({"input_tokens": [0, 5]}, "input_tokens must be a range"),
        ({"output_tokens": [1.5, 5]}, "output_tokens must be a range of whole numbers"),
        ({"num_requests": 0}, "num_requests must be at least 1"),
    ],
)
def test_flying_refuses_bad_parameters(params, message):
    with pytest.raises(ValueError, match=message):
        flying.bursty(**params)


def test_mixers_commute_and_keep_labels():
    base = flying.long().sample(4000, np.random.default_rng(0))
    one = with_long_prompts(with_priorities(base, 0.2, 7), 0.02, 9000, 7).validate()
    other = with_priorities(with_long_prompts(base, 0.02, 9000, 7), 0.2, 7).validate()
    assert one.equals(other)
    assert one.classes == ("priority", "normal", "long")
    assert (one.priority == 0).mean() == pytest.approx(0.2, abs=0.02)
    assert (one.class_id == 2).mean() == pytest.approx(0.02, abs=0.01)
    assert ((one.input_tokens == 9000) == (one.class_id == 2)).all()
    assert np.array_equal(one.arrival_s, base.arrival_s)
    assert not one.equals(with_long_prompts(with_priorities(base, 0.2, 8), 0.02, 9000, 8))
    assert with_long_prompts(one, 0.02, 9000, 9).classes == one.classes


def test_long_prompts_share_no_blocks():
    base = Workload(
        np.arange(50.0),
        np.full(50, 600),
        np.ones(50),
        hash_offsets=np.arange(51) * 2,
        hash_ids=np.arange(100),
    )
    mixed = with_long_prompts(base, 0.5, 9000, 1).validate()
    lengths = np.diff(mixed.hash_offsets)
    assert np.array_equal(lengths == 0, mixed.input_tokens == 9000)
    assert np.array_equal(mixed.hash_ids // 2, np.repeat(np.arange(50), lengths))


def test_mixers_refuse_bad_shares():
    base = model().sample(10, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"priority_share must be between 0 and 1, got 1\.5"):
        with_priorities(base, 1.5, 0)
    with pytest.raises(ValueError, match="long_share"):
        with_long_prompts(base, -0.1, 10, 0)
    with pytest.raises(ValueError, match="long_input_tokens"):
        with_long_prompts(base, 0.1, 0, 0)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        with_priorities(base, 0.5, -1)


def test_sharegpt_has_the_papers_quantiles_and_poisson_arrivals():
    """PreServe, section 3.1.2: prompts 7, 52, 911 tokens, responses 5, 87, 632 (5th, 50th, 95th percentile)."""
    drawn = sharegpt_poisson().sample(200_000, np.random.default_rng(0))
    for lengths, published in ((drawn.input_tokens, (7, 52, 911)), (drawn.output_tokens, (5, 87, 632))):
        assert np.quantile(lengths, (0.05, 0.5, 0.95)) == pytest.approx(published, rel=0.03)
    assert (drawn.input_tokens.max(), drawn.output_tokens.max()) == (3072, 1024)
    assert min(drawn.input_tokens.min(), drawn.output_tokens.min()) == 1
    gaps = np.diff(drawn.arrival_s)
    assert gaps.mean() == pytest.approx(0.1, rel=0.01)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.01)
    assert abs(np.corrcoef(drawn.input_tokens, drawn.output_tokens)[0, 1]) < 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival_rate_rps": 0.0}, "arrival_rate_rps must be positive and finite, got 0.0"),
        ({"input_tokens": [7, 52]}, r"input_tokens must be three quantiles .* got \[7, 52\]"),
        (
            {"output_tokens": [5, 87, 2000]},
            "output_tokens must rise from at least 1 to at most longest_output_tokens = 1024",
        ),
        ({"input_tokens": [52, 7, 911]}, "input_tokens must rise"),
        ({"num_requests": 0}, "num_requests must be at least 1"),
    ],
)
def test_sharegpt_refuses_what_is_no_distribution(changes, message):
    with pytest.raises(ValueError, match=message):
        sharegpt_poisson(**changes)
