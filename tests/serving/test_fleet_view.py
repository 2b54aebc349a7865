"""The book-keeping of routers in front of servers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.state import TOTALS, EngineStatus
from serving_gym.envs.live.gauges import NOTHING, CacheConfig, Gauges
from serving_gym.envs.live.scraper import Reading
from serving_gym.envs.live.servers import Server
from serving_gym.envs.routing.observation import StateEncoder, place_loads
from serving_gym.envs.routing.state import DEFERRED_PRIORITY
from serving_gym.runners.serving.fleet_view import FleetView
from serving_gym.runners.serving.openai_requests import AnswerMeter, Lengths, lengths_of, prefix_ids
from tests.defaults import make_env

FLEET = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 3),))


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture(scope="module")
def env():
    return make_env("routing", cluster=FLEET)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def view(env, clock):
    made = FleetView(env.policy_spec, clock=clock)
    made.seat(["a", "b", "c"])
    return made


def total(state, name):
    return state.totals[:, TOTALS.index(name)].sum()


def test_the_table_of_requests_is_what_has_been_sent_and_not_ended(view, clock):
    rng = np.random.default_rng(0)
    expected: dict[int, list[int]] = {}  # name -> place, tokens so far
    for step in range(2000):
        clock.now_s += 0.01
        kind = rng.integers(5) % 4
        if kind == 0:
            view.arrive(step, Lengths(int(rng.integers(1, 500)), 200, 100))
            place = int(rng.integers(3))
            view.send(step, place)
            expected[step] = [place, 0]
        elif expected:
            name = int(rng.choice(list(expected)))
            if kind == 1:
                expected[name][1] += 3
                view.tokens(name, expected[name][1])
            elif kind == 2:
                view.end(name)
                del expected[name]
            elif not expected[name][1]:
                expected[name][0] = int(rng.integers(3))
                view.send(name, expected[name][0])
    view.arrive("asked", Lengths(10, 20))
    state = view.state("asked")
    assert len(state.in_flight) == len(expected) > 50
    assert sorted(state.in_flight["place"]) == sorted(place for place, _ in expected.values())
    assert sorted(state.in_flight["generated_tokens"]) == sorted(tokens for _, tokens in expected.values())
    loads = place_loads(state, 3)
    assert state.engines["pending_prefill_tokens"].tolist() == loads.queued_tokens.tolist()
    assert state.engines["context_tokens"].tolist() == loads.context_tokens.tolist()
    assert state.engines["num_running"].tolist() == loads.in_flight.tolist()
    assert len(view) == len(expected) + 1


def test_counts_of_a_request_from_arrival_to_end(view, clock):
    view.arrive(1, Lengths(400, 50))
    clock.now_s += 0.2
    state = view.state(1)
    assert (state.now_s, state.request.arrival_s) == (pytest.approx(0.2), 0.0)
    assert (state.unsent_tokens, state.num_held, len(state.in_flight)) == (400, 0, 0)
    view.send(1, 2)
    clock.now_s += 0.3
    view.tokens(1, 1)
    clock.now_s += 0.9
    view.tokens(1, 11)
    view.end(1)
    view.arrive(2, Lengths(100, 50))
    view.end(2, failed=True)
    view.arrive(3, Lengths(100, 50))
    view.refuse(3)
    view.arrive(4, Lengths(100, 500))
    state = view.state(4)
    assert total(state, "ttft_sum_s") == pytest.approx(0.5)
    assert total(state, "tpot_sum_s") == pytest.approx(0.09)
    counted = {
        name: total(state, name) for name in ("arrived", "finished", "failed", "refused", "generated_tokens")
    }
    assert counted == {"arrived": 4, "finished": 1, "failed": 1, "refused": 1, "generated_tokens": 11}
    assert state.sent_of_class.sum() == 1
    assert state.request.predicted_tokens == 11  # as long as the answers so far


def test_latencies_that_nobody_tells_are_not_in_the_totals(view):
    view.arrive(1, Lengths(400, 50))
    view.send(1, 0)
    view.end(1, generated=20)
    view.arrive(2, Lengths(400, 50))
    state = view.state(2)
    assert [total(state, name) for name in ("first_tokens", "finished", "ttft_met", "tpot_met")] == [
        0,
        0,
        0,
        0,
    ]


def test_gauges_add_the_requests_of_others_and_stale_ones_do_not(view, clock):
    view.arrive(1, Lengths(64, 50))
    view.send(1, 0)
    gauges = replace(NOTHING, num_running=5, num_waiting=2, kv_usage_ratio=0.5, preemptions=4)
    view.read("a", Reading(gauges, clock.now_s, 1))
    view.read("b", None, problem="no answer")
    clock.now_s += 1.5
    view.arrive(2, Lengths(10, 10))
    state = view.state(2)
    assert state.engines["num_running"].tolist() == [5, 0, 0]
    assert state.engines["num_waiting"].tolist() == [2, 0, 0]
    assert state.engines["kv_used_blocks"][0] == round(0.5 * state.engines["kv_capacity_blocks"][0])
    assert state.engines["status"].tolist() == [EngineStatus.ACTIVE, EngineStatus.DOWN, EngineStatus.ACTIVE]
    assert state.can_take.tolist() == [True, False, True]
    assert state.now_s - state.gauges_s == pytest.approx(1.5)
    view.read("a", Reading(gauges, clock.now_s, 1), stale=True)
    state = view.state(2)
    assert (state.engines["num_running"][0], state.engines["num_waiting"][0]) == (1, 0)


def test_an_unknown_kv_usage_is_that_of_the_own_requests(view, clock):
    view.arrive(1, Lengths(6400, 50))
    view.send(1, 1)
    view.read("b", Reading(Gauges(3, 0, None, None, None, None), clock.now_s, 1))
    view.arrive(2, Lengths(10, 10))
    state = view.state(2)
    assert state.engines["num_running"][1] == 3
    assert state.engines["kv_used_blocks"][1] == pytest.approx(6400 / view.spec.fleet.block_size[1], abs=1)


def test_endpoints_come_and_go(view):
    view.arrive(1, Lengths(10, 10))
    view.send(1, 1)
    view.seat(["a", "c"])  # b goes and still has a request
    view.arrive(2, Lengths(10, 10))
    state = view.state(2)
    assert state.engines["status"][1] == EngineStatus.DRAINING
    assert not state.can_take[1]
    assert len(state.in_flight) == 1
    view.seat(["a", "c", "d"])  # d needs its place
    state = view.state(2)
    assert view.place_of("d") == 1
    assert len(state.in_flight) == 0
    view.end(1)  # unknown by now
    view.seat(["d"])
    assert view.ready() == [1]
    with pytest.raises(ValueError, match="4 endpoints, but the policy's fleet has 3"):
        view.seat("wxyz")


def test_a_held_and_deferred_request(view):
    flight = view.arrive(1, Lengths(10, 10, priority=5))
    view.arrive(2, Lengths(30, 10))
    flight.held_before = flight.deferred = True
    state = view.state(1)
    assert (state.num_held, state.held_tokens, state.unsent_tokens) == (1, 30, 40)
    assert (state.request.priority, state.request.deferred) == (DEFERRED_PRIORITY, True)
    assert state.held_of_class.sum() == 1
    view.send(1, 0)
    assert view.state(2).in_flight["priority"][0] == DEFERRED_PRIORITY


def test_a_place_subset_and_requests_that_do_not_fit(view):
    view.arrive(1, Lengths(10, 10))
    assert view.state(1, [2, 0]).can_take.tolist() == [True, False, True]
    view.arrive(2, Lengths(10**8, 10))
    assert not view.state(2).can_take.any()


def test_an_endpoint_may_say_what_it_is(view):
    view.describe("b", Server("", "m", "m", "", 500, CacheConfig(10, 16)))
    view.arrive(1, Lengths(200, 10))
    state = view.state(1)
    assert state.can_take.tolist() == [True, False, True]
    assert state.engines["kv_capacity_tokens"][1] == 160


def test_prefixes_sent_to_a_place_are_remembered(env, clock):
    view = FleetView(env.policy_spec, remember_prefixes=True, clock=clock)
    view.seat(["a", "b", "c"])
    first, second = list(range(200)), list(range(130)) + [7] * 70
    view.arrive(1, Lengths(200, 10), prefix_ids({"prompt": first}))
    view.send(1, 1)
    view.arrive(2, Lengths(200, 10), prefix_ids({"prompt": second}))
    assert view.state(2).request.cached_tokens.tolist() == [0, 128, 0]


def test_states_can_be_encoded(env, view):
    spec = env.policy_spec
    view.arrive(1, Lengths(10, 10))
    encoder = StateEncoder(spec.fleet, spec.slos, env.config.scales, env.config.num_rows)
    observation, mask = encoder.encode(view.state(1))
    assert all(np.isfinite(part).all() for part in observation.values())
    assert mask.tolist() == [True] * 4


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": [1] * 50, "max_tokens": 20}, Lengths(50, 20)),
        ({"prompt": "a" * 41}, Lengths(11, 256)),
        ({"messages": [{"content": "a" * 8}, {"content": [{"text": "b"}]}]}, Lengths(3, 256)),
        ({"prompt": "", "max_completion_tokens": 7}, Lengths(1, 7)),
        ({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 9}}, Lengths(2, 9)),
        ({"prompt": "abcd", "max_tokens": "many", "priority": -3}, Lengths(1, 256, priority=-3)),
        ({"prompt": "abcd", "max_tokens": 1e400, "predicted_tokens": 12}, Lengths(1, 256, 12)),
        ({}, Lengths(1, 256)),
    ],
)
def test_lengths_of_requests(body, expected):
    assert lengths_of(body) == expected


def test_prompts_share_ids_as_far_as_they_share_blocks():
    text = "x" * 600
    one, two = prefix_ids({"prompt": text}), prefix_ids({"prompt": text[:300] + "y" * 300})
    assert len(one) == len(two) == 2
    assert (one[0] == two[0], one[1] == two[1]) == (True, False)
    assert prefix_ids({"prompt": "short"}).size == 0


def test_tokens_of_an_answer_are_counted_as_it_passes():
    meter = AnswerMeter(streams=True)
    data = b'data: {"choices": [{}]}\n\ndata: {"choices": [{}], "usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n'
    counts = []
    for byte in data:
        meter.feed(bytes([byte]))
        counts.append(meter.tokens)
    assert (sorted(set(counts)), meter.whole, meter.failed) == ([0, 1, 7], True, "")
    meter = AnswerMeter(streams=False)
    meter.feed(b'{"usage": {"completion_')
    meter.feed(b'tokens": 12}}', last=True)
    assert (meter.tokens, meter.whole) == (12, True)
    meter = AnswerMeter(streams=True)
    meter.feed(b'data: {"error": {"message": "no room"}}\n\ndata: ' + b"[" * 100_000 + b"\n\ndata: 3\n\n")
    assert (meter.tokens, meter.whole, "no room" in meter.failed) == (0, False, True)
    meter.feed(b'data: {"choices": [], "usage": {"completion_tokens": 1e999}}\n\n')
    assert meter.tokens == 0
