"""Reads JSON bodies of HTTP requests; what is wrong is said in one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web


async def json_object(request: web.Request) -> Mapping[str, Any]:
    """The JSON object of a request.

    Raises:
        ValueError: it is none.
    """
    return object_of(await request.read())


def object_of(body: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        ValueError: it is none.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"the body must be an object, got {type(found).__name__}")
    return found


def text_of(values: Mapping[str, Any], name: str, default: str) -> str:
    """A text.

    Raises:
        ValueError: it is none.
    """
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {value!r}")
    return value


def whole_of(values: Mapping[str, Any], name: str, default: int | None, most: int) -> int:
    """A whole number from 0 to `most`; without a default it must be there.

    Raises:
        ValueError: it is none.
    """
    value = values.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} must be a whole number in [0, {most}], got {value!r}")
    return value
