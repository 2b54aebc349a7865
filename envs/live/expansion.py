"""Expands endpoints that stand for several servers: names with several addresses, and services of Kubernetes.

A request to such a name goes to any of its servers, and so does a reading of metrics, which would then tell of another
server than the one that has the request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from serving_gym.envs.live.discovery import DiscoveryError, KubernetesAPI, resolver_of
from serving_gym.envs.live.endpoints import check_no_credentials, is_loopback

_log = logging.getLogger(__name__)


def expand_endpoints(
    endpoints: Sequence[str], allow_remote: bool, api: KubernetesAPI | None = None
) -> tuple[str, ...]:
    """The endpoints, one for each server.

    `http://NAME:PORT` becomes one for each address of NAME (of IPv4, if it has any: a name with both is one server),
    and `k8s://NAMESPACE/SERVICE:PORT` one for each pod that is ready. `https` stays as it is, as a certificate is for a
    name.

    Args:
        endpoints: from the configuration.
        allow_remote: whether servers may be on other machines.
        api: API server of Kubernetes; None: that of the cluster this process is in.

    Raises:
        ValueError: the servers of one are not known, or there are none.
    """
    return asyncio.run(_expanded(endpoints, allow_remote, api))


async def _expanded(
    endpoints: Sequence[str], allow_remote: bool, api: KubernetesAPI | None
) -> tuple[str, ...]:
    expanded: list[str] = []
    for url in endpoints:
        check_no_credentials(url)
        there = await _servers_of(url, allow_remote, api) if _has_several(url) else [url]
        if there != [url]:
            _log.warning("%s has %d servers: %s", url, len(there), ", ".join(there))
        expanded += there
    return tuple(expanded)


def _has_several(url: str) -> bool:
    """Whether an address may stand for several servers."""
    parts = urlsplit(url)
    if parts.scheme == "k8s":
        return True
    host = parts.hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return parts.scheme == "http" and bool(host) and not is_loopback(host)
    return False


async def _servers_of(url: str, allow_remote: bool, api: KubernetesAPI | None) -> list[str]:
    """Addresses of the servers behind an address.

    Raises:
        ValueError: they are not known, or there are none.
    """
    try:
        found = [each.url for each in await resolver_of(url, allow_remote, api).resolve() if each.ready]
    except DiscoveryError as error:
        raise ValueError(f"backend.endpoints: {error}") from None
    if not found:
        raise ValueError(f"backend.endpoints: {url} has no server that is ready")
    if url.startswith("k8s:"):
        return found
    of_ipv4 = [each for each in found if "[" not in each]
    return [url] if len(of_ipv4 or found) == 1 else of_ipv4 or found
