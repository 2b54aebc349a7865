"""Plays a runtime behind Dynamo's selection service: registers workers, selects, books, and reports.

python examples/serve/dynamo_router/run.py
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))
from started import started

NUM_WORKERS = 3
GROUPS = f"cluster.groups=[{{replica: {{model: llama-3.1-8b, gpu: H100}}, count: {NUM_WORKERS}}}]"
WORDS = ("policy=dynamo_kv", GROUPS, "cluster.prefix_caching=true")


async def call(client: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
    """Calls and returns the answer."""
    async with client.request(method, path, json=body) as response:
        response.raise_for_status()
        return await response.json()


async def run(requests: int = 60, words: tuple[str, ...] = WORDS, seed: int = 0) -> dict[str, Any]:
    """Routes conversations of three turns; returns where they went and what was cached there."""
    draw, sent, overlaps = random.Random(seed), Counter[int](), []
    async with started("dynamo_router", *words) as url, aiohttp.ClientSession(url) as client:
        for number in range(NUM_WORKERS):
            worker = {"worker_id": number, "endpoint": f"http://worker-{number}:8000", "block_size": 16}
            await call(client, "POST", "/workers", worker)
        assert (await call(client, "GET", "/ready"))["ready"]

        async def conversation(number: int) -> None:
            tokens = [draw.randrange(32_000) for _ in range(draw.choice((200, 800)))]
            for turn in range(3):
                name = f"request-{number}-{turn}"
                asked = {"selection_id": name, "token_ids": tokens, "expected_output_tokens": 64}
                chosen = await call(client, "POST", "/select_and_reserve", asked)
                sent[chosen["worker_id"]] += 1
                overlaps.append(chosen["overlap"]["gpu"] / len(tokens))
                await call(client, "POST", f"/reservations/{name}/prefill_complete")
                for _ in range(4):
                    await call(client, "POST", f"/reservations/{name}/output_block")
                await call(client, "DELETE", f"/reservations/{name}")
                tokens = tokens + [draw.randrange(32_000) for _ in range(100)]

        await asyncio.gather(*map(conversation, range(requests // 3)))
        loads = (await call(client, "GET", "/loads"))[0]["loads"]
    return {
        "requests": sum(sent.values()),
        "sent_to": dict(sorted(sent.items())),
        "mean_overlap": round(sum(overlaps) / len(overlaps), 3),
        "left_at_the_end": sum(load["potential_decode_blocks"] for load in loads),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run()), indent=1))
