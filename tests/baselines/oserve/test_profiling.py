"""Capacities: what does not fit has none, and the closed form agrees with a run of the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.calibration.models import get_model
from serving_gym.envs.deployment.profiling import (
    LEAST_COST,
    PRECISION,
    CapacityTable,
    SaturationRuns,
    WorkloadType,
    closed_form_rps,
    measured_rps,
    mixed_rps,
    profile_capacities,
    rate_of,
)
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind, replica_kinds, replica_spec
from tests.baselines.oserve.samples import ENGINE, lengths

K = ReplicaKind


def test_a_kind_that_does_not_fit_the_memory_has_no_capacity(table):
    """OPT-66B needs 132 GB: one GPU of 80 GB does not hold it, two do."""
    assert K(1) not in table.kinds
    assert (table.row(K(1)) == 0).all()
    assert (table.row(K(2)) > 0).all()
    with pytest.raises(ValueError, match="fits none of"):
        profile_capacities(ENGINE, [K(1)], [lengths(200, 50)])


def test_a_promised_time_between_tokens_bounds_what_runs_at_once():
    """A pipeline of two stages has half the iterations of a replica of twice the width, and gives up more for it."""
    answers = lengths(200, 400)
    left = {}
    for kind in (K(4), K(2, 2)):
        replica = replica_spec(kind, ENGINE)
        saturated = measured_rps(replica, answers, SaturationRuns(precision=0.1))
        assert measured_rps(replica, answers, SaturationRuns({}, 0.1, tpot_s=60.0)) == saturated
        kept = measured_rps(replica, answers, SaturationRuns({}, 0.1, tpot_s=0.03))
        assert 0 < kept < saturated
        left[kind] = kept / saturated
        assert measured_rps(replica, answers, SaturationRuns({}, 0.1, tpot_s=1e-4)) == 0
    assert left[K(2, 2)] < left[K(4)]
    with pytest.raises(ValueError, match=r"has a token every 0\.0001 s"):
        profile_capacities(ENGINE, [K(4)], [answers], tpot_s=1e-4)
    with pytest.raises(ValueError, match="tpot_s needs runs"):
        profile_capacities(ENGINE, [K(4)], [answers], method="closed_form", tpot_s=0.1)


def test_a_type_that_the_kv_pool_does_not_hold_has_no_capacity():
    small = replace(replica_spec(K(2), ENGINE), kv_blocks=20)
    for rate in (measured_rps, closed_form_rps):
        assert rate(small, lengths(200, 50)) > 0
        assert rate(small, lengths(1200, 50, spread=0.1)) == 0


@pytest.mark.parametrize(
    ("kind", "type_", "tolerance"),
    [
        (K(8), (200, 50), 0.05),
        (K(8), (1200, 400), 0.10),
        (K(4), (1200, 50), 0.05),
        (K(3, 2), (200, 50), 0.05),
        (K(2, 2), (1200, 400), 0.10),
        (K(8, 1, "prefill"), (1200, 50), 0.05),
        (K(4, 1, "prefill"), (200, 50), 0.05),
        (K(4, 1, "decode"), (200, 50), 0.05),
        (K(8, 1, "decode"), (200, 400), 0.05),
    ],
)
def test_the_closed_form_is_near_a_run_where_memory_is_not_what_limits(kind, type_, tolerance):
    replica = replica_spec(kind, ENGINE)
    assert closed_form_rps(replica, lengths(*type_)) == pytest.approx(
        measured_rps(replica, lengths(*type_)), rel=tolerance
    )


def test_the_closed_form_says_too_much_where_requests_are_preempted():
    """Two GPUs leave 5000 tokens of KV: a run computes prompts again, which the closed form does not know."""
    replica = replica_spec(K(2), ENGINE)
    ratio = closed_form_rps(replica, lengths(200, 400)) / measured_rps(replica, lengths(200, 400))
    assert 1.05 < ratio < 1.35


def test_short_answers_favour_small_replicas_and_long_ones_large_ones(table):
    """Figure 1: per GPU, (TP=2, PP=2) serves most short answers and six GPUs most long ones."""
    silo, siso = 0, 2
    assert table.row(K(2, 2))[siso] / 4 > table.row(K(6))[siso] / 6
    assert table.row(K(2, 2))[silo] / 4 < table.row(K(6))[silo] / 6


def test_a_seed_gives_the_same_profile():
    run = SaturationRuns(seed=3)
    one, two = (measured_rps(replica_spec(K(4), ENGINE), lengths(200, 50), run) for _ in range(2))
    assert one == two


def test_runs_are_repeated_until_the_interval_is_within_the_precision():
    """Rates of other seeds then agree, and a coarser profile is content with less."""
    replica, of = replica_spec(K(2), ENGINE), lengths(200, 400)
    found = [rate_of(replica, of, SaturationRuns(seed=seed)) for seed in range(4)]
    assert all(half <= PRECISION for _, half in found)
    rates = np.array([rate for rate, _ in found])
    assert np.ptp(rates) / rates.mean() < 4 * PRECISION
    assert rate_of(replica, of, SaturationRuns(precision=0.2))[1] <= 0.2


def test_a_replica_is_profiled_as_its_engine_schedules():
    """Prompts that wait until the budget has room for all of them are served at another rate than those in chunks."""
    replica = replace(replica_spec(K(4), ENGINE), max_num_batched_tokens=2048)
    of = lengths(1300, 20, spread=0.05)
    rates = [
        measured_rps(replica, of, SaturationRuns({"chunked_prefill": chunks})) for chunks in (True, False)
    ]
    assert abs(rates[0] / rates[1] - 1.0) > 2 * PRECISION


def test_capacities_are_per_span():
    kinds, types = replica_kinds(get_model("opt-66b"), Cluster(1))[:6], [lengths(200, 50)]
    minute = profile_capacities(ENGINE, kinds, types, method="closed_form")
    second = profile_capacities(ENGINE, kinds, types, span_s=1.0, method="closed_form")
    np.testing.assert_allclose(minute.per_span, 60 * second.per_span)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="measured, mixed, closed_form"):
        profile_capacities(ENGINE, [K(4)], [lengths(200, 50)], method="guess")
    with pytest.raises(ValueError, match="span_s must be positive"):
        profile_capacities(ENGINE, [K(4)], [lengths(200, 50)], span_s=0.0)
    with pytest.raises(ValueError, match="precision must be positive"):
        profile_capacities(ENGINE, [K(4)], [lengths(200, 50)], precision=0.0)
    with pytest.raises(ValueError, match="as many input_tokens as output_tokens"):
        WorkloadType(np.array([1, 2]), np.array([1]))
    with pytest.raises(ValueError, match="a row for each of 1 kinds"):
        CapacityTable((K(4),), np.ones((2, 1)))


def test_capacities_in_company_are_nearer_to_what_a_mix_is_served():
    """Long prompts beside long answers on a pipeline, half of its span each: alone they promise too much."""
    replica = replica_spec(K(2, 2), ENGINE)
    types = [lengths(1500, 30), lengths(200, 400)]
    alone = np.array([measured_rps(replica, of) for of in types])
    company = mixed_rps(replica, types)
    both = [
        np.concatenate(
            [np.repeat(getattr(of, name)[:400], round(n * 10)) for of, n in zip(types, alone, strict=True)]
        )
        for name in ("input_tokens", "output_tokens")
    ]
    served = measured_rps(replica, WorkloadType(*both), SaturationRuns(seed=5)) * alone / alone.sum()
    off = abs((served / company).sum() - 1.0)
    assert off < 0.7 * abs((served / alone).sum() - 1.0)
    assert (company > LEAST_COST * alone).all()


def test_a_type_alone_and_a_worker_of_one_phase_are_not_corrected():
    one = [lengths(200, 50)]
    assert mixed_rps(replica_spec(K(4), ENGINE), one) == measured_rps(replica_spec(K(4), ENGINE), one[0])
    prefill, two = replica_spec(K(4, 1, "prefill"), ENGINE), [lengths(200, 50), lengths(1200, 50)]
    np.testing.assert_array_equal(mixed_rps(prefill, two), [measured_rps(prefill, of) for of in two])
