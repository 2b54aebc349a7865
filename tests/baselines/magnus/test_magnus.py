import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.baselines.magnus.batcher import batches_with, wasted_memory_access
from serving_gym.baselines.magnus.policy import MagnusConfig, MagnusPolicy
from serving_gym.baselines.magnus.serving_time import ServingTimeEstimator
from serving_gym.baselines.registry import make_policy
from tests.baselines.preserve.states import in_flight, num_held, random_state, request, row, spec, state
from tests.paths import ROOT

CONFIG = ROOT / "configs" / "policy" / "magnus.yaml"


def policy(num_places, **constants):
    made = MagnusPolicy(MagnusConfig(**{"memory": "final", **constants}))
    made.reset(spec(num_places), 0)
    return made


def test_the_config_holds_every_constant_and_its_default():
    assert yaml.safe_load(CONFIG.read_text())["params"] == vars(make_policy("magnus").config)


def test_a_worked_example_of_waste():
    """A batch of prompts 10 and 4 with responses 3 and 5: L(B) = 10, G(B) = 5.

    The first reads no padding and waits for 2 iterations in which it has 10 + 4 and 10 + 5 tokens: 29.
    The second reads 6 tokens of padding in each of its 5 iterations: 30.
    """
    assert wasted_memory_access(10, 3, 10, 5) == 29
    assert wasted_memory_access(4, 5, 10, 5) == 30
    assert wasted_memory_access(10, 5, 10, 5) == 0
    batches = batches_with(in_flight([row(0, 10, 3)]), 2, 4, 5, True)
    assert batches.size.tolist() == [1, 0]
    assert batches.tokens.tolist() == [13, 0]
    assert batches.waste.tolist() == [30, 0]  # the most of the two; nothing in a batch of its own


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 40), st.integers(0, 50))),
    st.integers(1, 60),
    st.integers(1, 40),
)
def test_waste_is_the_sum_over_iterations(rows, prompt, response):
    batches = batches_with(in_flight([row(*values) for values in rows]), 3, prompt, response, True)
    for place in range(3):
        members = [(n, max(d, g, 1)) for p, n, d, g in rows if p == place]
        assert batches.size[place] == len(members)
        assert batches.tokens[place] == sum(n + d for n, d in members)
        members.append((prompt, response))
        longest, last = max(n for n, _ in members), max(d for _, d in members)
        assert batches.waste[place] == max(
            sum(longest - n for _ in range(d)) + sum(g + longest for g in range(d + 1, last + 1))
            for n, d in members
        )


def test_requests_of_similar_lengths_go_together():
    rows = [row(0, 100, 50), row(1, 100, 300)]
    router = policy(3)
    assert router.act(None, state(3, rows, asked=request(3, 100, 60))) == 0
    assert router.act(None, state(3, rows, asked=request(3, 100, 290))) == 1
    # Beside one of 170 tokens that of 50 loses (170 * 171 - 50 * 51) / 2 + 100 * 120 = 25 260 tokens, and it loses
    # (300 * 301 - 170 * 171) / 2 + 100 * 130 = 43 615 beside that of 300. A lower Phi has it begin a batch.
    asked = request(3, 100, 170)
    assert policy(3).act(None, state(3, rows, asked=asked)) == 0
    assert policy(3, waste_limit_tokens=25_261.0).act(None, state(3, rows, asked=asked)) == 0
    assert policy(3, waste_limit_tokens=25_260.0).act(None, state(3, rows, asked=asked)) == 2
    # where no instance is idle it joins the batch of least waste, whatever that is
    assert policy(2, waste_limit_tokens=1.0).act(None, state(2, rows, asked=request(2, 100, 170))) == 0


def test_a_request_joins_a_similar_batch_although_an_instance_is_idle():
    assert policy(2).act(None, state(2, [row(1, 100, 50)], asked=request(2, 100, 50))) == 1
    assert policy(2).act(None, state(2, [])) == 0


def test_a_batch_has_room_for_what_its_requests_come_to():
    rows = [row(0, 500, 350)]  # 850 of 1000 tokens
    assert policy(1).act(None, state(1, rows, asked=request(1, 100, 50))) == 0
    assert policy(1).act(None, state(1, rows, asked=request(1, 101, 50))) is None
    assert policy(1, memory_share=0.99).act(None, state(1, rows, asked=request(1, 100, 50))) is None
    assert policy(1).act(None, state(1, [row(0, 500, 300, 351)], asked=request(1, 100, 50))) is None
    assert policy(1).act(None, state(1, [], asked=request(1, 900, 5000))) == 0  # any on an idle instance
    assert policy(2).act(None, state(2, rows, asked=request(2, 101, 50))) == 1


def test_can_take_is_respected():
    rows = [row(0, 100, 50), row(1, 100, 300)]
    asked = request(3, 100, 150)
    assert policy(3).act(None, state(3, rows, asked=asked, can_take=[False, True, True])) == 1  # 48 825
    assert policy(3).act(None, state(3, rows, asked=asked, can_take=[False, False, True])) == 2
    assert policy(3).act(None, state(3, rows, asked=asked, can_take=[False] * 3)) is None


def test_the_best_response_ratio_is_next():
    """One instance of 1000 tokens. A and B wait; once there is room for one, the one that waits relatively longer goes.

    By the profile a request's serving time is about its response at 10 ms an iteration: A of 400 tokens about 4 s, B of
    100 tokens about 1 s. A has waited 3 s and B 2 s, so that B's response ratio of 2 is above A's of 0.75.
    """
    full, half = [row(0, 500, 450)], [row(0, 100, 450)]
    a, b = (
        request(1, 40, predicted, index=index, arrival_s=arrival_s)
        for predicted, index, arrival_s in ((400, 1, 97.0), (100, 2, 98.0))
    )
    router = policy(1)
    assert router.act(None, state(1, full, asked=a)) is None
    assert router.act(None, state(1, full, asked=b)) is None
    # 450 are free: 440 for A or 140 for B, not both
    assert router.act(None, state(1, half, asked=a, now_s=100.1)) is None
    assert router.act(None, state(1, half, asked=b, now_s=100.1)) == 0
    # and A alone has nobody before it
    assert router.act(None, state(1, half, asked=a, now_s=100.2)) == 0


def test_who_fits_beside_those_before_it_need_not_wait():
    full, half = [row(0, 500, 450)], [row(0, 100, 250)]
    a, b = (
        request(1, 40, predicted, index=index, arrival_s=98.0) for predicted, index in ((400, 1), (100, 2))
    )
    router = policy(1)
    assert router.act(None, state(1, full, asked=a)) is None
    assert router.act(None, state(1, full, asked=b)) is None
    assert router.act(None, state(1, half, asked=a, now_s=100.1)) == 0


def test_nobody_passes_one_of_a_higher_response_ratio():
    full, half = [row(0, 500, 450)], [row(0, 100, 450)]
    large, small = (
        request(2, 40, predicted, index=index, arrival_s=arrival_s)
        for predicted, index, arrival_s in ((500, 1, 80.0), (100, 2, 99.0))
    )
    router = policy(2)
    here = {"can_take": [True, False]}
    assert router.act(None, state(2, full, asked=large, **here)) is None
    # 540 do not fit beside 550, 140 would: what is next waits for that instance, but not for the other one
    assert router.act(None, state(2, half, asked=large, now_s=100.1, **here)) is None
    assert router.act(None, state(2, half, asked=small, now_s=100.1, **here)) is None
    assert router.act(None, state(2, half, asked=small, now_s=100.1)) == 1


def test_a_request_that_is_offered_no_more_blocks_nobody():
    full, half = [row(0, 500, 450)], [row(0, 100, 450)]
    a, b = (
        request(1, 40, predicted, index=index, arrival_s=98.0) for predicted, index in ((400, 1), (100, 2))
    )
    router = policy(1)
    assert router.act(None, state(1, full, asked=b)) is None
    assert router.act(None, state(1, half, asked=a, now_s=100.1)) is None
    router.reset(router.spec, 0)
    assert router.act(None, state(1, full, asked=b)) is None
    assert router.act(None, state(1, half, asked=a, now_s=100.3)) == 0


def test_the_estimator_asks_the_nearest():
    estimator = ServingTimeEstimator(neighbours=2, window=4)
    estimator.add((10, 10, 1), 1.0)
    assert estimator.estimate((10, 10, 1)) is None
    estimator.add((10, 20, 1), 2.0)
    estimator.add((10, 100, 1), 9.0)
    estimator.add((10, 110, 1), 11.0)
    assert estimator.estimate((10, 14, 1)) == 1.5
    assert estimator.estimate((10, 500, 1)) == 10.0
    estimator.add((10, 12, 1), 1.2)  # the first is forgotten
    assert estimator.estimate((10, 14, 1)) == 1.6


def test_serving_times_are_learned_from_what_ends():
    """Answers of 100 tokens are made to take longer than those of 400: the order of the queue changes."""
    router = policy(1)
    for index in range(12):
        slow = index % 2 == 0
        asked = request(1, 40, 100 if slow else 400, index=index + 10)
        assert router.act(None, state(1, asked=asked, now_s=10.0 * index)) == 0
        on_its_way = [row(0, 40, asked.predicted_tokens, index=asked.index)]
        held = request(1, 900, 100, index=1, arrival_s=10.0 * index)
        assert router.act(None, state(1, on_its_way, asked=held, now_s=10.0 * index + 0.5)) is None
        ended = 10.0 * index + (9.0 if slow else 1.0)
        assert router.act(None, state(1, asked=held, now_s=ended)) == 0
    full, half = [row(0, 500, 450)], [row(0, 100, 450)]
    a, b = (
        request(1, 40, predicted, index=index, arrival_s=arrival_s)
        for predicted, index, arrival_s in ((400, 1, 198.0), (100, 2, 197.0))
    )
    assert router.act(None, state(1, full, asked=a, now_s=200.0)) is None
    assert router.act(None, state(1, full, asked=b, now_s=200.0)) is None
    assert router.act(None, state(1, half, asked=b, now_s=200.1)) is None
    assert router.act(None, state(1, half, asked=a, now_s=200.1)) == 0


def test_decisions_repeat_themselves():
    rng = np.random.default_rng(0)
    assert 0 < num_held("magnus", (random_state(rng, 36, step) for step in range(100))) < 100


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="waste_limit_tokens must be positive"):
        MagnusConfig(waste_limit_tokens=0.0)
    with pytest.raises(ValueError, match="memory_share must be positive"):
        MagnusConfig(memory_share=-1.0)
    with pytest.raises(ValueError, match="memory 'finale'"):
        MagnusConfig(memory="finale")


def test_a_batch_comes_to_what_its_requests_have_so_far():
    """500 tokens of 1000 are there, 950 are predicted: a prompt of 40 has room beside the former alone."""
    busy = state(1, [row(0, 490, 460, 10)], asked=request(1, 40, 100))
    assert policy(1, memory="present").act(None, busy) == 0
    assert policy(1).act(None, busy) is None
    assert (
        policy(1, memory="present").act(None, state(1, [row(0, 970, 9, 1)], asked=request(1, 40, 1))) is None
    )
