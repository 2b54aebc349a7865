"""Policies in the processes of other routers: of RL trainers, on `rl_rollouts`, and of the production-stack."""

from __future__ import annotations

import asyncio
import runpy
import sys

import pytest

from serving_gym.runners.serving.openai_requests import Lengths
from serving_gym.runners.serving.placement import SETTLED_AFTER_S, Placement
from serving_gym.runners.serving.rollout_routers import SlimeMiddleware, VerlLoadBalancer
from tests.paths import ROOT

ROLLOUTS = runpy.run_path(str(ROOT / "examples/serve/rollout_routers/run.py"))
STACK = runpy.run_path(str(ROOT / "examples/serve/production_stack/run.py"))
trainers, stack = sys.modules["trainers"], sys.modules["stack"]
GROUPS = "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 3}]"


class Clock:
    now_s = 5.0

    def __call__(self):
        return self.now_s


@pytest.mark.parametrize("name", ROLLOUTS["TRAINERS"])
def test_every_turn_of_a_trainers_rollouts_is_served(name):
    came = asyncio.run(ROLLOUTS["replay"](name, workload=ROLLOUTS["batches"](48)))
    assert came["complete"] == came["turns"] >= 48
    assert sum(came["served"]) == came["turns"]
    assert min(came["served"]) > 0
    assert "overrides" not in came
    if name == "prime_rl":  # asked once a group, and always where its group is
        assert came["stayed_on_its_server"] == 1.0
        assert came["decisions"] < came["turns"] / 2
        return
    assert came["decisions"] == came["turns"]
    assert came["in_flight_at_the_end"] == 0
    if name != "verl_without_prompts":  # prompts are told, so the policy goes by what was sent where
        assert came["stayed_on_its_server"] > 0.5


def test_a_policy_that_is_told_the_prompts_keeps_more_turns_where_they_were():
    workload = ROLLOUTS["batches"](48)
    stayed = [
        asyncio.run(ROLLOUTS["replay"](name, workload=workload))["stayed_on_its_server"]
        for name in ("verl", "verl_without_prompts")
    ]
    assert stayed[0] > stayed[1]


def test_verls_protocol():
    balancer = VerlLoadBalancer(
        {"a": "handle a", "b": "handle b"}, {"words": ["policy=least_request", GROUPS]}
    )
    taken = [balancer.acquire_server(f"r{number}", [1, 2, 3]) for number in range(4)]
    assert sorted(taken) == [("a", "handle a"), ("a", "handle a"), ("b", "handle b"), ("b", "handle b")]
    balancer.release_server(taken[3][0], prompt_len=3, request_id="r3")
    assert balancer.get_inflight_count(taken[3][0]) == 1
    balancer.release_server("a")  # the oldest there
    balancer.release_server("unknown")
    assert balancer.get_status()["total_inflight"] == 2
    balancer.add_servers({"c": "handle c"})
    assert balancer.acquire_server("r4", [1])[0] == "c"
    balancer.remove_servers(["a", "b"])
    assert balancer.get_all_servers() == ["c"]
    assert {balancer.acquire_server("r5")[0] for _ in range(3)} == {"c"}
    for name in ("a", "b", "b"):
        balancer.release_server(name)  # what was there ends as it would
    with pytest.raises(ValueError, match="4 endpoints, but the policy's fleet has 3 places"):
        balancer.add_servers({"d": 1, "e": 1, "f": 1})
    assert balancer.get_all_servers() == ["c"]


@pytest.mark.parametrize(
    ("servers", "config", "reason"),
    [
        ({}, {"words": ["policy=jsq"]}, "servers is empty"),
        ({"a": 1}, None, r"router_config\.words is missing"),
    ],
)
def test_verls_wrong_configurations(servers, config, reason):
    with pytest.raises(ValueError, match=reason):
        VerlLoadBalancer(servers, config)


def test_slimes_other_requests_and_dead_workers():
    servers = {"a": ROLLOUTS["SimulatedServer"](0), "b": ROLLOUTS["SimulatedServer"](1)}
    ours = type("Ours", (SlimeMiddleware,), {"words": ("policy=round_robin", GROUPS)})
    router = trainers.SlimeRouter(servers, ours)
    router.dead_workers = {"a"}
    for _ in range(3):
        assert set(asyncio.run(router.generate([1, 2], 5))) == {1}
    passed = []

    async def answer(scope, receive, send):
        passed.append(router._use_url())

    asyncio.run(ours(answer, trainers.SlimeRouter(servers))({"type": "http", "path": "/health"}, None, None))
    assert passed == ["a"]  # slime's own rule


def test_a_policy_that_holds_or_fails_is_replaced_and_counted():
    placement = Placement(["policy=round_robin", GROUPS])
    placement.host.policy.act = lambda observation, state: None
    placement.place("ab", Lengths(10, 10))
    placement.host.policy.act = lambda observation, state: 1 / 0
    placement.place("ab", Lengths(10, 10))
    placement.place("ab", Lengths(10**8, 10))
    assert dict(placement.counts) == {"decisions": 3, "overrides": 3, "held": 1, "error": 1, "no room": 1}
    with pytest.raises(ValueError, match="no server that the request may go to"):
        placement.place("ab", Lengths(10, 10), allowed=[])


def test_the_counts_of_the_other_router_end_the_oldest():
    clock = Clock()
    placement = Placement(["policy=round_robin", GROUPS], clock)
    for _ in range(4):
        placement.place("a", Lengths(10, 10))
    placement.reconcile("a", 1)
    assert placement.view.requests_at(0) == 4  # sent just now: the other router may not have counted them
    clock.now_s += 2 * SETTLED_AFTER_S
    placement.place("a", Lengths(10, 10))
    placement.reconcile("a", in_flight=3, in_prefill=2)
    assert placement.view.requests_at(0) == 3
    assert placement.view.pending_tokens_at(0) == 20
    placement.drop(["b"])
    assert placement.view.requests_at(0) == 0


def test_the_production_stack_sends_by_lengths_and_its_own_counts():
    came = asyncio.run(STACK["burst"]())
    assert sum(came["sent"].values()) == came["decisions"] == 60
    assert set(came["sent"]) == set(STACK["ENGINES"])
    assert max(came["prompt_tokens"].values()) < 2 * min(came["prompt_tokens"].values())


def test_the_production_stacks_gauges_and_models():
    stack.SingletonABCMeta._instances.clear()
    router = STACK["Router"]("x-user-id")
    assert STACK["Router"]("x-user-id") is router
    front = stack.Stack(router, STACK["ENGINES"])
    busy = front.engine_stats[STACK["ENGINES"][0]]
    busy.num_running_requests, busy.num_queuing_requests, busy.gpu_cache_usage_perc = 30, 12, 0.9
    states = []
    ask = router.placement.host.ask
    router.placement.host.ask = lambda state, chosen=None: states.append(state) or ask(state, chosen)
    only = asyncio.run(front.route({"prompt": "x"}, model="engine-2:8000"))
    assert only == STACK["ENGINES"][2]
    (state,) = states
    assert state.can_take.tolist() == [False, False, True]
    assert state.engines["num_waiting"].tolist() == [12, 0, 0]
    assert state.engines["kv_used_blocks"][0] == round(0.9 * state.engines["kv_capacity_blocks"][0])
