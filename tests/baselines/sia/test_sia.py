import itertools

import numpy as np
import pytest
import yaml

from serving_gym.baselines.registry import make_policy
from serving_gym.baselines.sia.assignment import assign
from serving_gym.baselines.sia.goodput import GoodputModel, Load, nominal_costs, work_between
from serving_gym.baselines.sia.policy import SiaConfig, SiaPolicy
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE
from tests.baselines.preserve.states import num_held, random_state, request, row, spec, state
from tests.paths import ROOT

CONFIG = ROOT / "configs" / "policy" / "sia.yaml"


def policy(num_places, capacity_tokens=1000, **constants):
    made = SiaPolicy(SiaConfig(**constants))
    settings = spec(
        num_places, capacity_tokens=capacity_tokens, max_num_seqs=constants.pop("max_num_seqs", 256)
    )
    made.reset(settings, 0)
    return made


def model(fleet=None, **changes):
    constants = {"sample_s": 1.0, "window": 256, "prior_weight": 1.0, **changes}
    return GoodputModel(fleet or spec(2).fleet, **constants)


def load(requests, context, queued):
    return Load(np.array(requests), np.array(context, float), np.array(queued, float))


def test_the_config_holds_every_constant_and_its_default():
    assert yaml.safe_load(CONFIG.read_text())["params"] == vars(make_policy("sia").config)


def test_costs_of_the_profile():
    # decode_s is 10 ms + 0.1 ms a request
    np.testing.assert_allclose(nominal_costs(spec(2).fleet), [[0.01, 1e-4, 1e-7, 1e-4]] * 2)


def test_a_worked_example_of_goodput():
    """50 tokens after a prompt of 100, beside 3 requests with 1000 tokens of context and 200 of them queued.

    Prefill: 300 tokens of 0.1 ms. Iterations: 10 ms + 4 x 0.1 ms + 1100 x 0.1 us = 10.51 ms, 50 of them.
    """
    here = load([3, 0], [1000, 0], [200, 0])
    speed = model().goodput(here, 100.0, 50.0, 0, 0.0)
    np.testing.assert_allclose(speed, [50 / (0.03 + 50 * 0.01051), 50 / (0.01 + 50 * 0.01011)])
    # as the third further request, behind two of 150 tokens
    speed = model().goodput(here, 100.0, 50.0, 2, 150.0)
    np.testing.assert_allclose(speed[0], 50 / (0.06 + 50 * (0.01 + 6e-4 + 1.4e-4)))


def poll(generated, prefilled, busy_s, running=10, prefilling=0, context=5000, num_places=2):
    engines = np.zeros(num_places, ENGINE_STATE_DTYPE)
    engines["generated_tokens"], engines["prefilled_tokens"] = generated, prefilled
    engines["busy_s"], engines["num_running"] = busy_s, running
    engines["num_prefilling"], engines["context_tokens"] = prefilling, context
    return engines


def test_work_between_polls():
    before, after = poll(0, 0, 0.0, 6, 2, 1000), poll(120, 300, 1.5, 8, 0, 3000)
    work, busy_s = work_between(before, after)  # 6 requests on average decode: 20 iterations with 2000 tokens
    assert work.tolist() == [[20.0, 120.0, 40_000.0, 300.0]] * 2
    assert busy_s.tolist() == [1.5, 1.5]
    work, _ = work_between(poll(0, 0, 0.0, 0), poll(120, 0, 1.0, 0))
    assert np.isnan(work[:, 0]).all()


def test_the_model_learns_what_engines_cost():
    rng = np.random.default_rng(0)
    true = np.array([0.02, 3e-4, 4e-7, 5e-5])
    learned = model(prior_weight=1e-3)
    totals = np.zeros(3)
    previous = poll(0, 0, 0.0)
    learned.observe(0.0, previous)
    for step in range(1, 60):
        batch, context = int(rng.integers(1, 200)), int(rng.integers(100, 80_000))
        iterations, prefilled = int(rng.integers(10, 50)), int(rng.integers(0, 20_000))
        # the polls report the same batch before and after, so that the means are exact
        learned._polled["num_running"], learned._polled["context_tokens"] = batch, context
        work = np.array([iterations, iterations * batch, iterations * context, prefilled])
        totals += [work[1], prefilled, work @ true]
        learned.observe(float(step), poll(totals[0], totals[1], totals[2], batch, 0, context))
    np.testing.assert_allclose(learned.costs, [true] * 2, rtol=1e-2)


def test_the_profile_counts_as_much_as_it_is_given_weight():
    before, after = (
        poll(0, 0, 0.0),
        poll(1000, 0, 4.0),
    )  # 100 iterations of 40 ms, where the profile says 11.5
    errors = []
    for weight in (1e-4, 1.0, 1e6):
        learned = model(prior_weight=weight)
        learned.observe(0.0, before)
        learned.observe(1.0, after)
        errors.append(abs(learned.costs[0] @ [100, 1000, 500_000, 0] - 4.0))
    assert errors[0] < 0.1 < errors[1] < errors[2] < 4.0 - 1.1


def test_each_kind_of_engine_learns_from_its_own():
    fleet = spec(3, models=("llama2-7b", "opt-13b", "llama2-7b")).fleet
    learned = model(fleet)
    after = poll(1000, 0, 4.0, num_places=3)
    after["busy_s"][1], after["generated_tokens"][1] = 0.0, 0
    learned.observe(0.0, poll(0, 0, 0.0, num_places=3))
    learned.observe(1.0, after)
    assert (learned.costs[0] == learned.costs[2]).all()
    assert learned.costs[0, 0] > 0.011
    np.testing.assert_allclose(learned.costs[1], nominal_costs(fleet)[1])


def test_polls_that_say_nothing_are_passed_over():
    learned = model()
    nominal = learned.costs.copy()
    learned.observe(0.0, poll(1000, 0, 4.0))
    learned.observe(0.9, poll(2000, 0, 8.0))  # too soon
    learned.observe(1.0, poll(0, 0, 0.0))  # restarted: less than before
    learned.observe(2.0, poll(0, 0, 0.0, running=0))  # idle
    learned.observe(3.0, poll(100, 0, 1.0, running=0))
    learned.observe(4.0, poll(200, 0, 2.0, running=0))  # a batch that nobody has seen
    np.testing.assert_allclose(learned.costs, nominal)


def best_by_hand(costs, no_place_cost, tokens, free_tokens):
    num_requests, num_places, num_slots = costs.shape
    choices = [None, *itertools.product(range(num_places), range(num_slots))]
    least = np.inf
    for chosen in itertools.product(choices, repeat=num_requests):
        taken = [slot for slot in chosen if slot is not None]
        used = np.zeros(num_places)
        for r, slot in enumerate(chosen):
            if slot is not None:
                used[slot[0]] += tokens[r]
        if len(set(taken)) < len(taken) or (used > free_tokens).any():
            continue
        cost = sum(no_place_cost if slot is None else costs[r][slot] for r, slot in enumerate(chosen))
        least = min(least, cost)
    return least


@pytest.mark.parametrize("seed", range(8))
def test_the_program_is_as_cheap_as_can_be(seed):
    rng = np.random.default_rng(seed)
    costs = np.sort(rng.random((3, 2, 3)), axis=2)
    costs[rng.random((3, 2)) < 0.2] = np.inf
    tokens, free_tokens = rng.integers(50, 100, 3), rng.integers(60, 250, 2)
    places = assign(costs, 1.1, tokens, free_tokens)
    total, used, count = 0.0, np.zeros(2), {0: [], 1: []}
    for r, place in enumerate(places):
        if place is None:
            total += 1.1
        else:
            used[place] += tokens[r]
            count[place].append(r)
    for place, members in count.items():  # the best order of their slots
        total += min(
            sum(costs[r, place, k] for r, k in zip(members, slots, strict=True))
            for slots in itertools.permutations(range(3), len(members))
        )
    assert (used <= free_tokens).all()
    assert total == pytest.approx(best_by_hand(costs, 1.1, tokens, free_tokens))


def test_nothing_is_assigned_where_nothing_is_allowed():
    assert assign(np.full((2, 2, 2), np.inf), 1.1, np.array([1, 1]), np.array([9, 9])) == [None, None]


def test_one_request_goes_where_it_is_answered_fastest():
    rows = [row(0, 100, 50, 10), row(0, 100, 50, 10), row(1, 200, 50, 10)]
    assert policy(2).act(None, state(2, rows)) == 1  # three in the batch cost more than the context
    assert policy(2).act(None, state(2, [*rows, row(1, 400, 50)])) == 0  # 400 tokens before it
    assert policy(2).act(None, state(2, rows, can_take=[True, False])) == 0
    assert policy(2).act(None, state(2, rows, can_take=[False, False])) is None


def test_what_memory_and_batch_do_not_take_is_held():
    asked = request(1, 100, 50)
    assert policy(1).act(None, state(1, [row(0, 850, 90, 50)], asked=asked)) == 0
    assert policy(1).act(None, state(1, [row(0, 851, 90, 50)], asked=asked)) is None
    assert policy(1).act(None, state(1, [], asked=request(1, 5000, 50))) == 0  # an idle instance takes any
    router = SiaPolicy()
    router.reset(spec(1, max_num_seqs=2), 0)
    assert router.act(None, state(1, [row(0, 10, 9, 1)], asked=asked)) == 0
    assert router.act(None, state(1, [row(0, 10, 9, 1)] * 2, asked=asked)) is None


def test_held_requests_are_assigned_together():
    """Of 300 free tokens on the emptier instance and 200 on the other, 300 and 200 are needed.

    By itself the small one, which comes first, would take the emptier one, and the large one would stay.
    """
    full = [row(0, 1000, 900, 1), row(1, 1000, 900, 1)]
    space = [row(0, 690, 900, 10), row(1, 790, 900, 10)]
    small, large = (
        request(2, tokens, 50, index=tokens, arrival_s=100 - tokens / 1e4) for tokens in (200, 300)
    )
    assert policy(2).act(None, state(2, space, asked=small)) == 0
    router = policy(2)
    for asked in (small, large):
        assert router.act(None, state(2, full, asked=asked)) is None
    assert router.act(None, state(2, space, asked=small, now_s=100.1)) == 1
    assert router.act(None, state(2, [*space, row(1, 200, 50)], asked=large, now_s=100.1)) == 0


def test_requests_are_gathered_for_a_round():
    a, b = request(2, index=1), request(2, index=2)
    router = policy(2, round_s=0.15)
    assert router.act(None, state(2, asked=a)) is None
    assert router.act(None, state(2, asked=b, now_s=100.1)) is None
    first = router.act(None, state(2, asked=a, now_s=100.2))
    second = router.act(None, state(2, [row(first, 100, 50)], asked=b, now_s=100.2))
    assert {first, second} == {0, 1}
    assert router.act(None, state(2, asked=request(2, index=3), now_s=100.3)) is None  # the next round


def test_the_earliest_go_first_where_there_are_many():
    full = [row(0, 1000, 900, 1)]
    router = policy(1, max_requests=1)
    early, late = (request(1, index=index, arrival_s=90.0 + index) for index in (1, 2))
    assert router.act(None, state(1, full, asked=early)) is None
    assert router.act(None, state(1, asked=late, now_s=100.1)) is None
    assert router.act(None, state(1, asked=early, now_s=100.1)) == 0
    assert router.act(None, state(1, asked=late, now_s=100.2)) == 0


def test_a_request_that_is_offered_no_more_is_forgotten():
    router = policy(1, max_requests=1)
    early, late = (request(1, index=index, arrival_s=90.0 + index) for index in (1, 2))
    assert router.act(None, state(1, [row(0, 1000, 900, 1)], asked=early)) is None
    assert router.act(None, state(1, asked=late, now_s=100.3)) == 0


def test_a_router_learns_which_kind_is_slow():
    settings = spec(2, models=("llama2-7b", "opt-13b"))
    router = SiaPolicy()
    router.reset(settings, 0)
    assert router.act(None, state(2, now_s=100.0)) == 0
    gauges = {
        place: {"generated_tokens": 1000, "busy_s": busy_s, "num_running": 10, "context_tokens": 5000}
        for place, busy_s in ((0, 4.0), (1, 1.15))
    }
    zero = {place: {**row, "generated_tokens": 0, "busy_s": 0.0} for place, row in gauges.items()}
    router.reset(settings, 0)
    assert router.act(None, state(2, gauges=zero, now_s=100.0)) == 0
    assert router.act(None, state(2, gauges=gauges, now_s=110.0, asked=request(2, index=5))) == 1


def test_can_take_is_respected_and_decisions_repeat_themselves():
    rng = np.random.default_rng(0)

    def states():
        for step in range(80):
            gauges = {"generated_tokens": 100 * step, "busy_s": 0.1 * step, "num_running": 9}
            yield random_state(rng, 50, step, dict.fromkeys(range(4), gauges))

    assert 0 < num_held("sia", states()) < 80


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"fairness_power": 0.5}, "fairness_power must be negative"),
        ({"no_place_cost": 1.0}, "no_place_cost must be above 1"),
        ({"round_s": -1.0}, "round_s must not be negative"),
        ({"max_requests": 0}, "max_requests must be at least 1"),
        ({"prior_weight": 0.0}, "prior_weight must be positive"),
    ],
)
def test_mistakes_are_named(constants, message):
    with pytest.raises(ValueError, match=message):
        SiaConfig(**constants)
