"""Token ids of prompts with exactly the lengths and shared prefixes of a workload."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload

FIRST_TOKEN_ID = 16  # below it lie the special tokens of many vocabularies
_OWN, _SHARED = 0, 1  # random streams: a request's own text, a shared block's


class Prompts:
    """Draws prompts.

    Args:
        workload: lengths and prefix blocks; equal block ids are equal text.
        vocab_size: token ids lie below it; at least 32.
        salt: changes every token, so that prefix caches of an earlier run do not hit.

    Raises:
        ValueError: the vocabulary is too small.
    """

    def __init__(self, workload: Workload, vocab_size: int, salt: int = 0) -> None:
        if vocab_size < 2 * FIRST_TOKEN_ID:
            raise ValueError(f"backend.vocab_size must be at least {2 * FIRST_TOKEN_ID}, got {vocab_size}")
        self.workload = workload
        self.vocab_size = vocab_size
        self.salt = salt
        self._known: dict[int, list[int]] = {}  # text of blocks that hold answers, by id

    def token_ids(self, row: int) -> list[int]:
        """Prompt of one request, (input_tokens,)."""
        length = int(self.workload.input_tokens[row])
        blocks = self._blocks(row)
        parts = [self._text(block) for block in blocks]
        shared: list[int] = [token for part in parts for token in part][:length]
        return shared + self._draw(_OWN, row, length - len(shared))

    def learn(self, row: int, answer: list[int], later: Iterable[int]) -> None:
        """Takes down an answer, so that prompts which go on from it hold its tokens.

        Whether one does is what block ids say: it has those of the prompt that are full. Its next ids name the answer,
        and what follows in their last block.

        Args:
            row: the request that was answered.
            answer: its answer's tokens.
            later: requests that may go on from it.
        """
        size, blocks = self.workload.hash_block_tokens, self._blocks(row)
        full, begun = divmod(int(self.workload.input_tokens[row]), size)
        text = self.token_ids(row) + answer
        ends = -(-len(text) // size)
        self._take_down(text, blocks, full + (begun > 0), ends)
        for other in later:
            theirs = self._blocks(other)
            if full and theirs[:full] == blocks[:full]:
                self._take_down(text, theirs, full, ends)

    def _take_down(self, text: list[int], blocks: list[int], first: int, last: int) -> None:
        """Blocks `first` to `last` - 1 of a prompt hold a text, and what they are drawn to hold where it ends."""
        size = self.workload.hash_block_tokens
        for number in range(first, min(last, len(blocks))):
            part = text[number * size : (number + 1) * size]
            self._known.setdefault(blocks[number], part + self._text(blocks[number])[len(part) :])

    def _text(self, block: int) -> list[int]:
        known = self._known.get(block)
        return self._draw(_SHARED, block, self.workload.hash_block_tokens) if known is None else known

    def _blocks(self, row: int) -> list[int]:
        offsets, ids = self.workload.hash_offsets, self.workload.hash_ids
        if offsets is None or ids is None:
            return []
        return [int(block) for block in ids[offsets[row] : offsets[row + 1]]]

    def _draw(self, stream: int, number: int, length: int) -> list[int]:
        rng = np.random.default_rng((self.salt, stream, number))
        tokens: list[int] = rng.integers(FIRST_TOKEN_ID, self.vocab_size, length).tolist()
        return tokens
