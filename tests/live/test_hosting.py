"""A policy behind HTTP: right, late, silly and broken ones, and callers of all kinds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import jsonschema
import msgpack
import numpy as np
import pytest

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE
from serving_gym.envs.routing.state import Dispatch
from serving_gym.runners import serve
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.host import PolicyHost
from serving_gym.runners.serving.served import served_environment
from serving_gym.runners.serving.server import HttpListener
from serving_gym.runners.serving.service import PolicyService
from serving_gym.runners.serving.wire import schema_of, state_form
from tests.baselines.routers.states import state_to_json
from tests.defaults import make_env
from tests.live.served_policies import Fixed

FLEET = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 3),))
GROUPS = "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 3}]"
TROUBLED = "tests.live.served_policies:Troubled"


@pytest.fixture(scope="module")
def env():
    made = make_env("routing", cluster=FLEET)
    made.reset(seed=0)
    return made


@pytest.fixture(scope="module")
def state(env):
    return state_to_json(env.state)


def host_of(env, policy, **words):
    return PolicyHost(policy, served_environment("routing", env), **words)


@asynccontextmanager
async def served(tmp_path, *words):
    """A client of a routing policy that is served in this process, and its service."""
    config = composed("serve", ServeConfig, ["env=routing", GROUPS, "isolate=false", *words])
    async with served_by(replace(config, out=str(tmp_path))) as both:
        yield both


@asynccontextmanager
async def served_by(config):
    """A client of what a configuration serves, and its service."""
    service = PolicyService.of(config)
    listener = HttpListener(service, "127.0.0.1", 0)
    await service.start()
    try:
        async with aiohttp.ClientSession(await listener.start()) as client:
            yield client, service
    finally:
        await listener.stop()
        await service.stop()
        service.close()


async def post(client, path, body, **words):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.post(path, data=data, **words) as response:
        return response.status, await response.json()


def logged(tmp_path):
    return [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]


# -- the host ----------------------------------------------------------------------------------------------------------


def test_answers_and_what_they_are_for(env):
    answer = host_of(env, Fixed(2)).ask(env.state)
    assert (answer.place, answer.priority, answer.applies, answer.error) == (2, None, True, "")
    assert answer.action == {"kind": "dispatch", "place": 2, "priority": None, "commands": []}
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


@pytest.mark.parametrize("action", [7, -1, ValueError("out of its depth"), "left", Dispatch(9), 1.5, [1]])
def test_whatever_a_policy_does_an_answer_comes(env, action):
    host = host_of(env, Fixed(action))
    answer = host.ask(env.state)
    assert answer.place is None
    assert not answer.applies
    assert answer.error
    assert host.status()["errors"] == 1


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def test_over_http(env, state, tmp_path):
    async def talk():
        async with served(tmp_path, "policy=jsq") as (client, _):
            decided = await post(client, "/v1/decide", {"state": state, "chosen": 0})
            old = await post(client, "/decide", {"state": state})
            batch = await post(client, "/v1/decide/batch", {"decisions": [{"state": state}] * 3})
            packed = msgpack.packb({"state": state})
            async with client.post(
                "/v1/decide", data=packed, headers={"Content-Type": "application/msgpack"}
            ) as response:
                in_msgpack = msgpack.unpackb(await response.read())
            pages = {}
            for path in ("/v1/status", "/health", "/version", "/v1/schema"):
                async with client.get(path) as response:
                    pages[path] = await response.json()
            async with client.get("/metrics") as response:
                metrics = await response.text()
            after = await post(client, "/v1/reset", {"seed": 3})
            return decided, old, batch, in_msgpack, pages, metrics, after

    (status, answer), (_, old), (_, batch), in_msgpack, pages, metrics, (_, after) = asyncio.run(talk())
    assert status == 200
    assert answer["place"] in (0, 1, 2)
    assert answer["applies"]
    assert answer["by"] == "policy"
    assert {old["place"], in_msgpack["place"], *(each["place"] for each in batch["answers"])} == {0, 1, 2} & {
        answer["place"]
    }
    assert pages["/v1/status"]["decisions"] == 6
    assert pages["/v1/status"]["policy"] == "jsq"
    assert pages["/health"] == {"status": "ok"}
    assert pages["/version"]["protocol"] == "v1"
    assert pages["/v1/schema"]["x-sizes"]["places"] == 3
    assert "serving_gym_decisions_total 6.0" in metrics
    assert "serving_gym_decision_seconds_count 6.0" in metrics
    assert after["decisions"] == 0
    lines = logged(tmp_path)
    assert len(lines) == 6
    assert lines[0]["v"] == 1
    assert (lines[0]["chosen"], lines[0]["applied"]) == (0, True)
    assert lines[0]["taken"] == lines[0]["action"] == answer["action"]
    assert lines[0]["fallback"]["kind"] == "dispatch"


GARBAGE = {
    "empty": b"",
    "no object": b"[]",
    "no JSON": b"{",
    "no state": b"{}",
    "state a number": b'{"state": 1}',
    "bytes that are no UTF-8": b'{"state": "\xff\xfe"}',
    "deep": b'{"state": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a key twice": b'{"state": 1, "state": 2}',
    "unknown key": b'{"state": 1, "stat": 2}',
    "NaN": b'{"state": {"now_s": NaN}}',
    "infinite": b'{"state": {"now_s": 1e999}}',
    "a huge number": b'{"state": {"now_s": ' + b"9" * 5000 + b"}}",
    "a long key": b'{"state": {"' + b"k" * 200_000 + b'": 1}}',
}


def wrong_states(state):
    """States that are wrong in one thing."""
    request, (engine, *others) = state["request"], state["engines"]
    return {
        "no request": {**state, "request": None},
        "status 99": {**state, "engines": [{**engine, "status": 99}, *others]},
        "a negative queue": {**state, "engines": [{**engine, "num_waiting": -3}, *others]},
        "a huge int": {**state, "engines": [{**engine, "num_waiting": 10**30}, *others]},
        "beyond int32": {**state, "engines": [{**engine, "num_waiting": 2**40}, *others]},
        "half a request": {**state, "engines": [{**engine, "num_waiting": 0.5}, *others]},
        "true": {**state, "engines": [{**engine, "num_waiting": True}, *others]},
        "a text": {**state, "engines": [{**engine, "num_waiting": "3"}, *others]},
        "null": {**state, "engines": [{**engine, "num_waiting": None}, *others]},
        "too few engines": {**state, "engines": others},
        "no base64": {**state, "in_flight": "?"},
        "half a row": {**state, "in_flight": "AAAA"},
        "columns of two lengths": {**state, "in_flight": {"index": [1], "place": [1, 2]}},
        "no such place": {**state, "in_flight": [{"index": 1, "place": 3}]},
        "no such class": {**state, "request": {**request, "class_id": 4}},
        "clock": {**state, "now_s": -1},
        "region": {**state, "request": {**request, "region": "r" * 5000}},
        "a list of lists": {**state, "can_take": [[True], [True], [True]]},
        "totals": {**state, "totals": [[1.0]]},
        "too many rows": {**state, "in_flight": {"index": list(range(30_000))}},
    }


def test_garbage_gets_400_and_one_sentence(state, tmp_path):
    async def talk():
        async with served(tmp_path, "policy=jsq") as (client, _):
            said = {name: await post(client, "/v1/decide", body) for name, body in GARBAGE.items()}
            for name, wrong in wrong_states(state).items():
                said[name] = await post(client, "/v1/decide", {"state": wrong})
            for name, body in GARBAGE.items():
                said[f"packed {name}"] = await post(
                    client, "/v1/decide", body, headers={"Content-Type": "application/msgpack"}
                )
            for path in ("/v1/reset", "/v1/policy", "/v1/session", "/v1/decide/batch"):
                said[path] = await post(client, path, {"seed": -1})
            good, answer = await post(client, "/v1/decide", {"state": state})
            return said, good, answer

    said, good, answer = asyncio.run(talk())
    for name, (status, body) in said.items():
        assert status == 400, (name, status, body)
        assert body["error"], name
        assert "\n" not in body["error"], name
        assert len(body["error"]) <= 500, name
    assert said["status 99"][1]["error"].startswith(
        "state.engines.status must be one of 0 (inactive), 1 (active)"
    )
    assert said["a negative queue"][1]["error"] == "state.engines.num_waiting must be at least 0, got -3"
    assert said["a key twice"][1]["error"] == "the body has the key 'state' twice in one object"
    assert (good, answer["by"]) == (200, "policy")


def test_long_bodies_unknown_paths_and_methods(tmp_path):
    async def talk():
        async with served(tmp_path, "policy=jsq", "max_body_kb=64") as (client, service):
            long = await post(client, "/v1/decide", b'{"state": "' + b"x" * 100_000 + b'"}')
            async with client.get("/nowhere") as response:
                unknown = response.status, await response.json()
            async with client.get("/v1/decide") as response:
                method = response.status
            return long, unknown, method, service.status()

    long, unknown, method, _ = asyncio.run(talk())
    assert long == (413, {"error": "the body is longer than 65536 bytes"})
    assert unknown[0] == 404
    assert method == 405


def test_half_sent_requests_do_not_stay(state, tmp_path):
    async def talk():
        async with served(tmp_path, "policy=jsq", "read_s=0.3", "max_connections=60") as (client, _service):
            address = (client._base_url.host, client._base_url.port)
            head = b"POST /v1/decide HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
            open_ones = [await asyncio.open_connection(*address) for _ in range(80)]
            for number, (_, writer) in enumerate(open_ones):
                writer.write(head if number % 2 else b"POST /v1/dec")
            async with asyncio.timeout(20):
                ends = await asyncio.gather(*(ended(reader) for reader, _ in open_ones))
            answered = await post(client, "/v1/decide", {"state": state})
            async with client.get("/metrics") as response:
                return ends, answered, await response.text()

    async def ended(reader):
        try:
            return await reader.read()
        except ConnectionError:
            return b""

    ends, (status, _), metrics = asyncio.run(talk())
    assert len(ends) == 80
    assert any(b"the body did not come within 0.3 s" in end for end in ends)
    assert 'serving_gym_connections_closed_total{reason="too_many"}' in metrics
    assert 'serving_gym_connections_closed_total{reason="no_request"}' in metrics
    assert status == 200


def test_a_token_is_asked_for(state, tmp_path):
    (tmp_path / "token").write_text("correct-horse-battery\n")

    async def talk():
        async with served(tmp_path, "policy=jsq", f"token_file={tmp_path}/token") as (client, _):
            body = {"state": state}
            without = await post(client, "/v1/decide", body)
            wrong = await post(client, "/v1/decide", body, headers={"Authorization": "Bearer x"})
            right = await post(
                client, "/v1/decide", body, headers={"Authorization": "Bearer correct-horse-battery"}
            )
            async with client.get("/health") as health, client.get("/metrics") as metrics:
                return without[0], wrong[0], right[0], health.status, metrics.status

    assert asyncio.run(talk()) == (401, 401, 200, 200, 401)


EVERY = {
    "autoscaling": ["policy=hpa_kv", "cluster=fleet_autoscaled"],
    "dp_tp": ["policy=zoo/dp_tp", "cluster=gpt_oss_120b_h200"],
    "deployment": ["policy=vllm_reload", "cluster=machines_h100_x8", "env.profiling=closed_form"],
    "sharing": ["policy=zoo/sharing", "cluster=nodes_gpu4"],
}


@pytest.mark.parametrize("name", list(EVERY))
def test_every_environment_is_served(name, tmp_path):
    words = ["env=" + name, *EVERY[name], "workload.num_requests=300"]
    config = composed("serve", ServeConfig, [*words, "isolate=false"])
    schema = jsonschema.Draft202012Validator({**schema_of(name), "$ref": "#/$defs/answer"})

    async def talk():
        async with served_by(replace(config, out=str(tmp_path))) as (client, service):
            host = service.host.served
            state = host.wire.write_state(host.first_state())
            answers = [await post(client, "/v1/decide", {"state": state}) for _ in range(2)]
            told = {"state": state, "chosen": answers[0][1]["action"]}
            return [*answers, await post(client, "/v1/decide", told)]

    for status, answer in asyncio.run(talk()):
        assert (status, answer["by"], answer["error"]) == (200, "policy", "")
        schema.validate(answer)
    assert [line["env"] for line in logged(tmp_path)] == [name] * 3


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_ends_in_the_state_that_a_whole_one_would(env, state, tmp_path):
    """Rows come, change and go; what is asked at the end is what the whole state would be."""
    rng = np.random.default_rng(0)
    flights = {i: {"index": i, "place": int(rng.integers(3)), "input_tokens": 10 * i + 1} for i in range(50)}

    async def talk():
        async with served(tmp_path, "policy=jsq") as (client, _service):
            whole = {**state, "in_flight": list(flights.values())}
            _, opened = await post(client, "/v1/session", {"state": whole})
            name, n = opened["session"], opened["n"]
            for step in range(20):
                gone = [int(i) for i in rng.choice(list(flights), 3, replace=False)]
                for i in gone:
                    del flights[i]
                new = {100 + step: {"index": 100 + step, "place": step % 3, "input_tokens": 7}}
                longer = {int(i): step for i in rng.choice(list(flights), 5, replace=False)}
                flights.update(new)
                for i, tokens in longer.items():
                    flights[i]["generated_tokens"] = tokens
                changes = {
                    "now_s": state["now_s"] + step,
                    "in_flight": {"set": {"index": list(longer), "generated_tokens": list(longer.values())}},
                    "engines": {"rows": [step % 3], "set": [{"num_waiting": step}]},
                }
                body = {"session": name, "since": n, "changes": changes, "decide": False}
                _, said = await post(client, "/v1/decide", body)
                more = {"in_flight": {"set": list(new.values()), "remove": gone}}
                _, said = await post(
                    client, "/v1/decide", {"session": name, "since": said["n"], "changes": more, "chosen": 1}
                )
                n = said["n"]
            stale = await post(client, "/v1/decide", {"session": name, "since": n - 1, "changes": {}})
            wrong = await post(
                client,
                "/v1/decide",
                {"session": name, "since": n, "changes": {"in_flight": {"remove": [7777]}}},
            )
            closed = await post(client, "/v1/decide", {"session": name, "since": n, "changes": {}})
            return said, stale, wrong, closed

    said, stale, wrong, closed = asyncio.run(talk())
    assert said["by"] == "policy"
    assert (stale[0], wrong[0], closed[0]) == (409, 400, 409)
    assert "no row with index 7777" in wrong[1]["error"]
    last = served_environment("routing", env).wire.read_state(logged(tmp_path)[-1]["state"])
    rows = np.sort(last.in_flight, order="index")
    assert rows["index"].tolist() == sorted(flights)
    for row in rows:
        own = flights[int(row["index"])]
        expected = [own[name] for name in ("place", "input_tokens")] + [own.get("generated_tokens", 0)]
        assert [row["place"], row["input_tokens"], row["generated_tokens"]] == expected
        assert row["first_token_s"] == -1.0
    assert last.now_s == state["now_s"] + 19
    assert last.engines["num_waiting"].tolist()[:2] == [18, 19]


def test_rows_travel_as_bytes(env, state):
    table = state_form("routing").fields["in_flight"]
    wire = served_environment("routing", env).wire
    rows = np.zeros(40, IN_FLIGHT_DTYPE)
    rows["index"], rows["place"], rows["first_token_s"] = np.arange(40), np.arange(40) % 3, -1.0
    for value in (table.write(rows), rows.astype(table.packed).tobytes(), table.write(rows[:5])):
        read = wire.read_state({**state, "in_flight": value}).in_flight
        assert (read == rows[: len(read)]).all()
    assert table.packed.itemsize < IN_FLIGHT_DTYPE.itemsize + 1


# -- deadlines, in a process of its own --------------------------------------------------------------------------------


def test_late_failing_hanging_and_dying_policies_are_overridden(state, tmp_path):
    def asked(index):
        return {"state": {**state, "request": {**state["request"], "index": index}}}

    async def talk():
        words = (f"+policy={{name: '{TROUBLED}'}}", "isolate=true", "deadline_ms=200", "hang_s=1")
        async with served(tmp_path, *words) as (client, service):
            said = {"good": await post(client, "/v1/decide", asked(1))}
            for name, index in (("late", 101), ("failing", 102), ("hanging", 103)):
                said[name] = await post(client, "/v1/decide", asked(index))
                await asyncio.sleep(0.6 * (name == "late"))  # until the policy is free again
            said["meanwhile"] = await post(client, "/v1/decide", asked(2))
            await recovered(client)
            said["again"] = await post(client, "/v1/decide", asked(3))
            said["dying"] = await post(client, "/v1/decide", asked(104))
            async with client.get("/health") as response:
                health = response.status
            await recovered(client)
            said["at last"] = await post(client, "/v1/decide", asked(4))
            return said, health, service.status()

    async def recovered(client):
        async with asyncio.timeout(120):
            while True:
                async with client.get("/v1/status") as response:
                    status = await response.json()
                if status["ready"] and status["restarts"] >= 1:
                    return
                await asyncio.sleep(0.2)

    said, health, status = asyncio.run(talk())
    by = {name: answer["by"] for name, (_, answer) in said.items()}
    overridden = {"late", "failing", "hanging", "meanwhile", "dying"}
    assert {name for name, who in by.items() if who == "fallback"} == overridden
    assert all(said[name][1]["place"] is not None for name in overridden)
    assert said["late"][1]["error"] == "no decision within 200 ms"
    assert "out of its depth" in said["failing"][1]["error"]
    assert health == 503
    assert status["restarts"] == 2
    assert status["overrides"] == 5


def test_a_policy_is_changed_while_it_serves(state, tmp_path):
    async def talk():
        async with served(tmp_path, "policy=jsq") as (client, _service):
            said = [
                await post(client, "/v1/policy", {"policy": name}) for name in ("round_robin", "jqs", None)
            ]
            said.append(await post(client, "/v1/policy", {"policy": "os:system"}))
            said.append(await post(client, "/v1/policy", {"policy": "flying_serving"}))
            return said, await post(client, "/v1/decide", {"state": state})

    (changed, unknown, anew, code, other), (_, answer) = asyncio.run(talk())
    assert (changed[0], changed[1]["policy"]) == (200, "round_robin")
    assert unknown[0] == 400
    assert "did you mean 'jsq'" in unknown[1]["error"]
    assert anew[1]["policy"] == "round_robin"
    assert (code[0], other[0]) == (400, 400)
    assert "brings code of its own" in code[1]["error"]
    assert answer["by"] == "policy"
    assert logged(tmp_path)[-1]["policy"] == "round_robin"


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_serves_until_it_is_told_to_stop(state, tmp_path):
    words = ["policy=jsq", GROUPS, "port=0", "mode=shadow", f"out={tmp_path}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "runners.serve", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {},
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    body = json.dumps({"state": state, "chosen": 1}).encode()
    with urllib.request.urlopen(urllib.request.Request(url + "/v1/decide", data=body)) as response:
        assert not json.load(response)["applies"]
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "jsq was read anew\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["policy"], status["mode"], status["compared"]) == ("jsq", "shadow", 1)
    (line,) = logged(tmp_path)
    assert (line["applied"], line["taken"]) == (False, 1)
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 1):
        pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["protocols=[htp]"], "unknown protocol 'htp'; did you mean 'http'?"),
        (["protocols=[http,http]"], "must not name one twice"),
        (["ports.htp=1"], "unknown key 'ports.htp'"),
        (["ports.http=-1"], "ports.http must lie in [0, 65535], got -1"),
        (["mode=dark"], "unknown mode 'dark'"),
        (["address=0.0.0.0"], "is not a loopback address"),
        (["port=70000"], "port must lie in"),
        (["share=2", "mode=canary"], "share must lie in"),
        (["compare=2"], "compare must lie in"),
        (["deadline_ms=0"], "deadline_ms must be positive, got 0"),
        (["fallback=jqs"], "did you mean 'jsq'"),
        (["token_file=nowhere"], "token_file=nowhere cannot be read"),
        (
            ["env=deployment", "policy=clairvoyant_deployment", "cluster=machines_h100_x8"],
            "looks at the future",
        ),
        (["+policy={name: 'tests.live.served_policies:Failing'}"], "cannot be served: out of its depth"),
    ],
)
def test_what_cannot_be_served(words, message, tmp_path, capsys):
    assert serve.main(["isolate=false", *words, f"out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
