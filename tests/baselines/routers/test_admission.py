"""Admission policies: a hand-worked case of each branch, and what holds of all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.baselines.admission.admitter import HOLD
from serving_gym.baselines.registry import POLICIES, is_admitter, make_policy, policy_tunables
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.routing.state import Dispatch, Reject
from serving_gym.runners.configuration.policies import load_policy
from tests.baselines.routers.states import arriving, busy_state, engine, routing_spec, routing_state, sent

ADMITTERS = [name for name in POLICIES if is_admitter(name)]
CRITICAL, STANDARD, SHEDDABLE = range(3)
REJECTED = Reject()


def admitter(name, slo=None, num_places=2, seed=0, **params):
    policy = make_policy(name, **params)
    policy.reset(replace(routing_spec(num_places, slo), admission=True), seed)
    return policy


def at(engines, priority=SHEDDABLE, now_s=10.0, held=(0, 0), in_flight=(), **request):
    state = routing_state(
        engines, request=arriving(priority=priority, **request), now_s=now_s, in_flight=in_flight
    )
    return replace(state, held_of_class=np.array(held), num_held=sum(held))


def act(policy, state):
    return policy.act(None, state)


IDLE = [engine(), engine()]
FULL = [engine(0.8, num_waiting=5, num_running=9)] * 2  # saturation 1 either way


def test_token_bucket_by_hand():
    """1,000 tokens and 100 a second: 600, then 400 of what is left; after 3 s there are 300."""
    policy = admitter("token_bucket", capacity_tokens=1000.0, refill_tokens_per_s=100.0)
    assert act(policy, at(IDLE, input_tokens=600)) == 0
    assert act(policy, at(IDLE, input_tokens=401)) == REJECTED
    assert act(policy, at(IDLE, input_tokens=400)) == 0
    assert act(policy, at(IDLE, now_s=13.0, input_tokens=301)) == REJECTED
    assert act(policy, at(IDLE, now_s=13.0, input_tokens=300)) == 0
    assert act(policy, at(IDLE, now_s=1000.0, input_tokens=1000)) == 0, "never more than it holds"
    assert act(policy, at(IDLE, now_s=1000.0, input_tokens=1)) == REJECTED


def test_tier_shed_looks_at_the_most_loaded_engine():
    policy = admitter("tier_shed", overload_threshold=10.0)
    loaded = [engine(), engine(num_running=8, num_waiting=3)]
    assert act(policy, at(loaded)) == REJECTED
    assert act(policy, at(loaded, STANDARD)) == 0
    assert act(policy, at([engine(), engine(num_running=8, num_waiting=2)])) == 0
    assert act(admitter("tier_shed"), at([engine(), engine(num_running=1)])) == REJECTED, "any load"
    assert act(admitter("tier_shed", admit_priority=0), at(loaded, STANDARD)) == REJECTED


def test_gaie_legacy_sheds_at_a_mean_saturation_of_one():
    policy = admitter("gaie_legacy")
    assert act(policy, at(FULL)) == REJECTED
    assert act(policy, at(FULL, STANDARD)) == 0
    half = [engine(), engine(num_waiting=9)]  # (0 + 1.8) / 2
    assert act(policy, at(half)) == 0
    assert act(policy, at([engine(), engine(num_waiting=10)])) == REJECTED
    assert act(policy, at([engine(0.72), engine(0.9)])) == REJECTED, "(0.9 + 1.125) / 2"


@pytest.mark.parametrize(("usage", "chance"), [(0.16, 0.096), (0.2, 0.293), (0.24, 0.729), (0.3, 1.0)])
def test_the_probabilistic_admitter_refuses_by_the_fifth_power(usage, chance):
    """300 (usage / 0.8)^5: of 4,000 sheddable requests, within four standard errors."""
    policy = admitter("probabilistic_admitter")
    state = at([engine(usage)] * 2)
    refused = np.mean([act(policy, state) == REJECTED for _ in range(4000)])
    assert refused == pytest.approx(chance, abs=4 * np.sqrt(0.25 / 4000) + 1e-3)
    assert act(policy, at([engine(usage)] * 2, STANDARD)) == 0


def test_the_soft_ceiling_of_three_bands_by_hand():
    """Ceilings 1, 1 - s / 2 and 1 - s: at s = 0.625 sheddable is open at every second tick, at 0.75 at every third."""
    policy = admitter("soft_ceiling")
    for priority in (CRITICAL, STANDARD, SHEDDABLE):
        assert act(policy, at(IDLE, priority)) == 0

    def of(usage, priority):
        return [act(policy, at([engine(usage)] * 2, priority)) for _ in range(6)]

    assert of(0.5, CRITICAL) == [0] * 6
    assert of(0.5, STANDARD) == [0] * 6, "0.625 is below 1 - 0.3125"
    assert of(0.5, SHEDDABLE) == [HOLD, 0] * 3
    assert of(0.6, SHEDDABLE) == [HOLD, HOLD, 0] * 2
    assert of(0.6, STANDARD) == [HOLD, HOLD, 0] * 2, "0.75 is above 1 - 0.375"
    assert of(0.8, CRITICAL) == [HOLD] * 6


def test_the_soft_ceiling_keeps_the_order_of_a_class():
    policy = admitter("soft_ceiling")
    assert act(policy, at(IDLE, held=(1, 0))) == HOLD
    assert act(policy, at(IDLE, held=(0, 1))) == 0
    assert act(policy, at(IDLE, held=(1, 0), held_before=True)) == 0


def test_sia_holding_holds_what_has_no_room_and_sends_only_where_there_is():
    """16,000 tokens an engine; half of them may be taken: 8,000."""
    policy = admitter("sia_holding", kv_share=0.5, batch_share=2 / 256)
    prompt = {"input_tokens": 2000}
    assert (
        act(policy, at(IDLE, in_flight=[sent(0, input_tokens=6000), sent(1, input_tokens=6001)], **prompt))
        == 0
    )
    over = [sent(0, input_tokens=6001), sent(1, input_tokens=6001)]
    assert act(policy, at(IDLE, in_flight=over, **prompt)) == HOLD
    assert act(policy, at(IDLE, in_flight=[sent(0, input_tokens=9000)], **prompt)) == 1, (
        "an idle one takes any"
    )
    short = [sent(0, input_tokens=10), sent(0, input_tokens=10), sent(1, input_tokens=500)]
    assert act(policy, at(IDLE, in_flight=short, input_tokens=10)) == 1, "two are a batch"


def test_deadline_feasibility_refuses_what_cannot_make_it():
    """1 ms a prompt token: 900 tokens before it and 90 of its own are 0.99 s, and an iteration 0.01 s."""
    at_work = [engine(num_running=1)] * 2
    policy = admitter("deadline_feasibility", SLO(1.0, 0.05))

    def with_queue(tokens, **request):
        return at(
            at_work, in_flight=[sent(0, input_tokens=tokens), sent(1, input_tokens=5000)],
            input_tokens=90, deadline_s=11.0, **request,
        )  # fmt: skip

    assert act(policy, with_queue(899)) == 0
    assert act(policy, with_queue(901)) == REJECTED
    assert act(policy, with_queue(899, now_s=10.1)) == REJECTED
    assert act(policy, with_queue(901, priority=CRITICAL)) == REJECTED
    protects = admitter("deadline_feasibility", SLO(1.0, 0.05), protected_priority=0)
    assert act(protects, with_queue(901, priority=CRITICAL)) == 0
    lenient = admitter("deadline_feasibility", SLO(1.0, 0.05), ttft_margin=0.5)
    assert act(lenient, with_queue(901)) == 0
    assert act(admitter("deadline_feasibility", SLO(1.0, 0.009)), with_queue(10)) == REJECTED, "TPOT"
    assert act(policy, at(IDLE, input_tokens=5000, deadline_s=11.0)) == 0, (
        "an idle engine may be faster than told"
    )
    assert act(policy, at(IDLE, now_s=11.5, deadline_s=11.0)) == REJECTED


@pytest.mark.parametrize("name", ADMITTERS)
def test_admission_must_be_a_decision(name):
    with pytest.raises(ValueError, match=r"set env\.admission=true"):
        make_policy(name).reset(routing_spec(), 0)


@pytest.mark.parametrize("name", ADMITTERS)
def test_verdicts_follow_the_seed_and_reset_forgets(name):
    def verdicts(policy):
        rng, said = np.random.default_rng(1), []
        policy.reset(replace(routing_spec(8), admission=True), 3)
        for i in range(80):
            request = arriving(
                index=i, priority=i % 3, class_id=i % 2, input_tokens=int(rng.integers(50, 3000))
            )
            state = busy_state(rng, 8, 3 * i, request=request, now_s=10.0 + 0.1 * i)
            said.append(act(policy, replace(state, held_of_class=np.zeros(2, np.int64))))
        return said

    policy = make_policy(name)
    first = verdicts(policy)
    assert verdicts(policy) == first == verdicts(make_policy(name))
    assert {type(each) for each in first} <= {int, Reject, Dispatch}
    assert any(not isinstance(each, int) for each in first)


@pytest.mark.parametrize("name", [name for name in ADMITTERS if make_policy(name).once])
def test_what_was_let_in_is_not_judged_again(name):
    policy = admitter(name, **({"capacity_tokens": 1.0} if name == "token_bucket" else {}))
    busy = [engine(1.0, num_waiting=50, num_running=50)] * 2
    assert act(policy, at(busy)) == REJECTED
    assert act(policy, at(busy, held_before=True)) == 0


def test_what_cannot_be_taken_is_held_and_the_end_is_no_decision():
    policy = admitter("probabilistic_admitter")
    assert act(policy, routing_state(IDLE, request=arriving(priority=0), can_take=[False, False])) is None
    assert act(policy, routing_state(IDLE, request=None)) is None


@pytest.mark.parametrize("name", ADMITTERS)
def test_any_heuristic_may_place_what_is_let_in(name):
    policy = load_policy(f"{name}+least_request", "routing")
    assert policy.name == f"{name}+least_request"
    policy.reset(replace(routing_spec(2), admission=True), 0)
    state = at(IDLE, CRITICAL, in_flight=[sent(0)])
    assert act(policy, state) == 1
    assert policy_tunables(policy.name) == policy_tunables(name)


def test_constants_of_both_are_theirs():
    policy = make_policy("probabilistic_admitter+linear_score", k=7.0, router={"in_flight": -3.0})
    assert (policy.config.k, policy.router.config.in_flight) == (7.0, -3.0)
    tuned = load_policy("tier_shed+linear_score_tuned")
    assert tuned.router.config == load_policy("linear_score_tuned").config


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("token_bucket+tier_shed", "must place requests"),
        ("token_bucket+zoo/routing", "a checkpoint decides about admission itself"),
        ("token_bucket+jsqq", "unknown policy 'jsqq'; did you mean 'jsq'"),
        ("jsq+token_bucket", r"unknown policy 'jsq\+token_bucket'"),
    ],
)
def test_what_does_not_go_together(name, said):
    with pytest.raises(ValueError, match=said):
        load_policy(name, "routing")


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("token_bucket", {"capacity_tokens": 0.0}, "capacity_tokens must be positive"),
        ("tier_shed", {"overload_threshold": -1.0}, "overload_threshold must not be negative"),
        ("gaie_legacy", {"kv_cache_util_threshold": 1.5}, "kv_cache_util_threshold must lie in"),
        ("probabilistic_admitter", {"power": 0.0}, "power must be positive"),
        ("soft_ceiling", {"queue_depth_threshold": 0.0}, "queue_depth_threshold must be positive"),
        ("sia_holding", {"kv_share": 0.0}, "kv_share must lie in"),
        ("deadline_feasibility", {"ttft_margin": -0.1}, "ttft_margin must not be negative"),
    ],
)
def test_constants_are_checked(name, params, said):
    with pytest.raises(ValueError, match=said):
        make_policy(name, **params)
