"""Random workloads for one engine, as plain data that any driver can read: settings, requests, aborts.

Everything is small, so that what is rare in practice happens all the time: pools of a few dozen blocks that run dry,
budgets that one prompt exhausts, batches of two. Time is counted in steps, an iteration of the engine each. Prompts
grow on a tree: one may equal another, be its prefix, branch off it on a block's edge or inside a block, or continue
what another has generated (a later turn of a conversation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Settings:
    """What an engine is told, in vLLM's terms."""

    block_size: int  # tokens
    num_blocks: int  # of the pool, the null block included
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    chunked_prefill: bool
    long_prefill_token_threshold: int  # 0: none
    reserve_full_isl: bool
    policy: str  # "fcfs" or "priority"
    prefix_caching: bool
    async_scheduling: bool = False


@dataclass(frozen=True)
class Request:
    """A request: its tokens are the prompt's and then those that the model will generate."""

    step: int  # at which it arrives; with asynchronous scheduling, while the step before it runs
    arrival: int  # rank of its arrival time, which orders requests of one priority
    priority: int
    num_prompt_tokens: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Abort:
    """A client that hangs up, before a step or while the model runs it."""

    step: int
    request: int
    during: bool


@dataclass(frozen=True)
class Scenario:
    """A workload."""

    seed: int
    settings: Settings
    requests: tuple[Request, ...]
    aborts: tuple[Abort, ...]


def to_json(scenario: Scenario) -> dict[str, object]:
    """Plain data."""
    return asdict(scenario)


def from_json(data: dict) -> Scenario:
    """The inverse of `to_json`."""
    return Scenario(
        seed=data["seed"],
        settings=Settings(**data["settings"]),
        requests=tuple(Request(**{**row, "tokens": tuple(row["tokens"])}) for row in data["requests"]),
        aborts=tuple(Abort(**row) for row in data["aborts"]),
    )


def draw_scenario(seed: int, prefix_caching: bool) -> Scenario:
    """The workload of a seed."""
    random = np.random.default_rng([seed, prefix_caching])
    settings = _draw_settings(random, prefix_caching)
    requests = _draw_requests(random, settings)
    return Scenario(seed, settings, requests, _draw_aborts(random, requests))


def draw_scenarios(count: int, first_seed: int = 0, async_scheduling: bool = False) -> list[Scenario]:
    """Workloads by seed; every other one with prefix caching. With asynchronous scheduling nobody hangs up."""
    drawn = [draw_scenario(first_seed + i // 2, prefix_caching=i % 2 == 1) for i in range(count)]
    return [asynchronous(scenario) for scenario in drawn] if async_scheduling else drawn


def both_ways(count: int, first_seed: int = 0) -> list[Scenario]:
    """The same workloads, scheduled synchronously and asynchronously."""
    return draw_scenarios(count, first_seed) + draw_scenarios(count, first_seed, async_scheduling=True)


def asynchronous(scenario: Scenario) -> Scenario:
    """The same workload for an engine that schedules asynchronously, without aborts."""
    settings = replace(scenario.settings, async_scheduling=True)
    return replace(scenario, settings=settings, aborts=())


def _draw_settings(random: np.random.Generator, prefix_caching: bool) -> Settings:
    block_size = int(random.choice([1, 2, 4, 8, 16]))
    longest = int(random.integers(12, 120))  # tokens of the longest request
    blocks_of_longest = -(-longest // block_size)
    # From a pool that barely holds the longest request to one that seldom runs dry.
    blocks = int(blocks_of_longest * random.choice([1.0, 1.3, 1.6, 2.0, 3.0, 6.0]))
    seqs = int(random.integers(1, 9))
    budget = max(seqs, int(random.choice([seqs, 8, 16, 32, 64, 128])))
    chunked = bool(random.random() < 0.7)
    whole = longest + int(random.choice([0, 0, longest // 2, longest]))  # a budget that holds prompts whole
    settings = Settings(
        block_size=block_size,
        num_blocks=blocks + 1,
        max_num_batched_tokens=budget if chunked else max(seqs, whole),
        max_num_seqs=seqs,
        max_model_len=longest,
        chunked_prefill=chunked,
        long_prefill_token_threshold=min(longest, int(random.choice([0, 0, 0, 0, 1, 3, 7, 20]))),
        reserve_full_isl=bool(random.random() < 0.5),
        policy=str(random.choice(["fcfs", "priority"])),
        prefix_caching=prefix_caching,
    )
    return _tightened(random, settings) if random.random() < 0.2 else settings


def _tightened(random: np.random.Generator, settings: Settings) -> Settings:
    """Many urgent requests over little: some that were scheduled in a step give way in it to others behind them."""
    block_size = int(random.choice([1, 2, 4]))
    blocks = int(random.uniform(1.0, 2.0) * -(-settings.max_model_len // block_size))
    seqs = int(random.integers(3, 9))
    return replace(
        settings,
        block_size=block_size,
        num_blocks=blocks + 1,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + int(random.integers(0, 12)),
        chunked_prefill=True,
        long_prefill_token_threshold=min(settings.max_model_len, int(random.choice([0, 2, 5]))),
        reserve_full_isl=False,
        policy="priority",
    )


class _Tokens:
    """Names of tokens never used before."""

    def __init__(self) -> None:
        self.used = 0

    def fresh(self, count: int) -> tuple[int, ...]:
        self.used += count
        return tuple(range(self.used - count, self.used))


def _draw_requests(random: np.random.Generator, settings: Settings) -> tuple[Request, ...]:
    tokens = _Tokens()
    count = int(random.integers(4, 40))
    ranks = np.arange(count)
    if random.random() < 0.2:  # some reach the engine later than others that were sent after them
        ranks = np.argsort(ranks + random.uniform(0, 5, count)).argsort()
    pace = float(random.choice([0.3, 1.0, 3.0, 12.0]))  # steps between arrivals
    levels = int(random.choice([1, 2, 4]))
    requests: list[Request] = []
    step = 0
    for rank in ranks:
        step += int(random.choice([0, random.exponential(pace), random.exponential(2 * pace)]))
        if random.random() < 0.02:
            step += 60  # time to run empty
        chain, prompt = _draw_chain(random, settings, [request.tokens for request in requests], tokens)
        requests.append(Request(step, int(rank), int(random.integers(0, levels)), prompt, chain))
    return tuple(requests)


def _draw_chain(
    random: np.random.Generator, settings: Settings, earlier: Sequence[tuple[int, ...]], tokens: _Tokens
) -> tuple[tuple[int, ...], int]:
    """Tokens of a request and how many of them are its prompt."""
    longest = settings.max_model_len
    length = int(
        random.choice([random.integers(2, longest + 1), longest, random.integers(2, 2 + longest // 3)])
    )
    shared: tuple[int, ...] = ()
    if earlier and random.random() < 0.7:
        parent = earlier[int(random.integers(len(earlier)))]
        cut = int(random.integers(1, len(parent) + 1))
        if random.random() < 0.5:
            cut -= cut % settings.block_size
        kind = random.random()
        shared = parent if kind < 0.25 else parent[:cut]
        if kind < 0.1:  # the very same tokens; where the prompt ends is drawn anew
            length = len(parent)
    shared = shared[:length]
    chain = shared + tokens.fresh(length - len(shared))
    prompt = int(random.integers(1, length))
    if random.random() < 0.3:  # a long prompt, at the edge of a block where that is near
        prompt = max(prompt, length - int(random.integers(1, 1 + max(1, length // 3))))
        prompt -= prompt % settings.block_size if random.random() < 0.5 else 0
    return chain, max(1, prompt)


def _draw_aborts(random: np.random.Generator, requests: Sequence[Request]) -> tuple[Abort, ...]:
    share = float(random.choice([0.0, 0.1, 0.4]))
    aborts = [
        Abort(
            request.step + int(random.choice([0, random.integers(0, 6), random.integers(0, 60)])),
            number,
            bool(random.random() < 0.5),
        )
        for number, request in enumerate(requests)
        if random.random() < share
    ]
    return tuple(sorted(aborts, key=lambda abort: abort.step))
