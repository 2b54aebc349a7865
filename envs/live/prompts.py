"""Token ids of prompts with exactly the lengths and shared prefixes of a workload."""

from __future__ import annotations

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

    def token_ids(self, row: int) -> list[int]:
        """Prompt of one request, (input_tokens,)."""
        length = int(self.workload.input_tokens[row])
        blocks = self._blocks(row)
        parts = [self._draw(_SHARED, block, self.workload.hash_block_tokens) for block in blocks]
        shared: list[int] = [token for part in parts for token in part][:length]
        return shared + self._draw(_OWN, row, length - len(shared))

    def _blocks(self, row: int) -> list[int]:
        offsets, ids = self.workload.hash_offsets, self.workload.hash_ids
        if offsets is None or ids is None:
            return []
        return [int(block) for block in ids[offsets[row] : offsets[row + 1]]]

    def _draw(self, stream: int, number: int, length: int) -> list[int]:
        rng = np.random.default_rng((self.salt, stream, number))
        tokens: list[int] = rng.integers(FIRST_TOKEN_ID, self.vocab_size, length).tolist()
        return tokens
