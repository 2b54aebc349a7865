"""The replicas of a deployment and their last readings: scraped from their pages, or posted.

A reading that is missing or no number is stale and never zero: the value before it stands until it is too old. A
replica that has not been read yet is one that starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving_gym.envs.live.discovery import Discovery, Found, resolver_of
from serving_gym.runners.serving.replica_metrics import PATHS, STARTED, read_page
from serving_gym.runners.serving.scaling_view import COUNTERS, GAUGES, Deployment

if TYPE_CHECKING:
    import aiohttp

    from serving_gym.runners.serving.scaling_settings import ScalingSettings

_log = logging.getLogger(__name__)

NEEDED = ("num_running", "num_waiting")  # without which a reading is none
MOST_REPLICAS = 4096
_AT_ONCE = 64  # pages that are read side by side
_PAGE_BYTES = 16 * 2**20
_ROUND_INTERVALS = 2.0  # scrape intervals after which pages that have not come are given up
_NAMES = (*GAUGES, *COUNTERS)


@dataclass
class Replica:
    """A replica.

    Attributes:
        values: Last value of each name.
        read_s: Time of the last reading, on the view's clock; None: not read yet.
        ready: Whether it may be sent requests.
        draining: Whether it finishes its requests and then goes.
        started_s: Time at which its process started, on the view's clock; None: not known.
        arrived: Requests that have arrived there since it was first read, and the counts they come from.
    """

    values: dict[str, float] = field(default_factory=dict)
    read_s: float | None = None
    ready: bool = True
    draining: bool = False
    started_s: float | None = None
    arrived: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def take(self, values: Mapping[str, float], now_s: float, needed: tuple[str, ...]) -> None:
        """Takes a reading; what it lacks stays as it was, and stale."""
        if "requests_total" not in values and "ended_total" in values and all(n in values for n in NEEDED):
            values = {**values, "requests_total": self._arrivals(values)}
        self.values.update(values)
        if all(name in values for name in needed):
            self.read_s = now_s

    def _arrivals(self, values: Mapping[str, float]) -> float:
        """Requests that have arrived: those that ended, and by how many more there are."""
        total, ended, inside = self.arrived
        now_ended, now_inside = values["ended_total"], values["num_running"] + values["num_waiting"]
        if now_ended < ended:  # it was started anew
            ended = inside = 0.0
        grown = now_ended - ended + now_inside - inside
        if grown >= 0:  # else the page was written between an end and its count
            self.arrived = total + grown, now_ended, now_inside
        return self.arrived[0]


class Replicas:
    """What is known of the replicas.

    Args:
        settings: Settings.
        begun_s: Unix time at which the view's clock is 0.

    Attributes:
        known: By name.
        seen_s: Time at which it was last known which there are, on the view's clock; None: never.
        num_held: Requests that wait in front of them.
        held_s: Time at which that was last said, on the view's clock; None: never.
        wanted: Replicas that there are to be, as a source says; None: none says it.
    """

    def __init__(self, settings: ScalingSettings, begun_s: float) -> None:
        self.settings, self.begun_s = settings, begun_s
        self.needed = () if "gauges" in settings.without else NEEDED
        self.known: dict[str, Replica] = {}
        self.seen_s: float | None = None
        self.num_held = 0
        self.held_s: float | None = None
        self.wanted: int | None = None

    def there_are(self, found: Mapping[str, Found], now_s: float) -> None:
        """Notes which replicas there are; others have gone."""
        self.known = {name: self.known.get(name, Replica()) for name in found}
        for name, server in found.items():
            self.known[name].ready, self.known[name].draining = server.ready, server.draining
        self.seen_s = now_s

    def take(self, name: str, values: Mapping[str, float], now_s: float) -> None:
        """Takes a reading of a replica."""
        replica = self.known[name]
        if STARTED in values:
            started_s = values[STARTED] - self.begun_s
            if replica.started_s is not None and abs(started_s - replica.started_s) > 1.0:
                replica = self.known[name] = Replica(ready=replica.ready, draining=replica.draining)
            replica.started_s = started_s
        replica.take(values, now_s, self.needed)

    def stale(self, now_s: float) -> list[str]:
        """Ready replicas whose last reading is too old."""
        limit_s = self.settings.stale_after_s
        return [
            name
            for name, replica in self.known.items()
            if replica.ready and replica.read_s is not None and now_s - replica.read_s > limit_s
        ]

    def problem(self, now_s: float) -> str:
        """Why too little is known for a decision; empty if enough is."""
        limit_s = self.settings.stale_after_s
        if self.seen_s is None:
            return "no replica has been heard of yet"
        if now_s - self.seen_s > limit_s:
            return f"which replicas there are has not been heard for {now_s - self.seen_s:.0f} s"
        if self.held_s is not None and now_s - self.held_s > limit_s:
            return f"num_held has not been posted for {now_s - self.held_s:.0f} s"
        ready = [replica for replica in self.known.values() if replica.ready]
        stale = self.stale(now_s)
        if len(stale) > self.settings.most_stale_ratio * len(ready):
            return f"the readings of {len(stale)} of {len(ready)} replicas are older than {limit_s:g} s"
        if ready and all(replica.read_s is None for replica in ready):
            return f"none of {len(ready)} replicas has reported {' and '.join(self.needed)} yet"
        return ""

    def present(self) -> int:
        """Replicas that serve or start."""
        return sum(not replica.draining for replica in self.known.values())

    def deployment(self, wanted: int, most: int) -> Deployment:
        """What is known now.

        Args:
            wanted: Replicas that there are to be.
            most: Most replicas.
        """
        serving = tuple(
            n for n, replica in self.known.items() if replica.ready and replica.read_s is not None
        )
        draining = tuple(name for name, replica in self.known.items() if replica.draining)
        metrics: dict[str, dict[str, float]] = {}
        for name in (*serving, *draining):
            for key in _NAMES:
                if key in (values := self.known[name].values):
                    metrics.setdefault(key, {})[name] = values[key]
        started_s = {n: r.started_s for n, r in self.known.items() if r.started_s is not None}
        return Deployment(
            serving, wanted, most, metrics, draining, num_held=self.num_held, started_s=started_s
        )


class Scraper:
    """Finds the replicas and reads their pages.

    Args:
        replicas: Takes what is read.
        urls: Their addresses.
        allow_remote: Whether they may be on other machines.

    Attributes:
        failures: Pages that could not be read.

    Raises:
        ValueError: An address is none, or beyond loopback though that is not allowed.
    """

    def __init__(self, replicas: Replicas, urls: Sequence[str], allow_remote: bool) -> None:
        self.replicas, self.failures = replicas, 0
        self.discoveries = [Discovery(url, resolver_of(url, allow_remote)) for url in urls]
        self._said: set[str] = set()
        self._paths: dict[str, str] = {}  # of the page of each server

    async def read(self, session: aiohttp.ClientSession, now_s: float) -> None:
        """Finds all replicas and reads each once; raises nothing, and takes a few seconds at most.

        Args:
            session: For the requests.
            now_s: Time on the view's clock.
        """
        await asyncio.gather(*(discovery.refresh() for discovery in self.discoveries))
        found = {server.url: server for each in self.discoveries for server in each.found}
        if not any(each.problem for each in self.discoveries):
            self.replicas.there_are(dict(list(found.items())[:MOST_REPLICAS]), now_s)
        places = asyncio.Semaphore(_AT_ONCE)
        urls = [url for url in found if url in self.replicas.known]
        reading = asyncio.gather(*(self._read(session, places, found[url], now_s) for url in urls))
        with contextlib.suppress(TimeoutError):  # what is not read by then is stale
            await asyncio.wait_for(reading, _ROUND_INTERVALS * self.replicas.settings.scrape_interval_s)
        self._said &= set(urls)
        self._paths = {url: path for url, path in self._paths.items() if url in found}

    async def _read(
        self, session: aiohttp.ClientSession, places: asyncio.Semaphore, server: Found, now_s: float
    ) -> None:
        import aiohttp

        within = aiohttp.ClientTimeout(total=self.replicas.settings.scrape_interval_s)
        path = self._paths.get(server.url, PATHS[0])
        try:
            async with (
                places,
                session.get(
                    server.url + path,
                    timeout=within,
                    allow_redirects=False,
                    server_hostname=server.host or None,
                ) as response,
            ):
                if response.status == 404:  # some servers have their page elsewhere
                    self._paths[server.url] = PATHS[(PATHS.index(path) + 1) % len(PATHS)]
                if response.status != 200:
                    raise ValueError(f"the page has status {response.status}")
                body = await _bounded(response)
            self.replicas.take(server.url, read_page(body.decode()), now_s)
            self._said.discard(server.url)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            self._note(server, f"{type(error).__name__}: {error}".rstrip(": "))

    def _note(self, server: Found, reason: str) -> None:
        self.failures += 1
        if server.url not in self._said and server.ready:
            self._said.add(server.url)
            _log.warning("%s/metrics cannot be read (%s); its last reading stands", server.url, reason)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body of a response.

    Raises:
        ValueError: It is too long.
    """
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _PAGE_BYTES:
            raise ValueError(f"the page is longer than {_PAGE_BYTES} bytes")
    return bytes(body)


def posted(body: Any) -> tuple[dict[str, dict[str, float]], dict[str, Found], int, int | None]:
    """Readings from the JSON that a source posts.

    {"replicas": {NAME: {"num_running": 3, "num_waiting": 0, "ready": true, ...}, ...}, "num_held": 0, "wanted": 4}

    Args:
        body: The object.

    Returns:
        Values by replica, replicas by name, `num_held`, and `wanted` or None.

    Raises:
        ValueError: It is not of this form.
    """
    if not isinstance(body, dict) or not isinstance(body.get("replicas"), dict):
        raise ValueError("replicas must be an object: a name and its values for each replica that there is")
    if len(body["replicas"]) > MOST_REPLICAS:
        raise ValueError(f"replicas must name at most {MOST_REPLICAS}, got {len(body['replicas'])}")
    unknown = sorted(set(body) - {"replicas", "num_held", "wanted"})
    if unknown:
        raise ValueError(f"{unknown[0]!r} is unknown (allowed: replicas, num_held, wanted)")
    found, values = {}, {}
    for name, said in body["replicas"].items():
        values[name], found[name] = _replica(name, said)
    held, wanted = (_count(body, name) for name in ("num_held", "wanted"))
    return values, found, held or 0, wanted


def posted_held(body: Any) -> int:
    """Requests in front of replicas that are read, from the JSON that their front end posts: {"num_held": 3}.

    Raises:
        ValueError: It is not of this form.
    """
    if not isinstance(body, dict) or set(body) != {"num_held"} or (held := _count(body, "num_held")) is None:
        raise ValueError('scaling.replicas are read, so that {"num_held": NUMBER} alone is to be posted')
    return held


def _replica(name: str, said: Any) -> tuple[dict[str, float], Found]:
    allowed = (*_NAMES, "ended_total", STARTED)
    if not isinstance(said, dict):
        raise ValueError(f"replicas.{name} must be an object, got {type(said).__name__}")
    flags = {key: said.get(key, key == "ready") for key in ("ready", "draining")}
    for key, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"replicas.{name}.{key} must be true or false, got {flag!r}")
    values = {}
    for key, value in said.items():
        if key in flags or value is None or (isinstance(value, float) and math.isnan(value)):  # not known
            continue
        if key not in allowed:
            raise ValueError(f"replicas.{name}.{key} is unknown (allowed: {', '.join((*allowed, *flags))})")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(
                f"replicas.{name}.{key} must be a finite number of at least 0 or null, got {value!r}"
            )
        values[key] = float(value)
    return values, Found(name, flags["ready"] and not flags["draining"], flags["draining"], name)


def _count(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31
    ):
        raise ValueError(f"{name} must be a whole number of at least 0 or null, got {value!r}")
    return value
