"""Replays two batches of RL rollouts through the form of a trainer, against small simulated servers.

    python examples/serve/rollout_routers/run.py            # every trainer
    python examples/serve/rollout_routers/run.py verl slime

Turns wait for the answers and tools before them, as `workload=rl_rollouts` says. Seconds are shortened by `SPEED`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.envs.live.prompts import Prompts
from serving_gym.envs.workload.registry import WorkloadSpec, make_workload
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.serving.rollout_routers import (
    PrimeRLScheduling,
    SkyRLRouting,
    SlimeMiddleware,
    VerlLoadBalancer,
)

sys.path.insert(0, str(Path(__file__).parent))
import trainers

SPEED = 1000.0
NUM_SERVERS = 4
GROUPS = f"cluster.groups=[{{replica: {{model: llama-3.1-8b, gpu: H100}}, count: {NUM_SERVERS}}}]"
WORDS = ("policy=lmetric", GROUPS, "cluster.prefix_caching=true")
TRAINERS = ("verl", "verl_without_prompts", "slime", "skyrl", "prime_rl")


@dataclass
class SimulatedServer:
    """A server that prefills one prompt after the other, and slows down with its batch.

    Attributes:
        number: Its number, which is the token that its answers are made of.
        served: Prompts it has answered.
        running: Requests now.
        most: Most requests at once.
    """

    number: int
    served: int = 0
    running: int = 0
    most: int = 0
    prefill: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def generate(self, prompt_ids: list[int], max_tokens: int) -> list[int]:
        """Tokens of an answer, after the time it takes: 20,000 prompt tokens a second, 10 ms a token and more."""
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with self.prefill:
                await asyncio.sleep(len(prompt_ids) / 20_000 / SPEED)
            await asyncio.sleep(max_tokens * (0.01 + 0.0003 * self.running) / SPEED)
        finally:
            self.running -= 1
        self.served += 1
        return [self.number] * max_tokens


def batches(num_turns: int = 90, seed: int = 0) -> Workload:
    """Turns of batches of four prompts with four trajectories each."""
    params = {"prompts": 4, "group": 4, "mean_turns": 3.0, "update_s": 5.0, "longest_output_tokens": 512}
    spec = WorkloadSpec(name="rl_rollouts", num_requests=num_turns, params=params)
    return make_workload(spec, seed)


def trainer(name: str, servers: dict[str, SimulatedServer], words: tuple[str, ...]) -> tuple[Any, Any]:
    """What generates a turn, (session, group, prompt, limit) -> tokens, and the policy's book-keeping."""
    if name.startswith("verl"):
        balancer = VerlLoadBalancer(dict(servers), {"words": list(words)})
        client = trainers.VerlClient(balancer, tells_prompts=name == "verl")
        return lambda session, group, prompt, most: client.generate(session, prompt, most), balancer.placement
    if name == "slime":
        middleware = type("Ours", (SlimeMiddleware,), {"words": words})
        router = trainers.SlimeRouter(dict(servers), middleware)
        return lambda session, group, prompt, most: router.generate(prompt, most), router.app.placement
    if name == "skyrl":
        sky = type("Ours", (SkyRLRouting, trainers.SkyRLRouter), {"words": words})(dict(servers))
        return lambda session, group, prompt, most: sky.generate(session, prompt, most), sky.placement
    prime = type("Ours", (PrimeRLScheduling, trainers.PrimeRLScheduler), {"words": words})(dict(servers))
    return lambda session, group, prompt, most: prime.generate(group, prompt, most), prime.placement


async def replay(
    name: str, words: tuple[str, ...] = WORDS, workload: Workload | None = None
) -> dict[str, Any]:
    """Replays the batches through a trainer; returns what came of it."""
    rows = batches() if workload is None else workload
    assert rows.after is not None
    assert rows.after_offsets is not None
    assert rows.delay_s is not None
    servers = {f"http://server-{number}": SimulatedServer(number) for number in range(NUM_SERVERS)}
    generate, placement = trainer(name, servers, words)
    prompts, ended = Prompts(rows, 32_000), [asyncio.Event() for _ in range(len(rows))]
    first_turn = np.arange(len(rows))  # trajectory of each row, by its first
    for row in range(len(rows)):
        before = rows.after[rows.after_offsets[row] : rows.after_offsets[row + 1]]
        if len(before) == 1:  # the turn before; a batch waits for many
            first_turn[row] = first_turn[before[0]]

    async def turn(row: int) -> list[int]:
        for before in rows.after[rows.after_offsets[row] : rows.after_offsets[row + 1]]:
            await ended[before].wait()
        await asyncio.sleep(float(rows.delay_s[row]) / SPEED)
        first = int(first_turn[row])
        tokens = await generate(str(first), first // 4, prompts.token_ids(row), int(rows.output_tokens[row]))
        ended[row].set()
        return tokens

    answers = await asyncio.gather(*map(turn, range(len(rows))))
    complete = sum(len(answer) == length for answer, length in zip(answers, rows.output_tokens, strict=True))
    later = np.flatnonzero(rows.num_awaited == 1)  # turns of a trajectory after its first
    stayed = [answers[row][0] == answers[rows.after[rows.after_offsets[row]]][0] for row in later]
    return {
        "trainer": name,
        "turns": len(rows),
        "complete": complete,
        "stayed_on_its_server": round(float(np.mean(stayed)), 2),
        "served": [server.served for server in servers.values()],
        "most_at_once": max(server.most for server in servers.values()),
        "in_flight_at_the_end": sum(placement.view.requests_at(place) for place in range(NUM_SERVERS)),
        **Counter(placement.counts),
    }


def main(names: list[str]) -> None:
    """Replays and prints."""
    for name in names or TRAINERS:
        print(asyncio.run(replay(name)))


if __name__ == "__main__":
    main(sys.argv[1:])
