"""A policy over gRPC: whole states, sessions, garbage and tokens."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import msgpack
import numpy as np
import pytest

from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.grpc_policy import SERVICE, GRPCPolicy
from serving_gym.runners.serving.proto import policy_pb2 as pb
from serving_gym.runners.serving.service import PolicyService
from serving_gym.runners.serving.wire import state_form
from tests.baselines.routers.states import state_to_json
from tests.defaults import make_env
from tests.live.test_hosting import FLEET, GROUPS

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def state():
    env = make_env("routing", cluster=FLEET)
    env.reset(seed=0)
    return state_to_json(env.state)


@asynccontextmanager
async def called(tmp_path, *words):
    """The methods of a policy that is served in this process."""
    config = composed("serve", ServeConfig, ["env=routing", GROUPS, "policy=jsq", "isolate=false", *words])
    service = PolicyService.of(replace(config, out=str(tmp_path)))
    listener = GRPCPolicy(service, "127.0.0.1", 0)
    await service.start()
    try:
        async with grpc.aio.insecure_channel(await listener.start()) as channel:
            yield {
                "Decide": channel.unary_unary(
                    f"/{SERVICE}/Decide", pb.DecideRequest.SerializeToString, pb.DecideReply.FromString
                ),
                "Session": channel.stream_stream(
                    f"/{SERVICE}/Session", pb.SessionRequest.SerializeToString, pb.DecideReply.FromString
                ),
                "Status": channel.unary_unary(
                    f"/{SERVICE}/Status", pb.StatusRequest.SerializeToString, pb.StatusReply.FromString
                ),
            }
    finally:
        await listener.stop()
        await service.stop()
        service.close()


def in_json(value):
    return pb.Value(json=json.dumps(value).encode())


def test_whole_states_and_sessions(state, tmp_path):
    table = state_form("routing").fields["in_flight"]
    rows = np.zeros(60, IN_FLIGHT_DTYPE)
    rows["index"], rows["place"], rows["first_token_s"] = np.arange(60), np.arange(60) % 2, -1.0
    whole = {**state, "in_flight": rows.astype(table.packed).tobytes()}

    async def talk():
        async with called(tmp_path) as methods:
            first = await methods["Decide"](pb.DecideRequest(state=in_json(state), chosen=in_json(0)))
            session = methods["Session"]()
            await session.write(pb.SessionRequest(state=pb.Value(msgpack=msgpack.packb(whole))))
            replies = [await session.read()]
            busy = {"in_flight": {"set": [{"index": 60 + i, "place": 2} for i in range(90)]}}
            await session.write(pb.SessionRequest(changes=in_json(busy), no_decision=True))
            await session.write(pb.SessionRequest(changes=in_json({"now_s": state["now_s"] + 1})))
            replies.append(await session.read())
            await session.done_writing()
            status = json.loads((await methods["Status"](pb.StatusRequest())).status)
            return first, replies, status

    first, (idle, busy), status = asyncio.run(talk())
    assert json.loads(first.action)["kind"] == first.kind == "dispatch"
    assert first.applies
    assert (idle.place, busy.place != 2) == (2, True)
    assert not busy.HasField("priority")
    assert (status["decisions"], status["compared"]) == (3, 1)


def test_garbage_ends_a_call_with_one_sentence(state, tmp_path):
    async def talk():
        said = []
        async with called(tmp_path) as methods:
            for value in (None, pb.Value(json=b"["), pb.Value(msgpack=b"\xc1"), in_json({"now_s": 1})):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await methods["Decide"](pb.DecideRequest(state=value))
                said.append(error.value)
            session = methods["Session"]()
            await session.write(pb.SessionRequest(changes=in_json({})))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await session.read()
            said.append(error.value)
            await methods["Decide"](pb.DecideRequest(state=in_json(state)))
        return said

    said = asyncio.run(talk())
    assert {error.code() for error in said} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert next(error.details() for error in said) == "state is missing"
    assert "first message of a session" in said[-1].details()
    assert all(error.details() and "\n" not in error.details() for error in said)


def test_a_token_is_asked_for(state, tmp_path):
    (tmp_path / "token").write_text(TOKEN)

    async def talk():
        async with called(tmp_path, f"token_file={tmp_path}/token") as methods:
            request = pb.DecideRequest(state=in_json(state))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await methods["Decide"](request)
            return error.value.code(), await methods["Decide"](
                request, metadata=(("authorization", f"Bearer {TOKEN}"),)
            )

    code, reply = asyncio.run(talk())
    assert code == grpc.StatusCode.UNAUTHENTICATED
    assert reply.by == "policy"
