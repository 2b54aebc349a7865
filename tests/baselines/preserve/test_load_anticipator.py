import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.baselines.preserve.look_ahead import anticipated_load, extended
from tests.baselines.preserve.states import in_flight, row

RATIO = 0.2


def load_of(*requests, limit=0.0, prompt=0, predicted=0, unprefilled=False, with_request=False):
    """Load of one instance over 8 iterations; (prompt, predicted, generated) of each request in flight."""
    rows = in_flight([row(0, *values) for values in requests])
    bounds = np.zeros(1), np.array([limit])
    load = anticipated_load(rows, 8, RATIO, prompt, predicted, *bounds, unprefilled, with_request)
    return tuple(float(values[0]) for values in load)


def test_a_worked_example_as_in_figure_7():
    """A has a prompt of 10 and 4 tokens predicted, B of 20 and 2; queued, remaining, peak and share above a limit."""
    assert load_of((10, 4, 0), (20, 2, 0)) == (30, 6, 0, 0)
    # A has its first token: 11, 12, 13 tokens over the next iterations
    assert load_of((10, 4, 1), (20, 2, 0)) == (20, 5, 13, 3 / 8)
    assert load_of((10, 4, 1), (20, 2, 0), limit=12.0) == (20, 5, 13, 1 / 8)
    # and B as well: 12 + 21, 13
    assert load_of((10, 4, 2), (20, 2, 1)) == (0, 3, 33, 2 / 8)
    # a request with a prompt of 5 and 3 predicted tokens, virtually added, raises the peak alone: 33 + 5, 13 + 6, 7
    assert load_of((10, 4, 2), (20, 2, 1), prompt=5, predicted=3) == (0, 3, 38, 2 / 8)
    # which counts for the share as well where it is asked for; B alone, not prefilled, holds 20 and 21
    assert load_of((10, 4, 2), (20, 2, 1), limit=18.0, prompt=5, predicted=3) == (0, 3, 38, 1 / 8)
    assert load_of((10, 4, 2), (20, 2, 1), limit=18.0, prompt=5, predicted=3, with_request=True)[3] == 2 / 8
    assert load_of((20, 2, 0), limit=20.0, unprefilled=True) == (20, 2, 21, 1 / 8)
    # B was to end: it is extended by ceil(0.2 * 2) = 1 token, then by ceil(0.2 * 3) = 1 again
    assert load_of((20, 2, 2)) == (0, 1, 22, 1 / 8)
    assert load_of((20, 2, 3)) == (0, 1, 23, 1 / 8)


def test_a_response_is_extended_by_a_fifth_of_what_it_is_and_by_one_at_least():
    lengths = [10]
    for _ in range(4):
        lengths.append(extended(lengths[-1], RATIO))
    assert lengths == [10, 12, 15, 18, 22]
    assert extended(1, RATIO) == 2
    assert extended(7, 0.0) == 8


def lines(requests, lookahead, unprefilled):
    """(3, lookahead) KV tokens over the next iterations: a line for every request that has a token, or for all."""
    tokens = np.zeros((3, lookahead), np.int64)
    for place, input_tokens, length, generated in requests:
        if generated == 0 and not unprefilled:
            continue
        length = max(length, 1)
        while length <= generated:
            length = extended(length, RATIO)
        for i in range(min(length - generated, lookahead)):
            tokens[place, i] += input_tokens + generated + i
    return tokens


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 500), st.integers(0, 80), st.integers(0, 120))),
    st.integers(1, 40),
    st.integers(1, 300),
    st.integers(0, 60),
    st.lists(st.floats(0.0, 4000.0), min_size=6, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_the_load_of_an_instance_is_the_sum_of_lines(
    requests, lookahead, prompt, predicted, bounds, unprefilled, with_request
):
    ideal, limit = np.array(bounds[:3]), np.array(bounds[3:])
    rows = in_flight([row(*values) for values in requests])
    load = anticipated_load(
        rows, lookahead, RATIO, prompt, predicted, ideal, limit, unprefilled, with_request
    )
    alone = lines(requests, lookahead, unprefilled)
    tokens, reach = alone.copy(), min(lookahead, predicted)
    tokens[:, :reach] += prompt + np.arange(reach)
    judged = tokens if with_request else alone
    np.testing.assert_allclose(load.overloaded, (judged > limit[:, None]).mean(axis=1), atol=1e-12)
    np.testing.assert_array_equal(load.overflow_tokens, np.maximum(tokens.max(axis=1) - ideal, 0.0))
    queued = [sum(r[1] for r in requests if r[0] == place and r[3] == 0) for place in range(3)]
    assert load.queued_tokens.tolist() == queued
