"""Checks server addresses given by the user."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit


def check_endpoints(urls: Sequence[str], allow_remote: bool = False) -> tuple[str, ...]:
    """The addresses without a trailing slash or `/v1`.

    Args:
        urls: `http://HOST:PORT`, one per server.
        allow_remote: whether hosts other than loopback are allowed.

    Raises:
        ValueError: there are none, or one is not an HTTP address, is not loopback, or is repeated.
    """
    if not urls:
        raise ValueError(
            "backend.endpoints is empty: name at least one server, as in backend.endpoints=[http://127.0.0.1:8000]"
        )
    checked = tuple(_checked(url, allow_remote) for url in urls)
    twice = sorted({url for url in checked if checked.count(url) > 1})
    if twice:
        raise ValueError(f"backend.endpoints names {twice[0]!r} more than once")
    return checked


def _checked(url: str, allow_remote: bool) -> str:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise ValueError(f"backend.endpoints: {url!r} is not an address; write http://HOST:PORT")
    if not allow_remote and not is_loopback(parts.hostname):
        raise ValueError(
            f"backend.endpoints: {url!r} is beyond loopback; allowed are 127.0.0.1, ::1 and localhost, "
            "or any host with backend.allow_remote=true"
        )
    return url.rstrip("/").removesuffix("/v1")


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, by its name or number."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
