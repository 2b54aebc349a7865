"""Texts as token ids, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# Longer texts are cut before they are tokenised: no token of BERT's vocabularies is longer than some twenty characters.
_CHARACTERS_PER_TOKEN = 20


def encode(tokenizer: Any, texts: Sequence[str], max_tokens: int, keep: str) -> list[list[int]]:
    """Token ids of each text, [CLS] first and [SEP] last.

    Args:
        tokenizer: of the encoder.
        texts: (N,).
        max_tokens: longest result, special tokens included.
        keep: "head" or "tail": which end of a longer text is kept.
    """
    room, characters = max_tokens - 2, max_tokens * _CHARACTERS_PER_TOKEN
    if keep == "head":
        part, inner = [text[:characters] for text in texts], slice(None, room)
    else:
        part, inner = [text[-characters:] for text in texts], slice(-room, None)
    ids = tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
    return [[tokenizer.cls_token_id, *row[inner], tokenizer.sep_token_id] for row in ids]


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows of ids filled up to the longest: ids and mask, each (B, T); the mask is 1 where there is a token."""
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[number, : len(row)] = 1
    return ids, mask
