"""Requests through a proxy that plays Envoy, with a policy of `runners.serve` as its endpoint picker.

    python examples/serve/endpoint_picker/run.py                              # two simulated servers
    python examples/serve/endpoint_picker/run.py --endpoints http://127.0.0.1:8000 http://127.0.0.1:8001
    python examples/serve/endpoint_picker/run.py --replay recorded.json       # the exchange recorded here

`--record FILE` writes what happened. A replay plays the proxy's side of a record, message by message and in its time,
to a picker whose servers have the gauges of idle ones, and says how many of its picks are those on record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.envs.live.http import HttpClient
from serving_gym.envs.live.stream import completion_request, stream_completion

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))
from played_envoy import Envoy
from servers import SimulatedServer
from started import started

WORDS = ("policy=zoo/routing", "cluster=fleet_tiny_cpu_x2", "workload=azure_conv_fitted")


def picker(endpoints: list[str], words: tuple[str, ...]) -> AbstractAsyncContextManager[str]:
    """`runners.serve` as an endpoint picker; yields its address."""
    return started("endpoint_picker", *words, "backend=vllm", f"backend.endpoints=[{','.join(endpoints)}]")


async def load(
    url: str, requests: int, rate_rps: float, seed: int = 0, model: str = "tiny"
) -> list[dict[str, Any]]:
    """Sends requests of mixed lengths at random times; returns what each client saw."""
    draw = random.Random(seed)
    client = HttpClient()

    async def one(delay_s: float, prompt: int, output: int) -> dict[str, Any]:
        await asyncio.sleep(delay_s)
        loop = asyncio.get_running_loop()
        sent_s, first_s, tokens = loop.time(), float("nan"), 0

        def on_tokens(count: int, now_s: float) -> None:
            nonlocal first_s, tokens
            first_s, tokens = (loop.time() if tokens == 0 else first_s), count

        ids = [draw.randrange(100, 1000) for _ in range(prompt)]
        end = await stream_completion(client, url, completion_request(model, ids, output), on_tokens, 60.0)
        return {
            "ttft_s": first_s - sent_s,
            "e2e_s": loop.time() - sent_s,
            "tokens": tokens,
            "reason": end.reason,
        }

    at_s, tasks = 0.0, []
    for _ in range(requests):
        at_s += draw.expovariate(rate_rps)
        tasks.append(one(at_s, draw.choice((40, 200, 1000)), draw.choice((8, 24, 60))))
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await client.close()


async def run(
    endpoints: list[str] | None = None,
    requests: int = 60,
    rate_rps: float = 20.0,
    model: str = "tiny",
    words: tuple[str, ...] = WORDS,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Sends requests through proxy and picker; returns a summary and the proxy's exchanges.

    In the summary `compared` and `agreed` are with the choice of power of two.
    """
    with tempfile.TemporaryDirectory() as out:
        async with AsyncExitStack() as stack:
            if endpoints is None:
                endpoints = [(await stack.enter_async_context(SimulatedServer())).url for _ in range(2)]
            address = await stack.enter_async_context(picker(endpoints, (*words, f"out={out}")))
            proxy = await stack.enter_async_context(Envoy(address))
            seen = await load(proxy.url, requests, rate_rps, model=model)
            exchanges = proxy.records()
        status = json.loads((Path(out) / "status.json").read_text())
    ttft_s = np.array([one["ttft_s"] for one in seen])
    picked_s = np.array([one["picked_s"] - one["arrival_s"] for one in exchanges if one["endpoint"]])
    summary = {
        "endpoints": [url.removeprefix("http://") for url in endpoints],  # in the order of the places
        "requests": len(seen),
        "complete": sum(not one["reason"] for one in seen),
        "failed": sorted({one["reason"] for one in seen if one["reason"]}),
        "status": dict(Counter(one["status"] for one in exchanges)),
        "sent_to": dict(Counter(one["endpoint"] for one in exchanges)),
        "policy": Path(status["policy"]).name,
        **{name: status[name] for name in ("decisions", "overrides", "compared", "agreed")},
        "ttft_s": {f"p{q}": round(float(np.nanpercentile(ttft_s, q)), 4) for q in (50, 90, 99)},
        "e2e_mean_s": round(float(np.mean([one["e2e_s"] for one in seen])), 4),
        "picked_after_ms": {f"p{q}": round(1e3 * float(np.percentile(picked_s, q)), 2) for q in (50, 99)},
    }
    return summary, exchanges


async def replay(
    record: dict[str, Any], speed: float = 1.0, words: tuple[str, ...] = WORDS
) -> dict[str, Any]:
    """Plays the proxy's side of a record to a picker; returns counts."""
    from replaying import play  # its own file: messages alone, without HTTP

    async with SimulatedServer() as one, SimulatedServer() as other:
        endpoints = [one.url, other.url]
        async with picker(endpoints, words) as address:
            picks = await play(address, record["exchanges"], speed)
    names = {url.removeprefix("http://"): number for number, url in enumerate(endpoints)}
    known = {name: number for number, name in enumerate(record["endpoints"])}
    pairs = [
        (names[pick], known[exchange["endpoint"]])
        for pick, exchange in zip(picks, record["exchanges"], strict=True)
        if pick and exchange["endpoint"]
    ]
    return {
        "exchanges": len(record["exchanges"]),
        "picked": sum(bool(pick) for pick in picks),
        "sent_to": dict(Counter(number for number, _ in pairs)),
        "as_on_record": sum(now == then for now, then in pairs),
    }


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoints", nargs="+", help="servers that run; none: two simulated ones")
    parser.add_argument("--model", default="tiny", help="name of the served model")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--record", type=Path, help="file for what happened")
    parser.add_argument("--replay", type=Path, help="file to play again")
    parser.add_argument(
        "words", nargs="*", help="overrides of runners.serve, in place of policy and cluster here"
    )
    given = parser.parse_args()
    words = tuple(given.words) or WORDS
    if given.replay:
        print(json.dumps(asyncio.run(replay(json.loads(given.replay.read_text()), words=words)), indent=1))
        return
    summary, exchanges = asyncio.run(run(given.endpoints, given.requests, given.rate, given.model, words))
    print(json.dumps(summary, indent=1))
    if given.record:
        from replaying import recorded

        given.record.write_text(json.dumps(recorded(summary, exchanges), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
