"""The endpoint picker over the real service: admission, deadlines, and endpoints that end."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.listeners import listeners_of
from serving_gym.runners.serving.service import PolicyService
from tests.live.fake_server import FakeServer

pytest.importorskip("grpc", reason="gRPC is not installed: pip install 'serving-gym[serve]'")
pytest.importorskip("envoy.service.ext_proc.v3.external_processor_pb2", reason="xds-protos is not installed")
import grpc

from tests.serving.test_endpoint_picker import BODY, Proxy, names, picked

POLICY = '''
import time
from serving_gym.envs.routing.state import Defer, Reject

class Mine:
    """Refuses prompts above 1,000 tokens, defers those above 500, and sleeps over those of 7."""

    name = "mine"
    clairvoyant = False
    environments = ("routing",)

    def reset(self, spec, seed):
        pass

    def act(self, observation, state):
        request = state.request
        if request.input_tokens == 7:
            time.sleep(1.5)
        if request.input_tokens > 1000:
            return Reject()
        if request.input_tokens > 500 and not request.deferred:
            return Defer()
        return 1 if state.can_take[1] else 0
'''


@asynccontextmanager
async def serving(tmp_path, servers, *words):
    (tmp_path / "mine.py").write_text(POLICY)
    endpoints = ",".join(server.url for server in servers)
    config = composed(
        "serve",
        ServeConfig,
        [
            "env=routing",
            "env.admission=true",
            f"policy={tmp_path}/mine.py:Mine",
            "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 2}]",
            "backend=vllm",
            f"backend.endpoints=[{endpoints}]",
            "backend.scrape_interval_s=0.05",
            "protocols=[endpoint_picker]",
            "port=0",
            *words,
        ],
    )
    service = PolicyService.of(replace(config, out=str(tmp_path / "out")))
    listener = listeners_of(service)["endpoint_picker"]
    await service.start()
    try:
        async with grpc.aio.insecure_channel(await listener.start()) as channel:
            yield service, listener, channel
    finally:
        await listener.stop()
        await service.stop()
        service.close()


@pytest.fixture
def servers():
    with FakeServer() as one, FakeServer() as other:
        yield one, other


def test_admission_and_the_log(tmp_path, servers):
    async def exchange():
        async with serving(tmp_path, servers, "isolate=false") as (service, _, channel):
            assert picked(await Proxy(channel).send(BODY)) == names(servers)[1]
            (refused,) = await Proxy(channel).send(BODY | {"prompt": [1] * 1200})
            assert refused.immediate_response.status.code == 429
            assert picked(await Proxy(channel).send(BODY | {"prompt": [1] * 600})) == names(servers)[1]
            status = service.status()
            assert (status["decisions"], status["errors"], status["overrides"]) == (4, 0, 0)

    asyncio.run(exchange())
    lines = [json.loads(line) for line in (tmp_path / "out/decisions.jsonl").read_text().splitlines()]
    assert [line["action"]["kind"] for line in lines if isinstance(line["action"], dict)][1:3] == [
        "reject",
        "defer",
    ]


def test_a_late_policy_is_replaced_within_the_deadline(tmp_path, servers):
    async def exchange():
        async with serving(tmp_path, servers, "deadline_ms=200") as (service, _, channel):
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            answers = await Proxy(channel).send(BODY | {"prompt": [1] * 7})
            assert picked(answers) in names(servers)
            assert loop.time() - begun_s < 1.4  # the policy takes 1.5 s
            assert service.status()["overrides"] == 1

    asyncio.run(exchange())


def test_an_endpoint_that_ends_gets_nothing_more_and_none_left_is_503(tmp_path):
    async def exchange():
        with FakeServer() as one, FakeServer() as other:
            async with serving(tmp_path, (one, other), "isolate=false") as (_, picker, channel):
                assert picked(await Proxy(channel).send(BODY)) == names((one, other))[1]
                other.__exit__(None, None, None)
                for _ in range(200):
                    picker.is_ready()
                    if picker.view.ready() == [0]:
                        break
                    await asyncio.sleep(0.05)
                assert picked(await Proxy(channel).send(BODY)) == names((one, other))[0]
                other.__enter__()  # on another port: the one that is known stays gone
                one.behaviour.metrics_status = 500
                for _ in range(200):
                    if not picker.is_ready():
                        break
                    await asyncio.sleep(0.05)
                (refused,) = await Proxy(channel).send(BODY)
                assert refused.immediate_response.status.code == 503

    asyncio.run(exchange())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["backend=simulator", "backend.endpoints=[]"],
            "backend.endpoints names 0 servers, but cluster has 2 places",
        ),
        (["backend=vllm", "backend.endpoints=[http://10.0.0.1:80,http://10.0.0.2:80]"], "beyond loopback"),
        (["backend=vllm", "backend.launch=true"], "backend.launch=true is not available here"),
    ],
)
def test_wrong_endpoints_are_told_in_a_sentence(words, reason):
    groups = "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 2}]"
    config = composed("serve", ServeConfig, ["env=routing", "protocols=[endpoint_picker]", groups, *words])
    service = PolicyService.of(config)
    with pytest.raises(ValueError, match=reason):
        listeners_of(service)
