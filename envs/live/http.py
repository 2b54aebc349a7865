"""The HTTP client: bounded bodies, no redirects, no compression, credentials by server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from serving_gym.envs.live.access import Access

if TYPE_CHECKING:
    import aiohttp

# A connection that has been idle for so long is not used again: vLLM's front end closes one after 5 s, and a request
# that is sent at that moment is lost.
_KEEP_ALIVE_S = 2.0
MOST_TEXT = 200  # characters of a server's answer quoted in a reason


class AnswerError(ValueError):
    """A server's answer cannot be used: it does not end, or is encoded in a way that was not asked for."""


class HttpClient:
    """An HTTP client without a connection limit, as an open loop needs. A context manager.

    Redirects are not followed: a request would be served by another server than its record says, and its key would go
    there. Compressed answers are refused, since a small one may unpack to any size.

    Args:
        access: by address of the server; other servers are sent no credentials.

    Raises:
        ValueError: credentials cannot be read.
    """

    def __init__(self, access: Mapping[str, Access] | None = None) -> None:
        import aiohttp

        known = dict(access or {})
        self._headers = {url: each.request_headers() for url, each in known.items()}
        self._tls = {url: context for url, each in known.items() if (context := each.tls()) is not None}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            read_bufsize=1 << 18,
        )

    def get(
        self, url: str, path: str, within_s: float
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Asks for a page."""
        return self._request("GET", url, path, within_s)

    def post(
        self, url: str, path: str, body: dict[str, Any]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Sends a JSON object; the caller limits the time."""
        return self._request("POST", url, path, None, json=body)

    def _request(
        self, method: str, url: str, path: str, within_s: float | None, **words: Any
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        import aiohttp

        return self._session.request(
            method,
            f"{url}{path}",
            headers=self._headers.get(url),
            ssl=self._tls.get(url, True),
            timeout=aiohttp.ClientTimeout(total=within_s),
            allow_redirects=False,
            **words,
        )

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def http_errors() -> tuple[type[Exception], ...]:
    """Errors of a connection, or of an answer that is no HTTP."""
    import aiohttp
    from aiohttp.http_exceptions import HttpProcessingError

    return (aiohttp.ClientError, HttpProcessingError, asyncio.IncompleteReadError, OSError)


def why(error: BaseException) -> str:
    """An error of a connection in one line."""
    return f"{type(error).__name__}: {clean(str(error))}".rstrip(": ")


def clean(text: str) -> str:
    """A server's words as one short line that every file can hold."""
    words = "".join(c if c.isprintable() else " " for c in text[: 4 * MOST_TEXT])
    return " ".join(words.split())[:MOST_TEXT]


def check_encoding(response: aiohttp.ClientResponse) -> None:
    """Refuses a compressed answer.

    Raises:
        AnswerError: it is compressed.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise AnswerError(f"it answers with Content-Encoding {encoding[:20]!r}, which was not asked for")


async def read_text(response: aiohttp.ClientResponse, most_bytes: int) -> str:
    """A body as text; what is not UTF-8 is replaced.

    Raises:
        AnswerError: it is longer than allowed, or compressed.
    """
    check_encoding(response)
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > most_bytes:
            raise AnswerError(f"its answer is longer than {most_bytes:,} bytes")
    return body.decode("utf-8", errors="replace")


async def read_beginning(response: aiohttp.ClientResponse) -> str:
    """The first characters of an answer that is an error, on one line."""
    body = b""
    async for part in response.content.iter_any():
        body += part[: 4 * MOST_TEXT]
        if len(body) >= 4 * MOST_TEXT:
            break
    return clean(body.decode("utf-8", errors="replace"))


def redirect_reason(response: aiohttp.ClientResponse) -> str:
    """Why an answer that points elsewhere counts as a failure."""
    from urllib.parse import urlsplit

    try:
        there = urlsplit(response.headers.get("Location", ""))
        place = f"{there.scheme}://{there.hostname}" if there.hostname else "another path"
    except ValueError:
        place = "elsewhere"
    return f"HTTP {response.status} points to {clean(place)}: redirects are not followed"
