"""Asks a policy in the production-stack's form about a burst of requests, as the stack would.

python examples/serve/production_stack/run.py
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from serving_gym.runners.serving.production_stack import ProductionStackRouting

sys.path.insert(0, str(Path(__file__).parent))
import stack

ENGINES = [f"http://engine-{number}:8000" for number in range(3)]
GROUPS = "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 3}]"


class Router(ProductionStackRouting, stack.SessionRouter):
    """jsq over three engines."""

    words = ("policy=jsq", GROUPS)


async def burst(number: int = 60, seed: int = 0) -> dict[str, Any]:
    """Sends requests of mixed lengths; two of three have ended before the last is sent."""
    front, draw = stack.Stack(Router("x-user-id"), ENGINES), random.Random(seed)
    sent: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for request in range(number):
        length = draw.choice((20, 200, 2000))
        url = await front.route({"prompt": [1] * length, "max_tokens": 50})
        sent[url] += 1
        tokens[url] += length
        front.first_token(url)
        if request % 3:
            front.finish(url)
    return {"sent": dict(sent), "prompt_tokens": dict(tokens), **front.router.placement.counts}


if __name__ == "__main__":
    print(asyncio.run(burst()))
