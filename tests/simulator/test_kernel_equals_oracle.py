"""The compiled kernel gives the oracle's numbers, to the picosecond, whatever is asked of it and whenever."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulator.cases import cases, slices
from tests.simulator.oracle import Cluster
from tests.simulator.twins import Case, Kernel, assert_equal, build_oracle

HORIZON_PS = 20_000
EXAMPLES = int(os.environ.get("SERVING_GYM_EXAMPLES", "150"))
thorough = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def advance_both(kernel: Kernel, cluster: Cluster, until: int) -> bool:
    """Advances both, checks that they agree, and returns whether they stopped for a notice."""
    noticed = cluster.advance(until)
    assert kernel.advance(until) == noticed
    assert_equal(kernel, cluster)
    return noticed


@thorough
@given(cases(), slices())
def test_every_number_is_the_oracles(case: Case, intervals: list[int]) -> None:
    kernel, cluster = Kernel(case), build_oracle(case)
    for interval in intervals:
        advance_both(kernel, cluster, cluster.now + interval)
    advance_both(kernel, cluster, cluster.now + HORIZON_PS)


ACTIONS = ("pool_waiting", "pool_running", "fail_running", "send", "set")


@st.composite
def interventions(draw: st.DrawFn) -> tuple[str, int, dict[str, bool | int]]:
    """Something the control plane does: an action, an engine's number, and the engine's new settings."""
    serves, steps_allowed = draw(st.sampled_from([(True, True), (True, True), (False, True), (False, False)]))
    return (
        draw(st.sampled_from(ACTIONS)),
        draw(st.integers(0, 3)),
        {
            "serves": serves,
            "steps_allowed": steps_allowed,
            "held": draw(st.sampled_from([False, False, True])),
            "notify": draw(st.sampled_from([False, True])),
            "capacity_percent": draw(st.sampled_from([100, 100, 120, 60, 10])),
        },
    )


def intervene(
    kernel: Kernel, cluster: Cluster, action: str, number: int, wish: dict[str, bool | int]
) -> None:
    """Does the same to both."""
    number %= len(cluster.engines)
    engine = cluster.engines[number]
    if action == "set":
        capacity = max(1, kernel.case.slots[number].capacity_blocks * wish["capacity_percent"] // 100)
        kernel.set(number, wish["serves"], wish["steps_allowed"], wish["held"], wish["notify"], capacity)
        engine.serves, engine.steps_allowed = bool(wish["serves"]), bool(wish["steps_allowed"])
        engine.held, engine.notify, engine.capacity_blocks = (
            bool(wish["held"]),
            bool(wish["notify"]),
            capacity,
        )
    elif action == "send":
        if cluster.pool:
            kernel.send_first(number)
            cluster.send(cluster.pool[0], number)
    else:
        getattr(kernel, action)(number)
        getattr(cluster, action)(number)


@thorough
@given(cases(), st.lists(st.tuples(st.integers(0, 200), interventions()), max_size=12))
def test_every_number_is_the_oracles_under_a_control_plane(
    case: Case, plan: list[tuple[int, tuple[str, int, dict[str, bool | int]]]]
) -> None:
    kernel, cluster = Kernel(case), build_oracle(case)
    for interval, (action, number, wish) in plan:
        advance_both(kernel, cluster, cluster.now + interval)
        intervene(kernel, cluster, action, number, wish)
        if action != "send":
            kernel.dispatch()
            cluster.dispatch()
        assert_equal(kernel, cluster)
    for number, engine in enumerate(cluster.engines):
        kernel.set(number, engine.serves, engine.steps_allowed, engine.held, False, engine.capacity_blocks)
        engine.notify = False
    advance_both(kernel, cluster, cluster.now + HORIZON_PS)
