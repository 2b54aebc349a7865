"""Notices two addresses of one server, and requests on a server that are not the client's."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import deque
from collections.abc import Sequence
from itertools import combinations
from urllib.parse import urlsplit

from serving_gym.envs.live.scraper import Reading

_READINGS = 4  # in a row with others' requests, before they are believed: a gauge lags behind requests that have ended
_log = logging.getLogger(__name__)
_PORTS = {"http": 80, "https": 443}


async def one_server_twice(urls: Sequence[str]) -> list[str]:
    """A sentence for each two addresses that lead to the same host, port and path."""
    places = await asyncio.gather(*(_places(url) for url in urls))
    return [
        f"{first} and {second} are one server under two names: its requests and its load count twice"
        for (first, here), (second, there) in combinations(zip(urls, places, strict=True), 2)
        if here & there
    ]


async def _places(url: str) -> set[tuple[str, int, str]]:
    """Where an address leads: hosts by number, port and path; nothing if its name is not known."""
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port)
    except OSError:
        return set()
    return {(_host(str(address[0])), port, parts.path.rstrip("/")) for *_, address in found}


def _host(number: str) -> str:
    return "loopback" if ipaddress.ip_address(number.split("%")[0]).is_loopback else number


class Neighbours:
    """Requests of others on each server, by its gauges.

    Args:
        urls: the servers.

    Attributes:
        most: Most requests of others at a time that were seen in several readings in a row, by server.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)
        self.most = [0] * len(self.urls)
        self._recent: list[deque[int]] = [deque(maxlen=_READINGS) for _ in self.urls]
        self._own: list[deque[int]] = [deque(maxlen=_READINGS) for _ in self.urls]

    def note(self, server: int, reading: Reading, in_flight: int) -> None:
        """Takes a reading, and the own requests in flight when it came.

        Args:
            server: which.
            reading: its metrics; `in_flight` are the own requests when it was asked for.
            in_flight: own requests now.
        """
        requests = reading.gauges.num_requests
        if requests is None:
            return
        own = self._own[server]
        own.append(max(reading.in_flight, in_flight))
        recent = self._recent[server]
        recent.append(max(requests - max(own), 0))
        steady = min(recent) if len(recent) == _READINGS else 0
        if steady > 0 and self.most[server] == 0:
            _log.warning("%s", self.sentence(server, steady))
        self.most[server] = max(self.most[server], steady)

    def forget(self, server: int) -> None:
        """Own requests have been taken back from a server, which it may still have for a while."""
        self._recent[server].clear()
        self._own[server].clear()

    def found(self) -> dict[str, int]:
        """Most requests of others at a time on each server that had any, by address."""
        return {url: most for url, most in zip(self.urls, self.most, strict=True) if most}

    def sentences(self) -> list[str]:
        """What is to be said about them."""
        return [self.sentence(server, most) for server, most in enumerate(self.most) if most]

    def sentence(self, server: int, requests: int) -> str:
        """What is to be said about the requests of others on a server."""
        return f"{self.urls[server]} has {requests} requests of others: another client is using it"
