"""Checks server addresses given by the user."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit


def check_endpoints(urls: Sequence[str], allow_remote: bool = False) -> tuple[str, ...]:
    """The addresses without a trailing slash or `/v1`.

    Args:
        urls: `http://HOST:PORT`, one per server, with a base path where there is one.
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


def check_no_credentials(url: str) -> None:
    """Refuses an address with a user name, password or query, which would be written to every record.

    Raises:
        ValueError: it has one; the message has it not.
    """
    bare = url.partition("://")[2].partition("/")[0]
    if "@" in bare:
        raise ValueError(
            f"backend.endpoints: an address on {bare.rpartition('@')[2]} has a user name or password; "
            "use backend.access.api_key_env, or backend.access.headers={Authorization: $NAME}"
        )
    if "?" in url or "#" in url:
        raise ValueError(
            f"backend.endpoints: an address on {bare.partition('?')[0].partition('#')[0]} has a query or fragment; "
            "write http://HOST:PORT, and a base path after it where there is one"
        )


def _checked(url: str, allow_remote: bool) -> str:
    check_no_credentials(url)
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else None)
    except ValueError:
        parts, port = urlsplit(""), None
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
