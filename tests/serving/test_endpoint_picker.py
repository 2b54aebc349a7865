"""The endpoint picker by Envoy's own messages (xds-protos), as a proxy sends them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.routing.state import Defer, Dispatch, Reject
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import make_env
from tests.live.fake_server import Behaviour, FakeServer
from tests.serving.standin import StandIn

grpc = pytest.importorskip("grpc", reason="gRPC is not installed: pip install 'serving-gym[serve]'")
xds = pytest.importorskip(
    "envoy.service.ext_proc.v3.external_processor_pb2", reason="xds-protos is not installed"
)
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode  # noqa: E402
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub  # noqa: E402
from google.protobuf.json_format import MessageToDict  # noqa: E402

from serving_gym.runners.serving.endpoint_picker import OBJECTIVE, EndpointPicker  # noqa: E402
from serving_gym.runners.serving.openai_requests import Lengths  # noqa: E402
from serving_gym.runners.serving.proto import health_pb2  # noqa: E402

FLEET = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2),))
DESTINATION = "x-gateway-destination-endpoint"
DUPLEX, BUFFERED = ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.BUFFERED
BODY = {"model": "m", "prompt": list(range(300)), "max_tokens": 20, "stream": True}


@pytest.fixture(scope="module")
def env():
    return make_env("routing", cluster=FLEET, admission=True, retry_s=0.02, queue_capacity=2)


@pytest.fixture
def servers():
    with FakeServer() as one, FakeServer() as other:
        yield one, other


@asynccontextmanager
async def picking(env, servers, policy, **settings):
    settings = {"scrape_interval_s": 0.05} | settings
    service = StandIn(env, tuple(server.url for server in servers), policy, **settings)
    picker = EndpointPicker(service, "127.0.0.1", 0)
    address = await picker.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield service, picker, channel
    finally:
        await picker.stop()


def names(servers):
    return [server.url.removeprefix("http://") for server in servers]


def header(message, **values):
    for key, value in values.items():
        message.headers.headers.add(key=key.replace("__", ":").replace("_", "-"), raw_value=value.encode())


class Proxy:
    """The messages of one HTTP exchange."""

    def __init__(self, channel, mode=DUPLEX, subset=None, path="/v1/completions", **headers):
        self.call = ExternalProcessorStub(channel).Process()
        first = xds.ProcessingRequest()
        first.protocol_config.request_body_mode = first.protocol_config.response_body_mode = mode
        if subset is not None:
            hint = first.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hint.update({"x-gateway-destination-endpoint-subset": subset})
        header(first.request_headers, __method="POST", __path=path, **headers)
        self.first = first

    async def send(self, body, chunks=1):
        """Headers and body; returns the answers until there is none to wait for."""
        await self.call.write(self.first)
        answers = [] if self.first.protocol_config.request_body_mode == DUPLEX else [await self.call.read()]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        size = -(-len(data) // chunks)
        for first in range(0, len(data), size):
            piece = xds.ProcessingRequest()
            piece.request_body.body = data[first : first + size]
            piece.request_body.end_of_stream = first + size >= len(data)
            await self.call.write(piece)
        answers.append(await self.call.read())
        while answers[-1].WhichOneof("response") == "request_headers" or (
            answers[-1].WhichOneof("response") == "request_body"
            and answers[-1].request_body.response.body_mutation.HasField("streamed_response")
            and not answers[-1].request_body.response.body_mutation.streamed_response.end_of_stream
        ):
            answers.append(await self.call.read())
        return answers

    async def answer(self, *chunks, status="200", kind="text/event-stream", served=""):
        """The server's answer; returns the picker's answers."""
        message = xds.ProcessingRequest()
        if served:
            message.metadata_context.filter_metadata["envoy.lb"].update(
                {"x-gateway-destination-endpoint-served": served}
            )
        header(message.response_headers, __status=status, content_type=kind)
        messages = [message]
        for number, chunk in enumerate(chunks):
            messages.append(xds.ProcessingRequest())
            messages[-1].response_body.body = chunk
            messages[-1].response_body.end_of_stream = number == len(chunks) - 1
        answers = []
        for message in messages:
            await self.call.write(message)
            answers.append(await self.call.read())
        return answers


def picked(answers):
    """The endpoint that the answers name, which must be the same in header and metadata."""
    (named,) = [
        answer
        for answer in answers
        if "dynamic_metadata" in MessageToDict(answer, preserving_proto_field_name=True)
    ]
    inner = getattr(named, named.WhichOneof("response")).response
    assert inner.clear_route_cache
    values = {
        option.header.key: option.header.raw_value.decode() for option in inner.header_mutation.set_headers
    }
    assert MessageToDict(named.dynamic_metadata) == {"envoy.lb": {DESTINATION: values[DESTINATION]}}
    return values[DESTINATION]


def body_of(answers):
    return b"".join(
        answer.request_body.response.body_mutation.streamed_response.body
        for answer in answers
        if answer.WhichOneof("response") == "request_body"
    )


def event(tokens, **more):
    return (
        b"data: "
        + json.dumps({"choices": [{}], "usage": {"completion_tokens": tokens}} | more).encode()
        + b"\n\n"
    )


def test_a_streamed_exchange_from_headers_to_the_last_token(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: 1) as (service, picker, channel):
            proxy = Proxy(channel, content_length="9999")
            answers = await proxy.send(BODY, chunks=5)
            assert picked(answers) == names(servers)[1]
            assert json.loads(body_of(answers)) == BODY
            state = service.states[0]
            assert (state.request.input_tokens, state.request.max_output_tokens) == (300, 20)
            assert len(state.request.hash_ids) == 4
            assert picker.view.requests_at(1) == 1
            replies = await proxy.answer(event(1), event(5), event(20), b"data: [DONE]\n\n")
            assert replies[0].WhichOneof("response") == "response_headers"
            streamed = [reply.response_body.response.body_mutation.streamed_response for reply in replies[1:]]
            assert b"".join(part.body for part in streamed).endswith(b"[DONE]\n\n")
            assert [part.end_of_stream for part in streamed] == [False, False, False, True]
            await proxy.call.done_writing()
            assert (picker.view.requests_at(1), len(picker.view)) == (0, 0)
            assert service.counts["answers finished"] == service.counts["picks " + names(servers)[1]] == 1

    asyncio.run(exchange())


def test_a_long_body_comes_back_in_chunks_that_envoy_takes(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: 0) as (service, _, channel):
            body = BODY | {"prompt": "x" * 200_000}
            answers = await Proxy(channel).send(body, chunks=4)
            assert len(answers) == 5
            assert service.counts["routing_overrides no room"] == 1  # its server will say that it is too long
            assert max(answer.ByteSize() for answer in answers) < 2**16
            assert json.loads(body_of(answers)) == body

    asyncio.run(exchange())


def test_a_buffered_exchange(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: 0) as (_, picker, channel):
            proxy = Proxy(channel, BUFFERED)
            answers = await proxy.send(BODY | {"stream": False})
            assert [answer.WhichOneof("response") for answer in answers] == [
                "request_headers",
                "request_body",
            ]
            assert picked(answers) == names(servers)[0]
            whole = json.dumps({"usage": {"completion_tokens": 7}}).encode()
            await proxy.answer(whole, kind="application/json")
            await proxy.call.done_writing()
            picker.view.arrive("next", Lengths(10, 500))
            state = picker.view.state("next")
            assert state.totals[:, 7].sum() == 0  # no first token was told, so no latency is claimed
            assert state.request.predicted_tokens == 7

    asyncio.run(exchange())


def test_the_policy_is_kept_to_the_subset(env, servers):
    async def exchange():
        one, other = names(servers)

        def choose(state):
            assert state.can_take.tolist() == [False, True]
            return 1

        async with picking(env, servers, choose) as (service, _, channel):
            assert picked(await Proxy(channel, subset=[other]).send(BODY)) == other
            assert not service.counts["routing_overrides error"]
            for subset in ([], ["10.1.1.1:8000"]):
                (refused,) = await Proxy(channel, subset=subset).send(BODY)
                assert refused.immediate_response.status.code == 503
            get = Proxy(channel, subset=[one], path="/v1/models")
            get.first.request_headers.end_of_stream = True
            await get.call.write(get.first)
            assert picked([await get.call.read()]) == one

    asyncio.run(exchange())


def test_no_endpoint_ready_is_503_and_health_says_so(env):
    async def exchange():
        with (
            FakeServer(Behaviour(metrics_status=500)) as one,
            FakeServer(Behaviour(metrics_status=500)) as other,
        ):
            async with picking(env, (one, other), lambda state: 0) as (service, _, channel):
                (refused,) = await Proxy(channel).send(BODY)
                assert refused.immediate_response.status.code == 503
                assert json.loads(refused.immediate_response.body)["error"]["code"] == 503
                assert service.states == []
                assert await health(channel, "") == "SERVING"
                ready = "envoy.service.ext_proc.v3.ExternalProcessor"
                assert await health(channel, ready) == await health(channel, "readiness") == "NOT_SERVING"
                one.behaviour.metrics_status = 200
                for _ in range(100):
                    if await health(channel, ready) == "SERVING":
                        break
                    await asyncio.sleep(0.05)
                assert picked(await Proxy(channel).send(BODY)) == names((one, other))[0]
                with pytest.raises(grpc.aio.AioRpcError, match="there is no service 'other'"):
                    await health(channel, "other")

    asyncio.run(exchange())


async def health(channel, service):
    call = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await call(health_pb2.HealthCheckRequest(service=service))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def test_a_refusal_of_the_policy_is_429(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: Reject()) as (service, picker, channel):
            (refused,) = await Proxy(channel).send(BODY)
            assert refused.immediate_response.status.code == 429
            assert len(picker.view) == 0
            assert service.counts["refusals 429"] == 1

    asyncio.run(exchange())


def test_held_and_deferred_requests_wait_for_a_retry_the_deferred_ones_last(env, servers):
    async def exchange():
        asked = []

        def choose(state):
            asked.append((state.request.index, state.request.held_before, state.request.deferred))
            if not state.request.held_before:
                return Defer() if state.request.index == 0 else None
            return 0

        async with picking(env, servers, choose) as (service, picker, _):
            for name in (0, 1):
                picker.view.arrive(name, Lengths(10, 10))
            choices = await asyncio.wait_for(asyncio.gather(*map(picker.desk.choose, (0, 1))), 20)
            assert [choice.place for choice in choices] == [0, 0]
            assert asked == [(0, False, False), (1, False, False), (1, True, False), (0, True, True)]
            assert service.counts["held_requests"] == 2

    asyncio.run(exchange())


def test_a_held_request_goes_through_the_proxy_too(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: 1 if state.request.held_before else None) as made:
            assert picked(await Proxy(made[2]).send(BODY)) == names(servers)[1]

    asyncio.run(exchange())


def test_what_is_held_too_long_goes_to_the_lighter_of_two_and_a_full_queue_refuses(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: None) as (service, picker, channel):
            picker.desk.hold_within_s = 0.4
            sent = [asyncio.create_task(Proxy(channel).send(BODY)) for _ in range(3)]
            answers = await asyncio.wait_for(asyncio.gather(*sent), 20)
            kinds = sorted(one[0].WhichOneof("response") for one in answers)
            assert kinds == ["immediate_response", "request_headers", "request_headers"]
            assert service.counts["routing_overrides held"] == 2
            assert service.counts["refusals 429"] == 1

    asyncio.run(exchange())


@pytest.mark.parametrize(("policy", "mode"), [(lambda state: 1 / 0, "live"), (lambda state: 1, "shadow")])
def test_a_policy_that_fails_or_only_watches_is_replaced_and_counted(env, servers, policy, mode):
    async def exchange():
        async with picking(env, servers, policy) as (service, _, channel):
            service.mode = mode
            chosen = [picked(await Proxy(channel).send(BODY)) for _ in range(8)]
            assert set(chosen) <= set(names(servers))
            assert service.counts[f"routing_overrides {'error' if mode == 'live' else 'mode'}"] == 8

    asyncio.run(exchange())


def test_clients_that_hang_up_and_answers_that_fail_leave_nothing_behind(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: 0) as (service, picker, channel):
            gone = Proxy(channel)
            await gone.send(BODY)
            gone.call.cancel()
            failed = Proxy(channel)
            await failed.send(BODY)
            await failed.answer(b'{"error": "no"}', status="500", kind="application/json")
            broken = Proxy(channel)
            await broken.send(BODY)
            await broken.answer(event(3) + b'data: {"error": {"message": "cuda"}}\n\n')
            await broken.call.done_writing()
            for _ in range(100):
                if not len(picker.view):
                    break
                await asyncio.sleep(0.02)
            assert len(picker.view) == 0
            assert service.counts["answers failed"] == 3

    asyncio.run(exchange())


def test_an_answer_of_another_endpoint_than_the_picked_one_counts_there(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: 0) as (_, picker, channel):
            proxy = Proxy(channel)
            await proxy.send(BODY)
            await proxy.answer(event(2), b"", served=names(servers)[1])
            retried = Proxy(channel)
            await retried.send(BODY)
            message = xds.ProcessingRequest()
            message.metadata_context.filter_metadata["envoy.lb"].update(
                {"x-gateway-destination-endpoint-served": names(servers)[1]}
            )
            header(message.response_headers, __status="200")
            await retried.call.write(message)
            await retried.call.read()
            assert [picker.view.requests_at(place) for place in (0, 1)] == [0, 1]

    asyncio.run(exchange())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be an object"),
        (b'{"model": "m"}', "no prompt"),
        (b"\xff", "not JSON"),
    ],
)
def test_bodies_that_are_no_requests_are_400(env, servers, body, reason):
    async def exchange():
        async with picking(env, servers, lambda state: 0) as (_, picker, channel):
            (refused,) = await Proxy(channel).send(body)
            assert refused.immediate_response.status.code == 400
            assert reason in refused.immediate_response.details
            assert len(picker.view) == 0

    asyncio.run(exchange())


def test_an_endpoint_that_answers_503_gets_nothing_before_its_next_good_reading(env, servers):
    def first(state):
        return int(state.can_take.argmax())

    async def exchange():
        slow = {"scrape_interval_s": 5.0, "stale_after_s": 10.0}
        async with picking(env, servers, first, **slow) as (_, picker, channel):
            proxy = Proxy(channel)
            assert picked(await proxy.send(BODY)) == names(servers)[0]
            await proxy.answer(b"", status="503")
            assert picked(await Proxy(channel).send(BODY)) == names(servers)[1]
            assert picker.is_ready()

    asyncio.run(exchange())


def test_a_token_is_asked_for_where_there_is_one(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: 0) as (service, _, channel):
            service.config.token = "a token of sixteen"
            unknown = Proxy(channel)
            await unknown.call.write(unknown.first)
            with pytest.raises(grpc.aio.AioRpcError, match="the bearer token is missing or wrong"):
                await unknown.call.read()
            knowing = Proxy(channel)
            knowing.call = ExternalProcessorStub(channel).Process(
                metadata=(("authorization", "Bearer a token of sixteen"),)
            )
            assert picked(await knowing.send(BODY)) == names(servers)[0]

    asyncio.run(exchange())


def test_nobody_waits_on_where_the_retries_fail(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: None) as (_, picker, _):
            picker.view.arrive(1, Lengths(10, 10))
            waiting = asyncio.create_task(picker.desk.choose(1))
            await asyncio.sleep(0.01)
            picker.view.state = None  # what no policy can break
            assert (await asyncio.wait_for(waiting, 10)).status == 503

    asyncio.run(exchange())


def test_bodies_that_are_too_long_or_too_deep_are_refused(env, servers, monkeypatch):
    async def exchange():
        async with picking(env, servers, lambda state: 0) as (_, picker, channel):
            deep = b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}"
            (refused,) = await Proxy(channel).send(deep)
            assert refused.immediate_response.status.code == 400
            assert "nested too deeply" in refused.immediate_response.details
            monkeypatch.setattr("serving_gym.runners.serving.endpoint_picker.MOST_BODY_BYTES", 1000)
            (refused,) = await Proxy(channel).send(BODY)
            assert refused.immediate_response.status.code == 413
            assert len(picker.view) == 0

    asyncio.run(exchange())


def test_without_a_body_the_length_stands_for_the_prompt(env, servers):
    async def exchange():
        async with picking(env, servers, lambda state: 1) as (service, _, channel):
            proxy = Proxy(channel, ProcessingMode.NONE, content_length="4000")
            await proxy.call.write(proxy.first)
            assert picked([await proxy.call.read()]) == names(servers)[1]
            assert service.states[0].request.input_tokens == 1000

    asyncio.run(exchange())


def test_a_new_priority_is_written_into_the_body_of_servers_that_go_by_it(servers):
    by_priority = make_env("routing", cluster=FleetConfig(groups=FLEET.groups, order="priority"))

    async def exchange():
        async with picking(by_priority, servers, lambda state: Dispatch(0, -7)) as (_, _, channel):
            answers = await Proxy(channel).send(BODY)
            body = body_of(answers)
            assert json.loads(body) == BODY | {"priority": -7}
            lengths = [
                o.header.raw_value for o in answers[0].request_headers.response.header_mutation.set_headers
            ]
            assert str(len(body)).encode() in lengths

    asyncio.run(exchange())


def test_the_objective_names_the_class(servers):
    env = make_env("routing", cluster=FLEET, workload=WorkloadSpec(name="flying_bursty", priority_share=0.3))
    name = env.policy_spec.classes[-1]
    assert len(env.policy_spec.classes) > 1

    async def exchange():
        async with picking(env, servers, lambda state: 0) as (service, _, channel):
            await Proxy(channel, **{OBJECTIVE.replace("-", "_"): name}).send(BODY)
            assert service.states[0].request.class_id == len(env.policy_spec.classes) - 1

    asyncio.run(exchange())


def test_endpoints_must_be_as_many_as_places(env):
    with pytest.raises(ValueError, match=r"backend\.endpoints names 1 servers, but cluster has 2 places"):
        EndpointPicker(StandIn(env, ("http://127.0.0.1:1",), None), "127.0.0.1", 0)
    unknown = StandIn(env, ("http://127.0.0.1:1", "http://nowhere.invalid:1"), None, allow_remote=True)
    with pytest.raises(ValueError, match="has no address"):
        EndpointPicker(unknown, "127.0.0.1", 0)
