"""SageServe's optimisation problem."""

import itertools

import numpy as np
import pytest

from serving_gym.baselines.sageserve.capacity_plan import CapacityProblem, SolverConfig, solve


def problem(**values) -> CapacityProblem:
    """One model in two regions with two instances each of 100 tokens/s, which costs 10 and 2 to start."""
    defaults = {
        "instances": np.full((1, 2, 1), 2),
        "demand_tps": np.full((1, 2, 1), 200.0),
        "capacity_tps": np.full((1, 1), 100.0),
        "vm_cost": np.array([10.0]),
        "start_cost": np.array([[2.0]]),
    }
    return CapacityProblem(**{**defaults, **values})


def test_enough_stays_as_it_is():
    plan = solve(problem())
    np.testing.assert_array_equal(plan.delta, np.zeros((1, 2, 1)))
    assert plan.cost == 0


def test_costs_by_hand():
    """350 tokens/s need 4 instances, 2 more at 10 + 2 each; 50 need 1, so one goes and 10 is saved."""
    plan = solve(problem(demand_tps=np.array([[[350.0], [50.0]]])))
    assert plan.delta.ravel().tolist() == [2, -1]
    assert plan.cost == pytest.approx(2 * 12 - 10)


def test_the_peak_of_each_region_and_of_all_together_count():
    """Peaks at different times: 200 each need 2 + 2 instances, though never more than 220 come together."""
    demand = np.array([[[200.0, 20.0], [20.0, 200.0]]])
    assert solve(problem(demand_tps=demand)).delta.ravel().tolist() == [0, 0]
    apart = solve(problem(demand_tps=demand, epsilon=0.5))
    assert apart.delta.sum() == -1  # 220 of both together still need 3; each region keeps one for its own 100


def test_rerouting_avoids_starts():
    """300 and 100: each serving itself starts one and stops one (12 - 10 = 2); rerouting a third changes nothing."""
    demand = np.array([[[300.0], [100.0]]])
    assert solve(problem(demand_tps=demand)).cost == pytest.approx(2)
    rerouted = solve(problem(demand_tps=demand, epsilon=2 / 3))
    assert (rerouted.delta.ravel().tolist(), rerouted.cost) == ([0, 0], 0)


def test_the_cheaper_kind_of_gpu_is_taken():
    """Per token/s the second kind costs 15/200 against 10/100."""
    both = problem(
        instances=np.zeros((1, 2, 2), int),
        capacity_tps=np.array([[100.0, 200.0]]),
        vm_cost=np.array([10.0, 15.0]),
        start_cost=np.array([[2.0, 2.0]]),
    )
    np.testing.assert_array_equal(solve(both).delta[0], [[0, 1], [0, 1]])
    only = problem(instances=np.zeros((1, 2, 1), int), capacity_tps=np.zeros((1, 1)))
    assert not solve(only).delta.any()  # it runs nowhere


def test_fewest_and_most_instances_hold():
    idle = np.zeros((1, 2, 1))
    assert solve(problem(demand_tps=idle, fewest=1)).delta.ravel().tolist() == [-1, -1]
    crowded = solve(problem(demand_tps=np.full((1, 2, 1), 500.0), most=4))
    assert crowded.delta.ravel().tolist() == [2, 2]


def test_machines_join_models():
    """Two models want 3 machines each where there are 5: one of them goes short by 100, here and of all together."""
    two = problem(
        instances=np.ones((2, 1, 1), int),
        demand_tps=np.full((2, 1, 1), 300.0),
        capacity_tps=np.full((2, 1), 100.0),
        start_cost=np.full((2, 1), 2.0),
        machines=np.array([[5]]),
    )
    plan = solve(two)
    assert plan.delta.sum() + 2 == 5
    with pytest.raises(ValueError, match="machines do not suffice"):
        solve(problem(machines=np.array([[1], [2]]), fewest=2))


def test_scarce_cheap_machines_go_to_whom_they_save_most():
    """Both models want the first kind (10 for 100 tokens/s); instead of it one needs one of 11, the other one of 30."""
    scarce = problem(
        instances=np.zeros((2, 1, 3), int),
        demand_tps=np.full((2, 1, 1), 100.0),
        capacity_tps=np.array([[100.0, 100.0, 0.0], [100.0, 0.0, 100.0]]),
        vm_cost=np.array([10.0, 11.0, 30.0]),
        start_cost=np.zeros((2, 3)),
        machines=np.array([[1, 1, 1]]),
    )
    plan = solve(scarce)
    assert plan.delta.reshape(2, 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert plan.cost == 21


def test_it_is_optimal_on_small_problems():
    rng = np.random.default_rng(0)
    for _ in range(5):
        own = problem(
            instances=rng.integers(0, 3, (1, 2, 2)),
            demand_tps=rng.uniform(0, 400, (1, 2, 2)),
            capacity_tps=rng.uniform(80, 200, (1, 2)),
            vm_cost=rng.uniform(5, 15, 2),
            start_cost=rng.uniform(0, 4, (1, 2)),
            epsilon=0.7,
        )
        best = np.inf
        for after in itertools.product(range(7), repeat=4):
            x = np.array(after).reshape(1, 2, 2)
            served = (x * own.capacity_tps[:, None]).sum(axis=2)
            own_peak = 0.7 * own.demand_tps.max(axis=2)
            if (served >= own_peak).all() and served.sum() >= own.demand_tps.sum(axis=1).max():
                delta = x - own.instances
                cost = (own.vm_cost * delta).sum() + (own.start_cost[:, None] * np.maximum(delta, 0)).sum()
                best = min(best, cost)
        assert solve(own, SolverConfig(gap=0.0)).cost == pytest.approx(best)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must lie"),
        ({"vm_cost": np.ones(2)}, "vm_cost does not go"),
        ({"demand_tps": np.ones((1, 2))}, "demand_tps does not go"),
        ({"demand_tps": -np.ones((1, 2, 1))}, "demand_tps must be finite and not negative"),
        ({"machines": np.ones((1, 1), int)}, "machines must have the shape"),
        ({"fewest": 3, "most": 2}, "fewest must lie"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        problem(**values)
    with pytest.raises(ValueError, match="gap must not be negative"):
        SolverConfig(gap=-1.0)
    with pytest.raises(ValueError, match="time_limit_s must be positive"):
        SolverConfig(time_limit_s=0.0)
