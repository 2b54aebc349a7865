"""Servers behind an address: by DNS, and by Kubernetes' EndpointSlices of a fake API server."""

from __future__ import annotations

import asyncio
import socket

import pytest

from serving_gym.envs.live.discovery import (
    Discovery,
    DNSResolver,
    Found,
    KubernetesAPI,
    KubernetesResolver,
    resolver_of,
)
from tests.live.fake_kubernetes import FakeKubernetes, endpoint, slice_of

SERVICE = "k8s://models/llama:8000"


def find(account, slices, url=SERVICE, **mishaps):
    """What is found of a service, and the discovery."""

    async def run():
        async with FakeKubernetes(account, {"models": slices}, **mishaps) as server:
            api = KubernetesAPI(server.url, account)
            discovery = Discovery(url, resolver_of(url, True, api))
            return await discovery.refresh(), discovery, server

    return asyncio.run(run())


def test_the_pods_of_a_service_with_their_readiness(tmp_path):
    slices = [
        slice_of("llama", [endpoint("10.0.0.2", "b", ready=True), endpoint("10.0.0.1", "a", ready=None)]),
        slice_of("llama", [endpoint("10.0.0.3", "c", ready=False, serving=False, terminating=False)]),
        slice_of("llama", [endpoint("10.0.0.4", "d", ready=False, serving=True, terminating=True)]),
        slice_of("llama", [endpoint("10.0.0.5", "e", ready=False, serving=False, terminating=True)]),
        slice_of("other", [endpoint("10.0.0.9", ready=True)]),
    ]
    found, discovery, server = find(tmp_path, slices)
    assert found == (
        Found("http://10.0.0.1:8000", True, False, "a"),
        Found("http://10.0.0.2:8000", True, False, "b"),
        Found("http://10.0.0.3:8000", False, False, "c"),  # not ready yet
        Found("http://10.0.0.4:8000", False, True, "d"),  # serves what it has
    )
    assert discovery.problem == ""
    assert server.tokens == ["Bearer secret"]


def test_ports_by_name_and_addresses_of_ipv6(tmp_path):
    slices = [slice_of("llama", [endpoint("fd00::1", ready=True)], 9000, "metrics", "IPv6")]
    found, _, _ = find(tmp_path, slices, "k8s://models/llama:metrics")
    assert [server.url for server in found] == ["http://[fd00::1]:9000"]


def test_a_port_that_pods_do_not_have_is_said_with_those_they_have(tmp_path):
    found, discovery, _ = find(tmp_path, [slice_of("llama", [endpoint("10.0.0.1")], 9000)])
    assert found == ()
    assert (
        discovery.problem
        == "k8s://models/llama:8000: pods of the service have no port 8000, only 9000 (http)"
    )


@pytest.mark.parametrize(
    ("mishap", "said"),
    [
        ({"status": 403, "body": b'{"kind": "Status", "message": "forbidden"}'}, "answers 403: forbidden"),
        ({"status": 502, "body": b"\xff"}, "answers 502"),
        ({"body": b"no json"}, "answers no JSON object"),
        ({"body": b"[" * 100_000}, "answers no JSON object"),
        ({"body": b'{"items": [{"endpoints": [{}], "ports": [{"port": 8000}]}]}'}, "malformed"),
        (
            {"body": b'{"items": [{"endpoints": [{"addresses": []}], "ports": [{"port": 8000}]}]}'},
            "malformed",
        ),
        ({"body": b'{"items": 3}'}, "malformed"),
    ],
)
def test_faults_of_the_api_server_are_counted_and_said(tmp_path, mishap, said):
    found, discovery, _ = find(tmp_path, [], **mishap)
    assert found == ()
    assert said in discovery.problem
    assert discovery.failures == 1


def test_what_was_found_last_stands_and_is_said_once(tmp_path, caplog):
    async def run():
        async with FakeKubernetes(
            tmp_path, {"models": [slice_of("llama", [endpoint("10.0.0.1")])]}
        ) as server:
            discovery = Discovery(SERVICE, KubernetesResolver(SERVICE, KubernetesAPI(server.url, tmp_path)))
            first = await discovery.refresh()
            server.status, server.body = 500, b""
            after = [await discovery.refresh() for _ in range(3)]
        gone = await discovery.refresh()
        return discovery, first, [*after, gone]

    discovery, first, after = asyncio.run(run())
    assert len(first) == 1
    assert all(found == first for found in after)
    assert discovery.failures == 4
    assert len(caplog.messages) == 1


def test_a_token_is_read_again_for_each_request(tmp_path):
    async def run():
        async with FakeKubernetes(
            tmp_path, {"models": [slice_of("llama", [endpoint("10.0.0.1")])]}
        ) as server:
            discovery = Discovery(SERVICE, KubernetesResolver(SERVICE, KubernetesAPI(server.url, tmp_path)))
            (tmp_path / "token").write_text("stale")
            refused = await discovery.refresh()
            said = discovery.problem
            (tmp_path / "token").write_text("secret")
            return refused, said, await discovery.refresh()

    refused, said, found = asyncio.run(run())
    assert refused == ()
    assert "401: Unauthorized" in said
    assert len(found) == 1


def test_every_address_of_a_name(monkeypatch):
    def looked_up(host, port, *_):
        assert (host, port) == ("localhost", 8000)
        return [
            (socket.AF_INET, 1, 6, "", (number, port)) for number in ("127.0.0.3", "127.0.0.2", "127.0.0.3")
        ] + [(socket.AF_INET6, 1, 6, "", ("::1", port, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    found = asyncio.run(DNSResolver("https://localhost:8000/base/").resolve())
    assert [server.url for server in found] == [
        "https://127.0.0.2:8000/base",
        "https://127.0.0.3:8000/base",
        "https://[::1]:8000/base",
    ]
    assert {server.host for server in found} == {"localhost"}


def test_a_name_without_an_address_is_a_problem_and_no_crash(monkeypatch):
    def fails(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    discovery = Discovery("http://localhost:1", resolver_of("http://localhost:1"))
    assert asyncio.run(discovery.refresh()) == ()
    assert discovery.problem == "http://localhost:1: the name has no address (Name or service not known)"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "write http://HOST:PORT or k8s://NAMESPACE/SERVICE:PORT"),
        ("http://localhost", "is not an address"),
        ("http://localhost:x", "is not an address"),
        ("k8s://models/llama", "write k8s://NAMESPACE/SERVICE:PORT"),
        ("http://10.0.0.1:8000", "is beyond loopback"),
    ],
)
def test_addresses_that_are_none(url, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        resolver_of(url, url.startswith("k8s"), KubernetesAPI("http://127.0.0.1:1", tmp_path))


def test_outside_a_cluster_k8s_addresses_are_refused(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match="in no Kubernetes cluster"):
        resolver_of(SERVICE, allow_remote=True)
    with pytest.raises(ValueError, match="beyond loopback"):
        resolver_of(SERVICE)
