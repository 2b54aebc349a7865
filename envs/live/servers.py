"""Server information, read once when the live backend attaches."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving_gym.envs.live.gauges import CacheConfig, MetricNames, find_names, read_cache_config
from serving_gym.envs.live.http import AnswerError, HttpClient, clean, http_errors, read_text, why
from serving_gym.envs.live.metric_names import FAMILIES, VLLM, family_of, usual_names

_ANSWER_WITHIN_S = 10.0
MOST_PAGE_BYTES = 8 << 20
_MOST_JSON_BYTES = 4 << 20
_MOST_TOKENS = 1 << 31
_BLOCK_TOKENS = 16  # where a server does not tell
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        url: Its address.
        model: Name of the served model.
        root: Source of its weights and configuration: a folder or a repository.
        version: Its version.
        max_model_len: Longest request it takes, tokens.
        cache: Its KV cache.
        kind: What it is: vLLM, SGLang or TensorRT-LLM.
        metrics: Name of each quantity that its metrics tell.
    """

    url: str
    model: str
    root: str
    version: str
    max_model_len: int
    cache: CacheConfig
    kind: str = VLLM.server
    metrics: Mapping[str, str] = field(default_factory=lambda: usual_names(VLLM))

    @property
    def most_tokens(self) -> int:
        """Longest request that fits, tokens."""
        return min(self.max_model_len, self.cache.num_blocks * self.cache.block_size)

    @property
    def names(self) -> MetricNames:
        """The names by which it tells what is read."""
        return MetricNames(family_of(self.kind), self.metrics)


async def probe(client: HttpClient, url: str, model: str | None) -> Server:
    """Reads the information of a server.

    Args:
        client: HTTP client.
        url: the server.
        model: name of the model; None: the only one it serves.

    Raises:
        ValueError: no server answers, it is of no known kind, or the model is not served.
    """
    served = await _get_json(client, url, "/v1/models")
    entry = _entry(served, url, model)
    page, names = await _metrics(client, url)
    cache = read_cache_config(page, url, names.family)
    longest = _tokens(entry.get("max_model_len"))
    if longest is None and cache is None:
        raise ValueError(f"{url} tells neither its longest request nor the size of its KV cache")
    longest = longest or (cache.num_blocks * cache.block_size if cache else 0)
    if cache is None:
        cache = CacheConfig(-(-longest // _BLOCK_TOKENS), _BLOCK_TOKENS)
        _log.warning("%s does not tell the size of its KV cache, which is taken as %d tokens", url, longest)
    _log.log(logging.WARNING if names.missing else logging.INFO, "%s: %s", url, names.describe(page))
    return Server(
        url=url,
        model=clean(str(entry["id"])),
        root=clean(str(entry.get("root") or entry["id"])),
        version=await _version(client, url),
        max_model_len=longest,
        cache=cache,
        kind=names.family.server,
        metrics=dict(names.names),
    )


async def _metrics(client: HttpClient, url: str) -> tuple[str, MetricNames]:
    """The page of metrics, and the names on it.

    Raises:
        ValueError: no page has the metrics of a known server.
    """
    reasons = []
    for path in dict.fromkeys(family.path for family in FAMILIES):
        try:
            page = await _get_text(client, url, path, MOST_PAGE_BYTES)
            return page, find_names(page, f"{url}{path}")
        except ValueError as error:
            reasons.append(error)
    raise reasons[0]


async def _version(client: HttpClient, url: str) -> str:
    """Its version, where it tells: vLLM and TensorRT-LLM at `/version`, SGLang at `/server_info`."""
    for path in ("/version", "/server_info", "/get_server_info"):
        try:
            told = (await _get_json(client, url, path)).get("version")
        except ValueError:
            continue
        if isinstance(told, str):
            return clean(told)
    return "unknown"


def _entry(served: dict[str, Any], url: str, model: str | None) -> dict[str, Any]:
    listed = served.get("data")
    if not isinstance(listed, list) or not all(isinstance(each, dict) and "id" in each for each in listed):
        raise ValueError(f"{url}/v1/models does not answer with a list of models")
    entries = {str(entry["id"]): entry for entry in listed}
    if model is None and len(entries) == 1:
        return next(iter(entries.values()))
    if model is None or model not in entries:
        raise ValueError(
            f"backend.model={model!r} is not what {url} serves; it serves: {', '.join(sorted(entries)) or 'nothing'}"
        )
    return entries[model]


def _tokens(value: object) -> int | None:
    """A number of tokens, None where it is none."""
    return value if isinstance(value, int) and 0 < value < _MOST_TOKENS else None


async def _get_json(client: HttpClient, url: str, path: str) -> dict[str, Any]:
    text = await _get_text(client, url, path, _MOST_JSON_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{url}{path} does not answer as vLLM does: {text[:80]!r}")
    return value


async def _get_text(client: HttpClient, url: str, path: str, most_bytes: int) -> str:
    try:
        async with client.get(url, path, _ANSWER_WITHIN_S) as response:
            status = response.status
            text = await read_text(response, most_bytes) if status == 200 else ""
    except TimeoutError:
        raise ValueError(f"{url} did not answer {path} within {_ANSWER_WITHIN_S:g} s") from None
    except AnswerError as error:
        raise ValueError(f"{url}{path} cannot be read: {error}") from None
    except http_errors() as error:
        raise ValueError(
            f"no server answers at {url} ({why(error)}); start one, or correct backend.endpoints"
        ) from None
    if status in (401, 403):
        raise ValueError(f"{url}{path} answers HTTP {status}: set backend.access.api_key_env or api_key_file")
    if 300 <= status < 400:
        raise ValueError(
            f"{url}{path} answers HTTP {status}: redirects are not followed; name its own address"
        )
    if status != 200:
        raise ValueError(f"{url}{path} answers HTTP {status}; is it a vLLM server?")
    return text
