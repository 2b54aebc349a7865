"""Server information, read once when the live backend attaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serving_gym.envs.live.gauges import CacheConfig, read_cache_config, read_gauges

if TYPE_CHECKING:
    import aiohttp

_ANSWER_WITHIN_S = 10.0
# A connection that has been idle for so long is not used again: vLLM's front end closes one after 5 s, and a request
# that is sent at that moment is lost.
_KEEP_ALIVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        url: Its address.
        model: Name of the served model.
        root: Source of its weights and configuration: a folder or a repository.
        version: Version of vLLM.
        max_model_len: Longest request it takes, tokens.
        cache: Its KV cache.
    """

    url: str
    model: str
    root: str
    version: str
    max_model_len: int
    cache: CacheConfig

    @property
    def most_tokens(self) -> int:
        """Longest request that fits, tokens."""
        return min(self.max_model_len, self.cache.num_blocks * self.cache.block_size)


def open_client() -> aiohttp.ClientSession:
    """An HTTP client without a connection limit, as an open loop needs."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
    return aiohttp.ClientSession(connector=connector, read_bufsize=1 << 18)


async def probe(session: aiohttp.ClientSession, url: str, model: str | None) -> Server:
    """Reads the information of a server.

    Args:
        session: HTTP client.
        url: the server.
        model: name of the model; None: the only one it serves.

    Raises:
        ValueError: no server answers, it is not a vLLM server, the model is not served, or a metric is missing.
    """
    served = await _get_json(session, url, "/v1/models")
    version = await _get_json(session, url, "/version")
    entry = _entry(served, url, model)
    page = await _get_text(session, url, "/metrics")
    read_gauges(page, url)  # a missing metric is an error now, not in the middle of a run
    cache = read_cache_config(page, url)
    return Server(
        url=url,
        model=str(entry["id"]),
        root=str(entry.get("root") or entry["id"]),
        version=str(version.get("version", "unknown")),
        max_model_len=int(entry.get("max_model_len") or cache.num_blocks * cache.block_size),
        cache=cache,
    )


def _entry(served: dict[str, Any], url: str, model: str | None) -> dict[str, Any]:
    entries = {str(entry["id"]): entry for entry in served.get("data", [])}
    if model is None and len(entries) == 1:
        return next(iter(entries.values()))
    if model is None or model not in entries:
        raise ValueError(
            f"backend.model={model!r} is not what {url} serves; it serves: {', '.join(sorted(entries)) or 'nothing'}"
        )
    return entries[model]


async def _get_json(session: aiohttp.ClientSession, url: str, path: str) -> dict[str, Any]:
    import json

    text = await _get_text(session, url, path)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{url}{path} does not answer as vLLM does: {text[:80]!r}")
    return value


async def _get_text(session: aiohttp.ClientSession, url: str, path: str) -> str:
    import aiohttp

    try:
        limit = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
        async with session.get(f"{url}{path}", timeout=limit) as response:
            text = await response.text()
    except TimeoutError:
        raise ValueError(f"{url} did not answer {path} within {_ANSWER_WITHIN_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ValueError(
            f"no server answers at {url} ({error}); start one, or correct backend.endpoints"
        ) from None
    if response.status != 200:
        raise ValueError(f"{url}{path} answers HTTP {response.status}; is it a vLLM server?")
    return text
