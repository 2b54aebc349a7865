"""BERT with a multilayer perceptron over classes of length."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class BertClassifier(nn.Module):
    """From token ids to a score for each bucket, through the final hidden state of [CLS].

    Args:
        encoder: BERT.
        num_classes: buckets.
        head_width: hidden width of the perceptron.
    """

    def __init__(self, encoder: Any, num_classes: int, head_width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(
            nn.Linear(encoder.config.hidden_size, head_width),
            nn.ReLU(),
            nn.Linear(head_width, head_width),
            nn.ReLU(),
            nn.Linear(head_width, num_classes),
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Logits, (B, C), of ids and mask, each (B, T)."""
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        logits: Tensor = self.head(hidden[:, 0])
        return logits
