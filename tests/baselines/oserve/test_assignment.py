"""The lower level: Appendix C and the numbers of section 4.2 by hand, and HiGHS as the judge of the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import coo_array

from serving_gym.baselines.oserve.flow_network import READINGS, maximum_flow, normalised_capacity
from serving_gym.envs.deployment.assignment import Assignment, assign, keep_apart, soonest
from serving_gym.envs.deployment.simplex import max_requests, most_served, most_times
from tests.baselines.oserve.samples import demand_for

# Appendix C, rates in requests a second. It computes with 100 requests of type 2; the 50 in its text is a misprint.
DEMAND = np.array([100.0, 100.0])
TWO_ALIKE = np.array([[10.0, 5.0], [10.0, 5.0]])
THREE = np.array([[10.0, 5.0], [5.0, 3.0], [5.0, 3.0]])


def completion_s(capacity: np.ndarray, fractions: list[list[float]]) -> float:
    """Appendix C: the longest that a replica takes for its fractions of the demand."""
    return Assignment(np.array(fractions) * DEMAND, capacity, DEMAND).completion_time


def test_appendix_c():
    """max(100/10, 100/5) = 20; max(10, 50/3) = 16.67; max(10 + 18/5, 41/3) = 13.67."""
    assert completion_s(TWO_ALIKE, [[1, 0], [0, 1]]) == pytest.approx(20.0)
    assert completion_s(THREE, [[1, 0], [0, 0.5], [0, 0.5]]) == pytest.approx(50 / 3)
    assert completion_s(THREE, [[1, 0.18], [0, 0.41], [0, 0.41]]) == pytest.approx(41 / 3)


def test_appendix_c_at_its_optimum():
    """All end together: 5 (T - 10) + 2 x 3 T = 100, so T = 150/11 = 13.64 s and 2/11 of type 2 go to the first."""
    best = soonest(THREE, DEMAND)
    assert best.completion_time == pytest.approx(150 / 11)
    np.testing.assert_allclose(best.requests / DEMAND, [[1, 2 / 11], [0, 4.5 / 11], [0, 4.5 / 11]])
    np.testing.assert_allclose(best.utilisation, 150 / 11)
    # With replicas alike the best split is by halves: 100/20 + 100/10 = 15 s.
    assert soonest(TWO_ALIKE, DEMAND).completion_time == pytest.approx(15.0)


def test_the_numbers_of_edge_capacity_normalisation():
    """Section 4.2: 80 and 50 requests make 400, of which one takes 5 or 8 units."""
    assert normalised_capacity([80, 50]) == (400, (5, 8))
    assert normalised_capacity([80, 0, 50]) == (400, (5, 0, 8))


def test_c3_in_units_and_in_shares_is_one():
    """40 of type 1 and 25 of type 2 take 40 x 5 + 25 x 8 = 400 units: the whole span."""
    both = Assignment(np.array([[40.0, 25.0]]), np.array([[80.0, 50.0]]), np.array([40.0, 25.0]))
    assert both.utilisation[0] == pytest.approx(1.0)
    assert assign([[80, 50]], [40, 25]).throughput == pytest.approx(65)
    # One more of type 2 takes 8 units, for which 8/5 of type 1 have to go.
    assert assign([[80, 50]], [40, 26]).throughput == pytest.approx(65)
    assert assign([[80, 50]], [40, 26]).requests[0] == pytest.approx([40, 25])


def test_c1_and_c3_bind():
    assert assign([[80, 50]], [10, 5]).throughput == pytest.approx(15)
    assert assign([[80, 50]], [100, 0]).throughput == pytest.approx(80)


def test_of_assignments_that_serve_all_the_soonest_is_taken():
    """Two replicas alike share evenly although one could do it all."""
    np.testing.assert_allclose(assign([[100], [100]], [60]).requests[:, 0], [30, 30])


def test_routing_goes_on_where_the_plan_gives_up():
    """50 requests of type 2 would displace 80 of type 1: it is given up, but its requests have to go somewhere."""
    plan = assign([[80, 50]], [80, 50])
    np.testing.assert_allclose(plan.requests, [[80, 0]])
    np.testing.assert_allclose(plan.routing(), [[1, 1]])
    np.testing.assert_allclose(assign([[80, 0]], [10, 5]).routing(), [[1, 0]])


def solve_highs(n: np.ndarray, arriving: np.ndarray, at_least: float | None = None) -> np.ndarray:
    """C1 to C3 by SciPy's HiGHS; (K, J) requests.

    Args:
        n: (K, J), capacities.
        arriving: (J,), demand.
        at_least: Requests to be served; given, the longest busy time is minimised instead.
    """
    K, J = n.shape
    ks, js = np.nonzero(n > 0)
    if not len(ks):
        return np.zeros((K, J))
    columns, timed = np.arange(len(ks)), at_least is not None
    rows, places = np.concatenate([js, J + ks]), np.concatenate([columns, columns])
    values = np.concatenate([np.ones(len(ks)), 1.0 / n[ks, js]])
    if timed:  # one more column, the busy time T: sum_j x_kj / n_kj - T <= 0
        rows, places = np.concatenate([rows, J + np.arange(K)]), np.concatenate([places, np.full(K, len(ks))])
        values = np.concatenate([values, -np.ones(K)])
    matrix = coo_array((values, (rows, places)), shape=(J + K, len(ks) + timed))
    limits = np.concatenate([arriving, np.zeros(K) if timed else np.ones(K)])
    cost = np.concatenate([np.zeros(len(ks)), [1.0]]) if timed else -np.ones(len(ks))
    bounds = [(0.0, n[k, j]) for k, j in zip(ks, js, strict=True)] + [(0.0, 1.0)] * timed
    served = coo_array((np.ones(len(ks)), (np.zeros(len(ks), int), columns)), shape=(1, len(ks) + 1))
    equal = {"A_eq": served, "b_eq": [at_least]} if timed else {}
    solution = linprog(cost, matrix, limits, **equal, bounds=bounds, method="highs")
    assert solution.success, solution.message
    requests = np.zeros((K, J))
    requests[ks, js] = solution.x[: len(ks)]
    return requests


instances = st.integers(0, 10**6)


def instance(seed: int, largest: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Up to 8 replicas and 5 types without any structure, some pairs impossible."""
    random = np.random.default_rng(seed)
    K, J = random.integers(1, 9), random.integers(1, 6)
    n = random.integers(20, largest, (K, J)).astype(float)
    n[random.random((K, J)) < 0.15] = 0
    return n, np.floor(random.dirichlet(np.ones(J)) * n.max() * K * random.uniform(0.05, 1.5))


@given(instances)
@settings(deadline=None)
def test_the_simplex_equals_highs(seed):
    n, arriving = instance(seed)
    served, shares = most_served(n, arriving)
    most = solve_highs(n, arriving).sum()
    assert served == pytest.approx(most, rel=1e-9, abs=1e-6)
    assert (shares >= -1e-12).all()
    assert (shares.sum(axis=1) <= 1 + 1e-9).all()
    assert ((shares * n).sum(axis=0) <= arriving * (1 + 1e-9)).all()
    assigned = assign(n, arriving)
    assert assigned.throughput == pytest.approx(most, rel=1e-7, abs=1e-6)
    if assigned.throughput >= arriving.sum() * (1 - 1e-9):
        fastest = Assignment(solve_highs(n, arriving, most * (1 - 1e-9)), n, arriving)
        assert assigned.completion_time == pytest.approx(fastest.completion_time, rel=1e-6, abs=1e-9)


@given(instances)
@settings(deadline=None)
def test_more_capacity_never_reaches_less(seed):
    """What the bounds of the search rest on; and at the point where all is served both values meet."""
    n, arriving = instance(seed)
    more = n * np.random.default_rng(seed).uniform(1, 2, n.shape)
    for by_time in (False, True):
        assert max_requests(more, arriving, by_time) >= max_requests(n, arriving, by_time) * (1 - 1e-9)
    times = most_times(n, arriving)[0]
    if 0 < times < np.inf:
        assert max_requests(n, arriving * times, False) == pytest.approx(arriving.sum() * times, rel=1e-6)


@given(instances)
@settings(deadline=None, max_examples=40)
def test_a_flow_cut_back_is_an_assignment(seed):
    n, arriving = instance(seed)
    best = assign(n, arriving).throughput
    for reading in READINGS:
        flow = maximum_flow(n, arriving, reading)
        assert (flow.assignment.utilisation <= 1 + 1e-6).all()
        assert (flow.assignment.requests.sum(axis=0) <= arriving * (1 + 1e-6)).all()
        assert flow.assignment.throughput <= best * (1 + 1e-6) + 1e-6
    most = maximum_flow(n, arriving, "flow_requests").requests.sum()
    assert most >= best * (1 - 1e-6), "in requests it is a relaxation"


def test_the_flow_in_units_is_exact_where_replicas_differ_in_speed_only():
    """Speeds 1, 2 and 3 over sizes 5 and 8: M_k / n_kj is 5 and 8 on all of them."""
    n = np.outer([1, 2, 3], [80, 50])
    assert [normalised_capacity(row)[1] for row in n] == [(5, 8)] * 3
    for arriving in ([300, 100], [240, 150], [50, 20], [0, 400]):
        flow = maximum_flow(n, arriving, "flow_units")
        assert flow.requests.sum() == pytest.approx(assign(n, arriving).throughput, rel=1e-5)
        assert flow.assignment.throughput == pytest.approx(flow.requests.sum(), rel=1e-5)


def test_the_flow_in_units_carries_most_units_not_most_requests():
    """2400 units are 480 requests of 5 or 300 of 8: the same flow, not the same throughput."""
    n = np.outer([1, 2, 3], [80, 50])
    requests = maximum_flow(n, [480, 300], "flow_units").requests
    assert (requests.sum(axis=0) * [5, 8]).sum() == pytest.approx(2400, rel=1e-5)
    assert 300 * (1 - 1e-5) <= requests.sum() <= assign(n, [480, 300]).throughput == pytest.approx(480)


def test_the_flow_in_requests_serves_two_spans_in_one():
    """M_k = 400 lets 80 and 50 requests through at once, each of which alone fills the span."""
    flow = maximum_flow([[80, 50]], [80, 50], "flow_requests")
    np.testing.assert_allclose(flow.requests, [[80, 50]])
    np.testing.assert_allclose(flow.assignment.requests, [[40, 25]])
    assert assign([[80, 50]], [80, 50]).throughput == pytest.approx(80)


def test_capacities_of_a_flow_are_whole_requests():
    """Of 80.9 requests a span the flow sends 80, of 0.9 none; what it leaves is routed by capacity."""
    flow = maximum_flow([[80.9, 0.9]], [100.0, 1.0], "flow_requests")
    np.testing.assert_allclose(flow.requests, [[80, 0]])
    np.testing.assert_allclose(flow.assignment.routing(), [[1, 1]])


def test_on_profiled_capacities_the_flow_stays_below_the_optimum(table):
    """Profiled capacities differ less than random ones, yet enough to cost some of the throughput."""
    ratios = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        n = np.floor(table.per_span[random.choice(len(table.kinds), 4)])
        arriving = np.floor(demand_for(table, 16, seed) * n.sum() / table.per_span.mean(axis=0).sum() / 8)
        flow = maximum_flow(n, arriving, "flow_units")
        ratios.append(flow.assignment.throughput / assign(n, arriving).throughput)
    assert 0.5 < min(ratios) < 1.0
    assert max(ratios) <= 1 + 1e-6


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="capacity must be"):
        assign([[1, 2]], [1])
    with pytest.raises(ValueError, match="demand must be finite and not negative"):
        assign([[1, 2]], [1, -1])
    with pytest.raises(ValueError, match=r"no replica can serve types \[1\]"):
        soonest([[1, 0]], [1, 1])
    with pytest.raises(ValueError, match="reading"):
        maximum_flow([[1]], [1], "lcm")


def test_types_are_kept_apart_among_replicas_that_are_alike():
    """Two replicas, each a third of its span with type 0 (of 30) and a sixth with type 1 (of 60): half a span each.

    Poured from type 1: the first has all 20 of type 1, a third of a span, and a sixth with 5 of type 0; the second 15.
    """
    capacity, requests = (
        np.array([[30.0, 60.0]] * 2 + [[9.0, 9.0]]),
        np.array([[10.0, 10.0]] * 2 + [[1.0, 2.0]]),
    )
    before = Assignment(requests, capacity, requests.sum(axis=0))
    after = keep_apart(before, ["a", "a", "b"], [1, 0])
    np.testing.assert_allclose(after.requests, [[5.0, 20.0], [15.0, 0.0], [1.0, 2.0]], atol=1e-9)
    np.testing.assert_allclose(after.utilisation, before.utilisation)


def test_keeping_apart_leaves_a_type_that_cannot_be_served():
    capacity = np.array([[10.0, 0.0]] * 2)
    before = Assignment(np.array([[2.0, 0.0]] * 2), capacity, np.array([4.0, 3.0]))
    np.testing.assert_allclose(keep_apart(before, "aa", [1, 0]).requests, before.requests)
