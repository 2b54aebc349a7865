import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.baselines.preserve.load_anticipator import LoadAnticipator, extended
from serving_gym.baselines.preserve.look_ahead import anticipated_load
from tests.preserve.states import in_flight, row

RATIO = 0.2


def test_a_worked_example_as_in_figure_7():
    """An instance of 100 tokens: A has a prompt of 10 and 4 tokens predicted, B of 20 and 2."""
    anticipator = LoadAnticipator(100, length=8)
    anticipator.sent(0, 10, 4)
    anticipator.sent(1, 20, 2)
    assert anticipator.queued_prompt_tokens == 30
    assert anticipator.remaining_tokens == 6
    assert not anticipator.tokens(8).any()

    anticipator.prefill_complete(0)  # U'_i = P + i for i in [0, D)
    assert anticipator.tokens(8).tolist() == [10, 11, 12, 13, 0, 0, 0, 0]
    assert anticipator.usage(2).tolist() == [0.10, 0.11]
    assert anticipator.queued_prompt_tokens == 20
    anticipator.iteration()
    anticipator.prefill_complete(1)
    assert anticipator.tokens(8).tolist() == [11 + 20, 12 + 21, 13, 0, 0, 0, 0, 0]

    # a request with a prompt of 5 and 3 predicted tokens, virtually added, raises the peak and leaves the map alone
    assert anticipator.tokens(4, 5, 3).tolist() == [31 + 5, 33 + 6, 13 + 7, 0]
    assert anticipator.tokens(4).tolist() == [31, 33, 13, 0]

    anticipator.iteration()
    anticipator.done(
        0
    )  # after 3 tokens of 4: i in [3, 4) is subtracted, and the iteration in which it ends goes by
    assert anticipator.tokens(8).tolist() == [12 + 21, 0, 0, 0, 0, 0, 0, 0]
    anticipator.iteration()  # B was to end here: it is extended by ceil(0.2 * 2) = 1 token
    assert anticipator.tokens(8).tolist() == [22, 0, 0, 0, 0, 0, 0, 0]
    assert anticipator.remaining_tokens == 1
    anticipator.iteration()  # and by ceil(0.2 * 3) = 1 again
    assert anticipator.tokens(8).tolist() == [23, 0, 0, 0, 0, 0, 0, 0]
    anticipator.done(1)
    anticipator.iteration()
    assert not anticipator.tokens(8).any()
    assert anticipator.remaining_tokens == anticipator.queued_prompt_tokens == 0


def test_the_rest_of_an_extension_is_subtracted_when_the_request_ends():
    anticipator = LoadAnticipator(1000, length=32)
    anticipator.sent(0, 100, 10)
    anticipator.prefill_complete(0)
    for _ in range(10):
        anticipator.iteration()
    assert anticipator.tokens(4).tolist() == [110, 111, 0, 0]  # to 12 tokens
    anticipator.done(0)  # with its eleventh
    assert anticipator.tokens(4).tolist() == [110, 0, 0, 0]
    anticipator.iteration()
    assert not anticipator.tokens(32).any()


def test_a_response_is_extended_by_a_fifth_of_what_it_is_and_by_one_at_least():
    lengths = [10]
    for _ in range(4):
        lengths.append(extended(lengths[-1], RATIO))
    assert lengths == [10, 12, 15, 18, 22]
    assert extended(1, RATIO) == 2
    assert extended(7, 0.0) == 8


def test_a_prediction_longer_than_the_map_is_refused():
    with pytest.raises(ValueError, match="predicted_tokens must be at most the map's length 8, got 9"):
        LoadAnticipator(100, length=8).sent(0, 1, 9)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("sent"), st.integers(1, 200), st.integers(0, 60)),
        st.tuples(st.just("prefill"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("done"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("iterate"), st.integers(1, 40), st.just(0)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_the_map_kept_by_events_is_the_one_of_the_requests_in_flight(events):
    length, lookahead = 64, 50
    anticipator = LoadAnticipator(10_000, length, RATIO)
    rows: dict[int, dict] = {}

    def iterate():
        anticipator.iteration()
        for values in rows.values():
            if values["first_token_s"] >= 0:
                values["generated_tokens"] += 1

    for index, (kind, a, b) in enumerate(events):
        queued = [i for i, values in rows.items() if values["first_token_s"] < 0]
        decoding = [i for i, values in rows.items() if values["first_token_s"] >= 0]
        if kind == "sent":
            anticipator.sent(index, a, b)
            rows[index] = row(1, a, b)
        elif kind == "prefill" and queued:
            chosen = queued[a % len(queued)]
            anticipator.prefill_complete(chosen)
            rows[chosen]["first_token_s"] = 1.0
            iterate()
        elif kind == "done" and decoding:
            chosen = decoding[a % len(decoding)]
            anticipator.done(chosen)
            del rows[chosen]
            iterate()
        elif kind == "iterate":
            for _ in range(a):
                iterate()
        tokens = anticipator.tokens(lookahead)
        limit = float(np.median(tokens))
        here = in_flight(list(rows.values()))
        load = anticipated_load(here, lookahead, RATIO, 0, 0, np.zeros(2), np.array([limit, limit]))
        assert load.overflow_tokens.tolist() == [0.0, tokens.max()]
        assert load.overloaded.tolist() == [0.0, (tokens > limit).mean()]
        assert load.queued_tokens.tolist() == [0, anticipator.queued_prompt_tokens]
        assert load.remaining_tokens.tolist() == [0, anticipator.remaining_tokens]


def lines(requests, lookahead):
    """(3, lookahead) KV tokens over the next iterations: a line for every request that has a token."""
    tokens = np.zeros((3, lookahead), np.int64)
    for place, input_tokens, length, generated in requests:
        if generated == 0:
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
)
def test_the_load_of_an_instance_is_the_sum_of_lines(requests, lookahead, prompt, predicted, bounds):
    ideal, limit = np.array(bounds[:3]), np.array(bounds[3:])
    rows = in_flight([row(*values) for values in requests])
    load = anticipated_load(rows, lookahead, RATIO, prompt, predicted, ideal, limit)
    tokens = lines(requests, lookahead)
    np.testing.assert_allclose(load.overloaded, (tokens > limit[:, None]).mean(axis=1), atol=1e-12)
    reach = min(lookahead, predicted)
    tokens[:, :reach] += prompt + np.arange(reach)
    np.testing.assert_array_equal(load.overflow_tokens, np.maximum(tokens.max(axis=1) - ideal, 0.0))
    queued = [sum(r[1] for r in requests if r[0] == place and r[3] == 0) for place in range(3)]
    assert load.queued_tokens.tolist() == queued
