import numpy as np
import pytest
import yaml

from serving_gym.baselines.preserve.router import PreServeConfig, PreServePolicy
from serving_gym.baselines.registry import make_policy
from tests.baselines.preserve.states import request, row, spec, state
from tests.paths import ROOT

CONFIG = ROOT / "configs" / "policy" / "preserve.yaml"


def decide(state, spec=None, **constants):
    policy = PreServePolicy(PreServeConfig(**constants))
    policy.reset(spec or globals()["spec"](len(state.engines)), 0)
    return policy.act(None, state)


def test_the_defaults_are_the_papers():
    assert yaml.safe_load(CONFIG.read_text())["params"] == vars(make_policy("preserve").config)


def test_the_literal_reading_differs_in_its_switches_alone():
    literal = yaml.safe_load((CONFIG.parent / "preserve_literal.yaml").read_text())["params"]
    assert literal == {**vars(make_policy("preserve").config), **LITERAL}


def test_a_worked_example():
    """Two instances of 1000 tokens; the request has a prompt of 100 and 50 tokens predicted.

    Instance 0: one request queued (prompt 150, 40 predicted): L_p = 150 + 100, L_d = 40 + 50, peak 149: L = 340.
    Instance 1: one decoding (prompt 600, 60 predicted, 20 generated), which holds 620 + i for the next 40 iterations.
        With the request: 720 + 2i, at i = 39 798 of 1000, then the request alone: below T_mem. L = 100 + 40 + 50 = 190.
    """
    rows = [row(0, 150, 40), row(1, 600, 60, 20)]
    assert decide(state(2, rows)) == 1
    # With a prompt of 700 it peaks at 898: L_m = 98 and L = 288. With 760 at 958: L = 190 + 158 = 348.
    assert decide(state(2, [rows[0], row(1, 700, 60, 20)])) == 1
    assert decide(state(2, [rows[0], row(1, 760, 60, 20)])) == 0
    # Exactly as loaded (752 peaks at 950: L = 190 + 150 = 340): the first.
    assert decide(state(2, [rows[0], row(1, 752, 60, 20)])) == 0
    assert decide(state(2, [rows[0], row(1, 751, 60, 20)])) == 1


def test_each_weight_counts():
    rows = [row(0, 150, 40), row(1, 760, 60, 20)]
    assert decide(state(2, rows)) == 0
    assert decide(state(2, rows), memory_weight=0.9) == 1  # 190 + 0.9 * 158 = 332.2
    assert decide(state(2, rows), ideal_usage=0.81) == 1  # 190 + 148 = 338
    assert decide(state(2, rows), prefill_weight=1.1) == 1  # 365 against 358
    rows = [row(0, 150, 40), row(1, 760, 60, 20), row(0, 1, 9)]  # 350 against 348
    assert decide(state(2, rows)) == 1
    assert decide(state(2, rows), decode_weight=0.5) == 0  # 251 + 49.5 against 100 + 45 + 158


def test_decode_work_of_late_requests_is_their_extension():
    # 100 tokens were predicted and 110 came: 120 are reckoned with, 10 remain; the other has 11 to go.
    assert decide(state(2, [row(0, 50, 100, 110), row(1, 50, 100, 89)])) == 0
    assert decide(state(2, [row(0, 50, 100, 108), row(1, 50, 100, 89)])) == 1


LITERAL = {"overload_with_request": False, "unprefilled_in_map": False, "leave_out_overloaded": False}


def test_an_overloaded_instance_takes_nothing():
    """An instance of 1000 tokens that holds 845 + i over the next 100 iterations, with the request 945 + 2 i."""
    full = [row(place, 825, 400, 20) for place in range(3)]
    assert decide(state(3, full)) is None
    assert decide(state(3, full[:2])) == 2
    assert decide(state(3, full[:2], can_take=[True, True, False])) is None
    # The other one has the same decode work and more prompt tokens, and room for the request.
    assert decide(state(2, [full[0], row(1, 100, 380), row(1, 600, 1)])) == 1


@pytest.mark.parametrize(("predicted", "held"), [(13, False), (14, True)])
def test_overload_counts_the_request_itself(predicted, held):
    """848 + i and the request's 100 + i exceed 950 from i = 2 on: in 11 or 12 of a hundred iterations."""
    busy = state(1, [row(0, 828, 400, 20)], asked=request(1, 100, predicted))
    assert decide(busy, overload_share=0.11) == (None if held else 0)
    assert decide(busy, **LITERAL) == 0


def test_overload_counts_requests_that_are_not_prefilled():
    busy = state(1, [row(0, 860, 400)])
    assert decide(busy) is None
    assert decide(busy, unprefilled_in_map=False) == 0
    assert decide(state(1, [row(0, 5000, 400)]), **LITERAL) == 0


def test_an_idle_instance_takes_any_request():
    assert decide(state(1, asked=request(1, 990, 300))) == 0


def test_literal_holds_only_while_all_that_can_take_it_are_overloaded():
    """An instance that holds 945 + i over the next 100 iterations: above 950 from i = 6 on."""
    full = [row(place, 925, 400, 20) for place in range(3)]
    assert decide(state(3, full), **LITERAL) is None
    assert decide(state(3, full[:2]), **LITERAL) == 2
    assert decide(state(3, full[:2], can_take=[True, True, False]), **LITERAL) is None
    # An overloaded instance may be the least loaded one: both have the same decode work, the idle one a long queue.
    queue = state(2, [full[0], row(1, 5000, 380)])
    assert decide(queue, **LITERAL) == 0
    assert decide(queue, **{**LITERAL, "leave_out_overloaded": True}) == 1


@pytest.mark.parametrize(("ends_after", "held"), [(16, False), (17, True)])
def test_overloaded_means_more_than_a_tenth_of_the_iterations_ahead(ends_after, held):
    # 945 + i exceeds 950 for i in [6, ends_after): ten of a hundred are not more than a tenth
    decision = decide(state(1, [row(0, 925, 20 + ends_after, 20)]), **LITERAL)
    assert (decision is None) == held


def test_the_rule_of_overload_has_its_constants():
    busy = state(1, [row(0, 925, 37, 20)])
    assert decide(busy, **LITERAL) is None
    assert decide(busy, overload_share=0.11, **LITERAL) == 0
    assert decide(busy, overload_usage=0.951, **LITERAL) == 0
    assert decide(busy, lookahead_iterations=6, **LITERAL) == 0  # not that far


def test_each_instance_has_its_own_capacity():
    rows = [row(0, 700, 100, 20), row(1, 700, 100, 20)]
    assert decide(state(2, rows), spec(2, capacity_tokens=(1000, 2000))) == 1


def test_nobody_can_take_it():
    assert decide(state(2, can_take=[False, False])) is None


def test_can_take_is_respected_and_decisions_repeat_themselves():
    rng = np.random.default_rng(0)
    policies = [make_policy("preserve") for _ in range(2)]
    for policy in policies:
        policy.reset(spec(8, capacity_tokens=20_000), 3)
    for _ in range(50):
        rows = [
            row(int(p), int(n), int(d), int(g))
            for p, n, d, g in zip(*rng.integers((0, 1, 0, 0), (8, 900, 400, 500), (60, 4)).T, strict=True)
        ]
        asked = request(8, int(rng.integers(1, 2000)), int(rng.integers(0, 500)))
        busy = state(8, rows, asked=asked, can_take=rng.random(8) < 0.4)
        first, second = (policy.act(None, busy) for policy in policies)
        assert first == second
        assert first is None or busy.can_take[first]


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"lookahead_iterations": 0}, "lookahead_iterations must be a whole number"),
        ({"ideal_usage": 0.0}, "ideal_usage must be positive"),
        ({"memory_weight": -1.0}, "memory_weight must not be negative"),
        ({"overload_share": 1.5}, "overload_share must lie in"),
    ],
)
def test_mistakes_are_named(constants, message):
    with pytest.raises(ValueError, match=message):
        PreServeConfig(**constants)
