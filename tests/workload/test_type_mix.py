"""The workload whose mix of types changes over minutes."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.seeding import stream
from serving_gym.envs.workload.type_mix import TABLE_1, TypeMix, length_pools


def test_the_four_pools_are_the_quadrants_about_the_medians():
    """SILO, LILO, SISO, LISO: no prompt of a short-input type is longer than one of a long-input type."""
    (si_lo, li_lo, si_so, li_so) = length_pools(0.313)
    longest_short = max(si_lo[0].max(), si_so[0].max())
    assert longest_short < min(li_lo[0].min(), li_so[0].min())
    assert max(si_so[1].max(), li_so[1].max()) < min(si_lo[1].min(), li_lo[1].min())
    assert sum(len(prompts) for prompts, _ in length_pools(0.313)) == 20_000


def test_the_mix_is_that_of_table_1_and_changes_when_it_should():
    traffic = TypeMix(mean_rps=100.0, mixes=("S1", "S5"), hold_s=120.0, mix_noise=0.0, random_start=False)
    arrival_s, labels = traffic.labelled_arrivals(40_000, np.random.default_rng(0))
    for number, name in enumerate(("S1", "S5", "S1")):
        rows = (arrival_s >= 120.0 * number) & (arrival_s < 120.0 * (number + 1))
        shares = np.bincount(labels[rows], minlength=4) / rows.sum()
        np.testing.assert_allclose(shares, np.array(TABLE_1[name]) / 100, atol=0.015)


def test_the_rate_is_what_was_asked_for():
    workload = TypeMix(mean_rps=40.0).sample(50_000, np.random.default_rng(1))
    assert 50_000 / workload.arrival_s[-1] == pytest.approx(40.0, rel=0.05)
    assert (np.diff(workload.arrival_s) >= 0).all()


def test_a_longer_series_of_arrivals_begins_with_the_shorter():
    traffic = TypeMix()
    long, short = (traffic.labelled_arrivals(n, stream(0, "type_mix"))[0] for n in (3000, 1000))
    np.testing.assert_allclose(long[:1000], short)


def test_each_mix_may_have_a_rate_of_its_own():
    """Twice as many requests in the second mix: 40/s and 80/s, which is 60/s in the mean."""
    traffic = TypeMix(
        mean_rps=60.0, mixes=("S1", "S5"), rates=(1.0, 2.0), hold_s=90.0, rate_noise=0.0, random_start=False
    )
    arrival_s, _ = traffic.labelled_arrivals(10_800, np.random.default_rng(0))
    counts, _ = np.histogram(arrival_s, [0.0, 90.0, 180.0])
    np.testing.assert_allclose(counts / 90.0, [40.0, 80.0], rtol=0.05)


def test_mix_and_rate_may_drift():
    """Half-way from generation (60 % SILO) at 20/s to reading (4 %) at 60/s: 32 % at 40/s."""
    traffic = TypeMix(
        mean_rps=40.0,
        mixes=("generation", "reading"),
        rates=(1.0, 3.0),
        hold_s=1200.0,
        gradual=True,
        rate_noise=0.0,
        mix_noise=0.0,
        random_start=False,
    )
    arrival_s, labels = traffic.labelled_arrivals(50_000, np.random.default_rng(0))
    half_way = (arrival_s >= 540.0) & (arrival_s < 660.0)
    assert half_way.sum() / 120.0 == pytest.approx(40.0, rel=0.05)
    assert (labels[half_way] == 0).mean() == pytest.approx(0.32, abs=0.02)
    at_first = arrival_s < 60.0
    assert at_first.sum() / 60.0 == pytest.approx(20.0, rel=0.1)


def test_either_kind_of_change_may_be_drawn():
    """Of twenty episodes some are those that drift and some those that change at once, and no others."""
    either, one, other = (TypeMix(gradual=gradual, random_start=False) for gradual in (None, True, False))
    kinds = []
    for seed in range(20):
        drawn, drifting, sudden = (np.random.default_rng(seed) for _ in range(3))
        drifting.spawn(1), sudden.spawn(1)
        labels = either.labelled_arrivals(3000, drawn)[1]
        kinds.append((labels == one.labelled_arrivals(3000, drifting)[1]).all())
        assert kinds[-1] or (labels == other.labelled_arrivals(3000, sudden)[1]).all()
    assert 4 <= sum(kinds) <= 16


def test_long_answers_may_be_longer():
    plain, longer = length_pools(0.313), length_pools(0.313, 4.0)
    for j, factor in enumerate((4.0, 4.0, 1.0, 1.0)):
        assert (longer[j][0] == plain[j][0]).all()
        assert longer[j][1].sum() == factor * plain[j][1].sum()
    assert TypeMix(long_answer_factor=4.0).max_output_tokens == 4 * TypeMix().max_output_tokens


def test_episodes_begin_anywhere_in_the_sequence():
    source = WorkloadSource(WorkloadSpec(name="type_mix", num_requests=300))
    assert not source.sample(0).equals(source.sample(1))
    assert source.sample(0).equals(source.sample(0))
    assert source.classes == ("standard",)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"mean_rps": 0.0}, "mean_rps"),
        ({"hold_s": -1.0}, "hold_s"),
        ({"mix_noise": -0.1}, "mix_noise"),
        ({"code_share": 1.0}, "code_share"),
        ({"mixes": []}, "mixes must name"),
        ({"mixes": ["S1", "S6"]}, "generation"),
        ({"rates": [1.0]}, "one for each of 3 mixes"),
        ({"rates": [1.0, 0.0, 1.0]}, "rates must be positive"),
        ({"gradual": "yes"}, "gradual must be true or false"),
        ({"long_answer_factor": 0.0}, "long_answer_factor"),
        ({"mixs": ["S1"]}, "did you mean 'mixes'"),
    ],
)
def test_mistakes_are_named(params, words):
    with pytest.raises(ValueError, match=words):
        WorkloadSource(WorkloadSpec(name="type_mix", params=params))
