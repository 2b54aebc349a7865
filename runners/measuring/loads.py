"""The designed load: batches, contexts and prompt lengths swept one at a time and together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

DECODE_STEPS = 48
MIXED_PROMPT = 64  # prompt of the requests that decode beside prompts, tokens
HELD_OUT_SHARE = 0.25
_GOLDEN = (5**0.5 - 1.0) / 2.0
INJECTED = 4  # prompts sent one after another beside decoding requests


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine can take.

    Attributes:
        max_num_seqs: Most running requests.
        max_num_batched_tokens: Token budget of an iteration.
        max_model_len: Longest request, tokens.
        kv_tokens: KV cache, tokens.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """One configuration: requests that decode together, and prompts beside or instead of them.

    Attributes:
        decoding: Requests sent at once that decode until the load ends.
        prompt: Their prompt, tokens.
        output: Their answer, tokens.
        injected: Prompts sent for a single token each: one after another beside decoding requests, else all at once.
        injected_prompt: Their length, tokens.
    """

    decoding: int = 0
    prompt: int = 0
    output: int = 0
    injected: int = 0
    injected_prompt: int = 0

    @property
    def name(self) -> str:
        """The configuration in words."""
        parts = [f"decode {self.decoding}x{self.prompt}"] if self.decoding else []
        parts += [f"prefill {self.injected_prompt}"] if self.injected else []
        return " + ".join(parts)


def designed_loads(limits: Limits) -> list[Load]:
    """Every configuration, small ones first."""
    return [*_decode_loads(limits), *_prefill_loads(limits), *_mixed_loads(limits)]


def held_out(number: int) -> bool:
    """Whether the configuration at this place of the design is kept out of the fit: a quarter of them.

    Multiples of the golden ratio fall evenly and in step with no sweep, so that no length is always left out.
    """
    return (number * _GOLDEN + 0.5) % 1.0 < HELD_OUT_SHARE


def _decode_loads(limits: Limits) -> list[Load]:
    longest = limits.max_model_len - DECODE_STEPS - 1
    prompts = sorted({min(prompt, longest) for prompt in (32, longest // 8, longest // 3, longest)})
    loads = [
        Load(batch, prompt, DECODE_STEPS) for batch, prompt in product(_batches(limits.max_num_seqs), prompts)
    ]
    return [load for load in loads if load.decoding * (load.prompt + load.output) <= 0.9 * limits.kv_tokens]


def _prefill_loads(limits: Limits) -> list[Load]:
    lengths = _spread(limits.max_model_len - 2, 32)
    loads = []
    for length in lengths:
        count = min(max(-(-4 * limits.max_num_batched_tokens // length), 2), limits.max_num_seqs)
        fitting = int(0.9 * limits.kv_tokens) // (length + 1)
        loads.append(Load(injected=max(min(count, fitting), 1), injected_prompt=length))
    return loads


def _mixed_loads(limits: Limits) -> list[Load]:
    batches = [batch for batch in _batches(limits.max_num_seqs - 1) if batch in (1, 4) or batch > 8]
    loads = []
    for batch, length in product(batches, _spread(limits.max_model_len - 2, 16)[:-1]):
        chunks = -(-length // max(limits.max_num_batched_tokens - batch, 1))
        steps = INJECTED * (chunks + 12)
        load = Load(batch, MIXED_PROMPT, steps, INJECTED, length)
        if batch * (MIXED_PROMPT + steps) + length <= 0.9 * limits.kv_tokens:
            loads.append(load)
    return loads


def _batches(most: int) -> list[int]:
    """Powers of two, and the most."""
    batches = [1 << k for k in range(most.bit_length()) if 1 << k <= most]
    return sorted({*batches, most})


def _spread(longest: int, shortest: int) -> list[int]:
    """Lengths that grow two and a half times from one to the next."""
    lengths, length = [], float(shortest)
    while length < longest:
        lengths.append(int(length))
        length *= 2.5
    return [*lengths, longest]
