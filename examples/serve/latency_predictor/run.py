"""Plays llm-d's endpoint picker: sends observations, and asks for predictions of every pod.

    python examples/serve/latency_predictor/run.py

The pods' true latencies are those of the calibrated profile with noise; what is learned is compared with them.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from started import started

WORDS = ("policy=predicted_latency", "policy.params.quantile=0", "policy.params.retrain_s=1", "isolate=false")
PROFILE = ("policy=predicted_latency_profile", "isolate=false")
READY_WITHIN_S = 120.0


def request_of(draw: random.Random) -> dict[str, Any]:
    """What the picker knows of a pod and a request, as the Go client writes it."""
    waiting = draw.choice((0, 0, 0, 2, 8))
    return {
        "kv_cache_percentage": round(draw.uniform(0.05, 0.9), 3),
        "input_token_length": draw.randrange(50, 4000),
        "num_request_waiting": waiting,
        "num_request_running": draw.randrange(0, 64),
        "num_tokens_generated": draw.randrange(1, 200),
        "prefix_cache_score": draw.choice((0.0, 0.0, 0.5, 0.9)),
        "prefill_tokens_in_flight": waiting * 1500,
    }


async def call(client: aiohttp.ClientSession, path: str, body: Any) -> Any:
    """Posts and returns the answer."""
    async with client.post(path, json=body) as response:
        response.raise_for_status()
        return await response.json()


async def true_latencies(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Latencies of the profile, by the same protocol."""
    async with started("latency_predictor", *PROFILE) as url, aiohttp.ClientSession(url) as client:
        answer = await call(client, "/predict/bulk/strict", {"requests": requests})
    found: list[dict[str, Any]] = answer["predictions"]
    return found


async def run(number: int = 1200, seed: int = 0) -> dict[str, Any]:
    """Sends observations until there is a model, and asks it about others; returns errors and times."""
    draw = random.Random(seed)
    requests = [request_of(draw) for _ in range(number)]
    truth = await true_latencies(requests)
    entries = [
        request
        | {f"actual_{name}": true[name] * draw.uniform(0.9, 1.1) for name in ("ttft_ms", "tpot_ms")}
        | {"timestamp": "2026-01-01T00:00:00Z"}
        for request, true in zip(requests, truth, strict=True)
    ]
    learned, asked = entries[: number * 5 // 6], requests[number * 5 // 6 :]
    async with started("latency_predictor", *WORDS) as url, aiohttp.ClientSession(url) as client:
        for first in range(0, len(learned), 100):  # the client sends what it has every second
            await call(client, "/add_training_data_bulk", {"entries": learned[first : first + 100]})
        async with asyncio.timeout(READY_WITHIN_S):
            while (await client.get("/readyz")).status != 200:
                await asyncio.sleep(0.1)
        taken_ms = []
        for _ in range(50):  # a decision over eight pods
            begun_s = time.perf_counter()
            await call(client, "/predict/bulk/strict", {"requests": asked[:8]})
            taken_ms.append(1e3 * (time.perf_counter() - begun_s))
        got = (await call(client, "/predict/bulk/strict", {"requests": asked}))["predictions"]
    pairs = list(zip(got, truth[-len(asked) :], strict=True))
    errors = {
        name: round(float(np.median([abs(one[name] / true[name] - 1) for one, true in pairs])), 3)
        for name in ("ttft_ms", "tpot_ms")
    }
    return {
        "observations": len(learned),
        "asked": len(got),
        "median_relative_error": errors,
        "eight_pods_ms": {f"p{q}": round(float(np.percentile(taken_ms, q)), 2) for q in (50, 99)},
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run()), indent=1))
