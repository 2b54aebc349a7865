"""Traffic of three tiers beyond what can be served."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.workload.overload import TIERS, OverloadTraffic
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec


def test_shares_priorities_and_load_are_as_said():
    traffic = OverloadTraffic(
        served_rps=10.0, load=(1.5, 1.5), shares={"critical": 1, "standard": 2, "sheddable": 1}
    )
    workload = traffic.sample(40_000, np.random.default_rng(0))
    assert workload.classes == TIERS
    np.testing.assert_array_equal(workload.priority, workload.class_id)
    np.testing.assert_allclose(np.bincount(workload.class_id) / 40_000, [0.25, 0.5, 0.25], atol=0.01)
    assert 40_000 / workload.arrival_s[-1] == pytest.approx(15.0, rel=0.03)
    assert traffic.rate_rps == 15.0


def test_bursts_are_twice_as_fast():
    """Counts of half seconds vary by more than those of a Poisson process: by (rate ratio) phases of 4 s and 2 s."""
    traffic = OverloadTraffic(served_rps=100.0, load=(1.0, 1.0))
    arrival_s = traffic.sample(60_000, np.random.default_rng(1)).arrival_s
    counts = np.bincount((2 * arrival_s).astype(int))[:-1]
    quiet, burst = 75.0 / 2, 150.0 / 2  # of (4 * q + 2 * 2 q) / 6 = 100
    expected = 50.0 + (2 / 3) * (quiet - 50.0) ** 2 + (1 / 3) * (burst - 50.0) ** 2
    assert counts.mean() == pytest.approx(50.0, rel=0.05)
    assert counts.var() == pytest.approx(expected, rel=0.2)


def test_episodes_differ_in_load_and_a_longer_one_begins_with_the_shorter():
    source = WorkloadSource(WorkloadSpec("overload_tiers", num_requests=3000))
    loads = [3000 / source.sample(seed).arrival_s[-1] / 100.0 for seed in range(20)]
    assert min(loads) > 0.9
    assert max(loads) < 2.4
    assert np.std(loads) > 0.15
    traffic = OverloadTraffic()
    short, long = (traffic.sample(number, np.random.default_rng(5)) for number in (50, 400))
    np.testing.assert_array_equal(short.arrival_s, long.arrival_s[:50])
    np.testing.assert_array_equal(short.class_id, long.class_id[:50])


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"load": (2.0, 1.0)}, "load must be a range"),
        ({"burst_factor": 0.5}, "burst_factor must be"),
        ({"shares": {"critical": 1.0}}, "shares must name each of critical, standard, sheddable"),
        ({"shares": dict.fromkeys(TIERS, 0.0)}, "not all 0"),
        ({"quiet_s": 0.0}, "quiet_s must be positive"),
    ],
)
def test_parameters_are_checked(params, said):
    with pytest.raises(ValueError, match=said):
        OverloadTraffic(**params)
