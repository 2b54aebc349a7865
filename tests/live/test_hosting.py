"""A policy behind HTTP: right, late, silly and broken ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace

import aiohttp
import pytest

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.routing.state import Dispatch
from serving_gym.runners import serve
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.host import PolicyHost
from serving_gym.runners.serving.served import served_environment
from serving_gym.runners.serving.server import HttpListener
from serving_gym.runners.serving.service import PolicyService
from tests.baselines.routers.states import state_to_json
from tests.defaults import make_env

FLEET = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 3),))


GROUPS = "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 3}]"


class Fixed:
    """Does what it is told to."""

    name = "fixed"

    def __init__(self, action):
        self.action = action

    def reset(self, spec, seed):
        pass

    def act(self, observation, state):
        if isinstance(self.action, Exception):
            raise self.action
        return self.action


@pytest.fixture(scope="module")
def env():
    made = make_env("routing", cluster=FLEET)
    made.reset(seed=0)
    return made


def host_of(env, policy, **words):
    return PolicyHost(policy, served_environment("routing", env), **words)


def service_of(*words):
    return PolicyService.of(composed("serve", ServeConfig, ["env=routing", GROUPS, *words]))


def test_answers_and_what_they_are_for(env):
    answer = host_of(env, Fixed(2)).ask(env.state)
    assert (answer.place, answer.priority, answer.applies, answer.error) == (2, None, True, "")
    answer = host_of(env, Fixed(Dispatch(1, 0))).ask(env.state)
    assert (answer.place, answer.priority) == (1, 0)
    for held in (None, 3):
        assert host_of(env, Fixed(held)).ask(env.state).place is None
    shadow = host_of(env, Fixed(2), mode="shadow")
    assert not shadow.ask(env.state, chosen=2).applies
    shadow.ask(env.state, chosen=0)
    shadow.ask(env.state)
    status = shadow.status()
    assert (status["decisions"], status["compared"], status["agreed"], status["applied"]) == (3, 2, 1, 0)


def test_a_canary_is_followed_for_its_share_of_requests_and_always_the_same(env):
    canary, request = host_of(env, Fixed(0), mode="canary", share=0.25), env.state.request
    states = [replace(env.state, request=replace(request, index=index)) for index in range(2000)]
    applied = [canary.ask(state).applies for state in states]
    assert applied == [canary.ask(state).applies for state in states]
    assert 0.2 < sum(applied) / 2000 < 0.3


@pytest.mark.parametrize("action", [7, -1, ValueError("out of its depth"), "left", Dispatch(9)])
def test_whatever_a_policy_does_an_answer_comes(env, action):
    host = host_of(env, Fixed(action))
    answer = host.ask(env.state)
    assert answer.place is None
    assert not answer.applies
    assert answer.error
    assert host.status()["errors"] == 1


def test_over_http(env):
    async def talk():
        server = HttpListener(service_of("policy=jsq"), "127.0.0.1", 0)
        url = await server.start()
        try:
            async with aiohttp.ClientSession() as client:

                async def post(path, body):
                    async with client.post(url + path, data=body) as response:
                        return response.status, await response.json()

                state = state_to_json(env.state)
                decided = await post("/decide", json.dumps({"state": state, "chosen": 0}))
                wrong = [
                    await post("/decide", body)
                    for body in (
                        "[]",
                        "{",
                        "{}",
                        json.dumps({"state": {**state, "request": None}}),
                        '{"state": 1}',
                    )
                ]
                wrong.append(await post("/reset", '{"seed": -1}'))
                before = await (await client.get(url + "/status")).json()
                return decided, wrong, before, await post("/reset", '{"seed": 3}')
        finally:
            await server.stop()

    assert asyncio.run(talk())
    (status, answer), wrong, before, (_, after) = asyncio.run(talk())
    assert status == 200
    assert answer["place"] in (0, 1, 2)
    assert answer["applies"]
    assert all(code == 400 and said["error"] for code, said in wrong)
    assert (before["decisions"], before["errors"], before["us_p50"] > 0) == (1, 0, True)
    assert after["decisions"] == 0


def test_the_command_serves_until_it_is_told_to_stop(env, tmp_path):
    words = ["policy=jsq", GROUPS, "port=0", "mode=shadow", f"out={tmp_path}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "runners.serve", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {},
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    body = json.dumps({"state": state_to_json(env.state), "chosen": 1}).encode()
    with urllib.request.urlopen(urllib.request.Request(url + "/decide", data=body)) as response:
        assert not json.load(response)["applies"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["policy"], status["mode"], status["compared"]) == ("jsq", "shadow", 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["policy=flying_serving", "env=dp_tp", "cluster=gpt_oss_120b_h200"], "http cannot serve env=dp_tp"),
        (["protocols=[htp]"], "unknown protocol 'htp'; did you mean 'http'?"),
        (["protocols=[http,http]"], "must not name one twice"),
        (["ports.htp=1"], "unknown key 'ports.htp'"),
        (["ports.http=-1"], "ports.http must lie in [0, 65535], got -1"),
        (["mode=dark"], "unknown mode 'dark'"),
        (["address=0.0.0.0"], "is not a loopback address"),
        (["port=70000"], "port must lie in"),
        (["share=2", "mode=canary"], "share must lie in"),
    ],
)
def test_what_cannot_be_served(words, message, tmp_path, capsys):
    assert serve.main([*words, f"out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
