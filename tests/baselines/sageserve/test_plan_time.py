"""Random problems of SageServe's optimiser."""

import numpy as np

from serving_gym.baselines.sageserve.capacity_plan import solve
from serving_gym.runners.reproduction.plan_time import random_problem, seconds


def test_a_seed_gives_a_problem_that_can_be_solved():
    one, two = random_problem(4, 3, 1, 0, spare=0.5), random_problem(4, 3, 1, 0, spare=0.5)
    np.testing.assert_array_equal(one.demand_tps, two.demand_tps)
    assert one.machines is not None
    after = one.instances + solve(one).delta
    assert (after.sum(axis=0) <= one.machines).all()
    served = (after * one.capacity_tps[:, None]).sum(axis=2)
    assert (served >= 0.8 * one.demand_tps.max(axis=2) * (1 - 1e-6)).all()


def test_every_seed_is_timed():
    took = seconds((2, 2, 1), 0.8, None, seeds=2)
    assert len(took) == 2
    assert all(0 < each < 60 for each in took)
