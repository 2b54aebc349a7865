"""Dynamo's selection service, as the clients of its documentation and of its endpoint picker call it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.runners.serving import dynamo_router
from serving_gym.runners.serving.dynamo_router import DynamoRouter
from tests.defaults import make_env
from tests.serving.standin import StandIn

FLEET = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2),), prefix_caching=True)


@pytest.fixture(scope="module")
def env():
    return make_env("routing", cluster=FLEET, retry_s=0.02)


class Client:
    def __init__(self, session):
        self.session = session

    async def __call__(self, method, path, body=None, status=200):
        async with self.session.request(method, path, json=body) as response:
            assert response.status == status, await response.text()
            return await response.json()


@asynccontextmanager
async def serving(env, policy):
    service = StandIn(env, (), policy)
    listener = DynamoRouter(service, "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(await listener.start()) as session:
            yield Client(session), listener, service
    finally:
        await listener.stop()


def worker(number, **more):
    return {
        "worker_id": number,
        "endpoint": f"http://10.0.0.{number}:8000",
        "block_size": 16,
        "model_name": "m",
    } | more


PROMPT = {"model_name": "m", "token_ids": list(range(64))}


def test_the_calls_of_dynamos_own_client(env):
    """As `client_calls_select_and_lifecycle_endpoints` of its tests."""

    async def call():
        async with serving(env, lambda state: 1) as (client, listener, service):
            assert (await client("GET", "/health"))["status"] == "ok"
            assert not (await client("GET", "/ready", status=503))["ready"]
            await client("POST", "/workers", worker(7), 201)
            await client("POST", "/workers", worker(42, data_parallel_start_rank=3), 201)
            assert (await client("GET", "/ready"))["schedulable_workers"] == 2
            records = await client("GET", "/workers")
            assert [(one["worker_id"], one["lifecycle"]) for one in records] == [
                (7, "schedulable"),
                (42, "schedulable"),
            ]
            asked = PROMPT | {
                "selection_id": "req-1",
                "expected_output_tokens": 32,
                "priority_jump": 5.0,
                "strict_priority": 9,
                "allowed_worker_ids": [42],
            }
            got = await client("POST", "/select_and_reserve", asked)
            assert (got["worker_id"], got["dp_rank"], got["endpoint"]) == (42, 3, "http://10.0.0.42:8000")
            assert (got["isl_tokens"], got["effective_prefill_tokens"], got["block_size"]) == (64, 64, 16)
            assert got["overlap"] == {"longest_matched": 0, "gpu": 0, "dp": {"3": 0}, "cpu": 0, "disk": 0}
            assert len(got["sequence_hashes"]) == 4
            request = service.states[0].request
            assert (request.predicted_tokens, request.priority) == (32, -9)
            assert service.states[0].can_take.tolist() == [False, True]
            assert listener.view.requests_at(1) == 1
            await client("POST", "/reservations/req-1/prefill_complete")
            await client("POST", "/reservations/req-1/output_block", {"decay_fraction": 0.5})
            (loads,) = await client("GET", "/loads?model_name=m")
            blocks = {one["worker_id"]: one["potential_decode_blocks"] for one in loads["loads"]}
            assert blocks == {7: 0, 42: 6}  # 64 tokens, one at the end of the prefill, and a block of 16
            await client("DELETE", "/reservations/req-1")
            assert len(listener.view) == 0
            await client("DELETE", "/reservations/req-1", status=404)

    asyncio.run(call())


def test_select_then_reserve(env):
    async def call():
        async with serving(env, lambda state: 0) as (client, listener, _):
            await client("POST", "/workers", worker(1), 201)
            got = await client("POST", "/select", PROMPT | {"selection_id": "a"})
            assert "isl_tokens" not in got
            assert len(listener.view) == 0  # nothing is booked
            await client("POST", "/reservations", {"selection_id": "a", "model_name": "other"}, 404)
            booked = await client("POST", "/reservations", {"selection_id": "a", "model_name": "m"}, 201)
            assert (booked["worker_id"], listener.view.requests_at(0)) == (1, 1)
            await client("POST", "/reservations", {"selection_id": "a", "model_name": "m"}, 409)
            explicit = {
                "selection_id": "b",
                "worker_id": 1,
                "dp_rank": 0,
                "isl_tokens": 512,
                "sequence_hashes": [-5, 2],
            }
            await client("POST", "/reservations", explicit, 201)
            assert listener.view.pending_tokens_at(0) == 64 + 512
            await client("POST", "/reservations", explicit | {"selection_id": "c", "worker_id": 9}, 404)
            again = await client("POST", "/select", PROMPT | {"advisory": True})
            assert again["overlap"]["gpu"] == 64  # it was selected there before
            assert again["effective_prefill_tokens"] == 0
            assert again["worker_load"]["total_kv_blocks"] > 1000
            assert "selection_id" not in again

    asyncio.run(call())


def test_workers_come_and_go(env):
    async def call():
        async with serving(env, lambda state: int(state.can_take.argmax())) as (client, _, _):
            await client("POST", "/workers", {"worker_id": 1, "model_name": "m"}, 201)
            assert (await client("GET", "/workers"))[0]["lifecycle"] == "incomplete"
            await client("POST", "/select", PROMPT, 503)
            await client("PATCH", "/workers/1", {"endpoint": "http://a:1", "block_size": 16})
            assert (await client("POST", "/select", PROMPT))["endpoint"] == "http://a:1"
            refused = await client("POST", "/workers", worker(2, data_parallel_size=2), 400)
            assert "3 endpoints, but the policy's fleet has 2 places" in refused["error"]
            assert len(await client("GET", "/workers")) == 1
            await client("POST", "/workers", worker(3, routing_group="other"), 201)
            assert (await client("POST", "/select", PROMPT | {"routing_group": "other"}))["worker_id"] == 3
            pinned = PROMPT | {"pinned_worker": {"worker_id": 3, "dp_rank": 0}}
            await client("POST", "/select", pinned, 503)  # it is of another group
            await client("DELETE", "/workers/1")
            await client("POST", "/select", PROMPT, 503)
            await client("DELETE", "/workers/1", status=404)

    asyncio.run(call())


def test_an_advisory_selection_does_not_wait(env):
    async def call():
        async with serving(env, lambda state: None) as (client, _, service):
            await client("POST", "/workers", worker(1), 201)
            assert (await client("POST", "/select", PROMPT | {"advisory": True}))["worker_id"] == 1
            assert service.counts["routing_overrides held"] == 1

    asyncio.run(call())


def test_bookings_that_nobody_ends_expire(env, monkeypatch):
    async def call():
        async with serving(env, lambda state: 0) as (client, listener, service):
            await client("POST", "/workers", worker(1), 201)
            await client("POST", "/select_and_reserve", PROMPT | {"selection_id": "a"})
            monkeypatch.setattr(dynamo_router, "EXPIRY_S", 0.0)
            await client("GET", "/loads")
            assert (len(listener.view), service.counts["reservations_expired"]) == (0, 1)

    asyncio.run(call())


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/workers", {"endpoint": "http://a"}, "worker_id must be a whole number"),
        ("/workers", worker(1, block_size=32), "block_size must be 16, as cluster has it, got 32"),
        ("/select", [], "must be an object"),
        ("/select", {"model_name": "m"}, "isl_tokens must be a whole number"),
        ("/select", {"token_ids": []}, "token_ids is empty"),
        ("/select", {"token_ids": "1 2"}, "must be a list of whole numbers"),
        ("/select_and_reserve", {"token_ids": [1], "selection_id": 3}, "selection_id must be text"),
        ("/reservations", {}, "selection_id is missing"),
    ],
)
def test_bad_requests_are_400_with_a_sentence(env, path, body, reason):
    async def call():
        async with serving(env, lambda state: 0) as (client, listener, _):
            assert reason in (await client("POST", path, body, 400))["error"]
            assert len(listener.view) == 0

    asyncio.run(call())
