"""GET and POST /switching on the API server; loaded as `vllm.endpoint_plugins`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Any

from . import NAME
from .book import Mode

PATH = "/switching"


class SwitchingEndpoint:
    """Shows the layout and takes commands to change it.

    `GET /switching` answers with `SwitchingScheduler.status`. `POST /switching` takes
    `{"layout": [1, 1], "mode": "sequential" | "soft" | "hard"}`; it answers 200 with the numbers of the switches begun,
    409 where a region is on its way elsewhere or the layout is none, 422 where the words are wrong, and either call 503
    where the engine is dead, 401 without the server's API key if it has one (`--api-key`, VLLM_API_KEY).
    """

    name = NAME
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Adds the routes."""
        from fastapi import Request
        from fastapi.responses import JSONResponse

        def refused(raw: Request) -> JSONResponse | None:
            state = raw.app.state
            if not authorised(raw.headers.get("Authorization", ""), state.switching_keys):
                return JSONResponse(_refusal("Unauthorized"), status_code=401)
            if state.switching_client.errored:
                return JSONResponse(_refusal("the engine is dead"), status_code=503)
            return None

        async def show(raw: Request) -> JSONResponse:
            client = raw.app.state.switching_client
            return refused(raw) or JSONResponse(
                await client.engine_core.call_utility_async("switching_status")
            )

        async def switch(raw: Request) -> JSONResponse:
            client = raw.app.state.switching_client
            if (refusal := refused(raw)) is not None:
                return refusal
            try:
                layout, mode = parse(await raw.json())
            except ValueError as error:
                return JSONResponse(_refusal(str(error)), status_code=422)
            answer = await client.engine_core.call_utility_async("switching_set_layout", layout, int(mode))
            return JSONResponse(answer, status_code=200 if answer["accepted"] else 409)

        # FastAPI reads the annotations, which are names of this function's own imports
        show.__annotations__["raw"] = switch.__annotations__["raw"] = Request
        app.add_api_route(PATH, show, methods=["GET"], response_model=None)
        app.add_api_route(PATH, switch, methods=["POST"], response_model=None)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Remembers how to reach the engine, and the API keys."""
        state.switching_client = engine_client
        # As vLLM's own middleware, which guards /v1 alone (vllm/entrypoints/serve/middleware/register.py, 0.32)
        state.switching_keys = [key for key in (args.api_key or [os.environ.get("VLLM_API_KEY")]) if key]


def authorised(header: str, keys: Sequence[str]) -> bool:
    """Whether an Authorization header has one of the keys; without keys everyone is.

    Args:
        header: The header, empty if there is none.
        keys: The server's API keys.
    """
    scheme, _, given = header.partition(" ")
    matches = [secrets.compare_digest(given.encode(), key.encode()) for key in keys]
    return not keys or (scheme.lower() == "bearer" and any(matches))


def _refusal(reason: str) -> dict[str, Any]:
    return {"accepted": False, "reason": reason, "switches": []}


def parse(words: Any) -> tuple[list[int], Mode]:
    """Layout and mode of a POST.

    Raises:
        ValueError: a word is missing, unknown or not what it should be.
    """
    if not isinstance(words, dict) or set(words) - {"layout", "mode"} or "layout" not in words:
        raise ValueError('expected {"layout": [lengths of groups], "mode": "sequential" | "soft" | "hard"}')
    layout, mode = words["layout"], words.get("mode", "sequential")
    if not isinstance(layout, list) or not all(type(length) is int for length in layout):
        raise ValueError(f"layout must be a list of whole numbers, got {layout!r}")
    if mode not in [known.name.lower() for known in Mode]:
        raise ValueError(f"mode must be sequential, soft or hard, got {mode!r}")
    return layout, Mode[mode.upper()]
