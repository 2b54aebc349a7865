"""Endpoints that stand for several servers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from serving_gym.envs.live.discovery import KubernetesAPI
from serving_gym.envs.live.expansion import _expanded, expand_endpoints
from tests.live.fake_kubernetes import FakeKubernetes, endpoint, slice_of

NAMES = {
    "pods": ["10.0.0.2", "10.0.0.1", "fd00::1"],
    "one": ["10.0.0.3"],
    "dual": ["10.0.0.4", "fd00::4"],
    "six": ["fd00::5", "fd00::6"],
}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        numbers = NAMES.get(host, [host] if host == "127.0.0.1" else [])
        if not numbers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in numbers]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("http://pods:8000/base", ("http://10.0.0.1:8000/base", "http://10.0.0.2:8000/base")),
        ("http://six:8000", ("http://[fd00::5]:8000", "http://[fd00::6]:8000")),
        ("http://one:8000", ("http://one:8000",)),
        ("http://dual:8000", ("http://dual:8000",)),
        ("https://pods:8000", ("https://pods:8000",)),
        ("http://127.0.0.1:8000", ("http://127.0.0.1:8000",)),
        ("http://localhost:8000", ("http://localhost:8000",)),
        ("no address", ("no address",)),  # refused later, with what an address is
    ],
)
def test_a_name_becomes_its_addresses(url: str, servers: tuple[str, ...]) -> None:
    assert expand_endpoints([url], allow_remote=True) == servers


@pytest.mark.parametrize(
    ("url", "remote", "said"),
    [
        ("http://nobody:8000", True, "backend.endpoints: http://nobody:8000: the name has no address"),
        ("http://pods:8000", False, "is beyond loopback"),
        ("http://me:pw@pods:8000", True, "an address on pods:8000 has a user name or password"),
        ("k8s://models/llama:8000", True, "this process is in no Kubernetes cluster"),
        ("http://pods", True, "is not an address; write http://HOST:PORT"),
    ],
)
def test_servers_that_are_not_known(url: str, remote: bool, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        expand_endpoints([url], remote)


def of_service(account: Path, slices: list[dict[str, object]], **mishaps: object) -> tuple[str, ...]:
    async def run() -> tuple[str, ...]:
        async with FakeKubernetes(account, {"models": slices}, **mishaps) as server:  # type: ignore[arg-type]
            api = KubernetesAPI(server.url, account)
            return await _expanded(["k8s://models/llama:8000", "http://one:1"], True, api)

    return asyncio.run(run())


def test_a_service_becomes_its_pods_that_are_ready(tmp_path: Path) -> None:
    ready = [endpoint("10.0.0.2", ready=True), endpoint("10.0.0.1", ready=True)]
    pods = [*ready, endpoint("10.0.0.3", ready=False)]
    found = of_service(tmp_path, [slice_of("llama", pods)])
    assert found == ("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://one:1")
    with pytest.raises(ValueError, match="k8s://models/llama:8000 has no server that is ready"):
        of_service(tmp_path, [slice_of("llama", pods[2:])])
    with pytest.raises(ValueError, match=r"backend.endpoints: .* answers 403"):
        of_service(tmp_path, [], status=403)
