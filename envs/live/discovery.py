"""Finds the servers behind an address, again and again: by DNS, or by the EndpointSlices of a Kubernetes service.

    http://NAME:PORT                every address that NAME has (a headless service has one for each ready pod)
    k8s://NAMESPACE/SERVICE:PORT    the pods of a service; PORT is the number or the name of a port of its pods

In a cluster the second reads `discovery.k8s.io/v1` (Kubernetes 1.21 and later) by the API server's HTTP API, with the
service account's token and certificate authority. The account needs `list` on `endpointslices` of that group.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from serving_gym.envs.live.endpoints import is_loopback

_log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SCHEMES = ("http", "https", "k8s")
_WITHIN_S = 5.0  # for one answer
_SLICES = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}"
_K8S = re.compile(r"k8s://([a-z0-9-]+)/([a-z0-9.-]+):([A-Za-z0-9-]+)")


class DiscoveryError(ValueError):
    """The servers behind an address are not known."""


@dataclass(frozen=True, slots=True)
class Found:
    """A server behind an address.

    Attributes:
        url: `http://HOST:PORT` with the number of the host.
        ready: Whether it may be sent requests.
        draining: Whether it finishes its requests and then goes.
        name: Name of the pod, or the address that was asked for.
        host: Name to check a certificate against, and to send as Host.
    """

    url: str
    ready: bool = True
    draining: bool = False
    name: str = ""
    host: str = ""


class Resolver(Protocol):
    """Finds the servers behind an address."""

    async def resolve(self) -> tuple[Found, ...]:
        """The servers now, sorted by their address.

        Raises:
            DiscoveryError: They cannot be found out.
        """
        ...


class DNSResolver:
    """All addresses of a host name.

    Args:
        url: `http://NAME:PORT` or `https://NAME:PORT`.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        self._scheme, self._host, self._port, self._path = (
            parts.scheme,
            parts.hostname,
            parts.port,
            parts.path,
        )

    async def resolve(self) -> tuple[Found, ...]:
        """The addresses now.

        Raises:
            DiscoveryError: The name has none, or is not answered in time.
        """
        loop = asyncio.get_running_loop()
        looked_up = loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        try:
            entries = await asyncio.wait_for(looked_up, _WITHIN_S)
        except TimeoutError:
            raise DiscoveryError(f"{self.url}: the name is not answered within {_WITHIN_S:g} s") from None
        except OSError as error:
            raise DiscoveryError(f"{self.url}: the name has no address ({error.strerror or error})") from None
        numbers = sorted({str(entry[4][0]) for entry in entries})
        return tuple(self._found(number) for number in numbers)

    def _found(self, number: str) -> Found:
        url = f"{self._scheme}://{_bracketed(number)}:{self._port}{self._path}"
        return Found(url, name=self.url, host=str(self._host))


class KubernetesAPI:
    """Reads from the API server of the cluster that this process runs in.

    The token is read again for every request, since Kubernetes renews it.

    Args:
        server: `https://HOST:PORT`; None: from KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
        account: Folder with the service account's `token`, `ca.crt` and `namespace`.

    Raises:
        ValueError: The process is not in a cluster.
    """

    def __init__(self, server: str | None = None, account: Path = ACCOUNT) -> None:
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
        if server is None and not host:
            raise ValueError(
                "this process is in no Kubernetes cluster (KUBERNETES_SERVICE_HOST is not set); "
                "name the servers as http://HOST:PORT"
            )
        self.server = server or f"https://{_bracketed(str(host))}:{port or 443}"
        self.account = account

    async def get(self, path: str) -> dict[str, Any]:
        """An object of the API.

        Args:
            path: With its query.

        Raises:
            DiscoveryError: It is not answered in time, refused, or no JSON object.
        """
        import aiohttp

        try:
            within = aiohttp.ClientTimeout(total=_WITHIN_S)
            async with aiohttp.ClientSession(timeout=within) as session:
                asked = session.get(
                    self.server + path,
                    headers=self._headers(),
                    ssl=self._trust(),
                    allow_redirects=False,
                )
                async with asked as response:
                    return _object_of(await response.read(), response.status, self.server)
        except TimeoutError:
            raise DiscoveryError(f"{self.server} does not answer within {_WITHIN_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise DiscoveryError(f"{self.server} cannot be asked ({reason})") from None

    def _headers(self) -> dict[str, str]:
        token = self.account / "token"
        headers = {"Accept": "application/json"}
        if token.exists():
            headers["Authorization"] = f"Bearer {token.read_text().strip()}"
        return headers

    def _trust(self) -> ssl.SSLContext | bool:
        authority = self.account / "ca.crt"
        return ssl.create_default_context(cafile=str(authority)) if authority.exists() else True


class KubernetesResolver:
    """The pods of a service, by its EndpointSlices.

    Args:
        url: `k8s://NAMESPACE/SERVICE:PORT`.
        api: The API server.
        scheme: http or https, of the pods.
    """

    def __init__(self, url: str, api: KubernetesAPI, scheme: str = "http") -> None:
        matched = _K8S.fullmatch(url)
        if matched is None:
            raise ValueError(f"{url!r} is not an address; write k8s://NAMESPACE/SERVICE:PORT")
        self.url, self.api, self._scheme = url, api, scheme
        self._namespace, self._service, self._port = matched.groups()

    async def resolve(self) -> tuple[Found, ...]:
        """The pods now; those that are not ready yet and those that drain among them.

        Raises:
            DiscoveryError: The API server does not tell, or none of the service's ports is the one that is wanted.
        """
        selector = quote(f"kubernetes.io/service-name={self._service}")
        path = _SLICES.format(namespace=quote(self._namespace), selector=selector)
        listed = await self.api.get(path)
        found: dict[str, Found] = {}
        try:
            for entry in listed.get("items") or ():
                found.update(self._of_slice(entry))
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise DiscoveryError(f"{self.url}: an EndpointSlice is malformed ({error!r})") from None
        return tuple(found[url] for url in sorted(found))

    def _of_slice(self, entry: Mapping[str, Any]) -> dict[str, Found]:
        endpoints = entry.get("endpoints") or ()
        if not endpoints or entry.get("addressType") == "FQDN":
            return {}
        port = self._port_of(entry.get("ports") or ())
        found = {}
        for endpoint in endpoints:
            conditions = endpoint.get("conditions") or {}
            draining = bool(conditions.get("terminating"))
            ready = conditions.get("ready") is not False and not draining  # unknown is to be taken for ready
            if draining and conditions.get("serving") is False:
                continue
            url = f"{self._scheme}://{_bracketed(str(endpoint['addresses'][0]))}:{port}"
            name = (endpoint.get("targetRef") or {}).get("name", "")
            found[url] = Found(url, ready, draining, str(name))
        return found

    def _port_of(self, ports: Any) -> int:
        for port in ports:
            number = port.get("port")
            if isinstance(number, int) and self._port in (str(number), port.get("name")):
                return number
        known = ", ".join(f"{port.get('port')} ({port.get('name') or 'unnamed'})" for port in ports)
        raise DiscoveryError(
            f"{self.url}: pods of the service have no port {self._port}, only {known or 'none'}"
        )


class Discovery:
    """The servers behind an address, and why they are not known.

    What was found last stands while the servers cannot be found out.

    Args:
        url: The address.
        resolver: Finds them.

    Attributes:
        found: What was found last.
        at_s: Time of that, monotonic seconds; None: never.
        problem: Why it could not be found out the last time; empty if it could.
        failures: How often it could not.
    """

    def __init__(self, url: str, resolver: Resolver) -> None:
        self.url, self._resolver = url, resolver
        self.found: tuple[Found, ...] = ()
        self.at_s: float | None = None
        self.problem = ""
        self.failures = 0

    async def refresh(self) -> tuple[Found, ...]:
        """Finds them again and returns what is known now; takes some seconds at most, and raises nothing."""
        try:
            self.found, self.at_s = await self._resolver.resolve(), time.monotonic()
            self.problem = ""
        except DiscoveryError as error:
            self.failures += 1
            if not self.problem:
                _log.warning("%s; what was found last stands", error)
            self.problem = str(error)
        return self.found


def resolver_of(url: str, allow_remote: bool = False, api: KubernetesAPI | None = None) -> Resolver:
    """The resolver of an address.

    Args:
        url: `http://NAME:PORT`, `https://NAME:PORT` or `k8s://NAMESPACE/SERVICE:PORT`.
        allow_remote: Whether servers may be on other machines.
        api: The API server; None: that of the cluster this process is in.

    Raises:
        ValueError: It is no such address, or beyond loopback though that is not allowed.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"{url!r} is not an address; write http://HOST:PORT or k8s://NAMESPACE/SERVICE:PORT")
    if not allow_remote and (parts.scheme == "k8s" or not is_loopback(parts.hostname or "")):
        raise ValueError(
            f"{url!r} is beyond loopback; allowed are 127.0.0.1, ::1 and localhost, or any with allow_remote=true"
        )
    if parts.scheme == "k8s":
        return KubernetesResolver(url, api or KubernetesAPI())
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        raise ValueError(f"{url!r} is not an address; write http://HOST:PORT")
    return DNSResolver(url)


def _bracketed(host: str) -> str:
    """A host as it stands in an address: IPv6 in brackets."""
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


def _object_of(body: bytes, status: int, server: str) -> dict[str, Any]:
    """An answer of the API server.

    Raises:
        DiscoveryError: It is refused, or no JSON object.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if status != 200:
        message = found.get("message") if isinstance(found, dict) else None
        raise DiscoveryError(f"{server} answers {status}{f': {message}' if message else ''}")
    if not isinstance(found, dict):
        raise DiscoveryError(f"{server} answers no JSON object")
    return found
