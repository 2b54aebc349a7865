"""DistilBERT with learnable prompt tokens and a regression head (section 4.2, figure 6)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PromptTunedDistilBert(nn.Module):
    """From token ids to one number: the length in units of a given scale.

    M learnable embeddings are appended to the embeddings of the text's tokens, behind [SEP]; where a text is shorter
    than its batch they follow the text, before the padding, so that a prediction does not depend on what it is batched
    with. They start as embeddings of random words of the vocabulary (Lester et al. 2021, whom the paper follows, found
    that better than noise). Embeddings and all layers but the last are frozen. The final hidden state of [CLS] goes
    through two linear layers with a ReLU between them (its kind is ours).

    Args:
        encoder: DistilBERT.
        num_prompt_tokens: M.
        head_width: hidden width of the head.
    """

    def __init__(self, encoder: Any, num_prompt_tokens: int, head_width: int) -> None:
        super().__init__()
        self.encoder = encoder
        encoder.requires_grad_(False)
        encoder.transformer.layer[-1].requires_grad_(True)
        words = encoder.embeddings.word_embeddings.weight
        drawn = torch.randint(len(words), (num_prompt_tokens,))
        self.prompts = nn.Parameter(words[drawn].detach().clone())
        last = nn.Linear(head_width, 1)
        nn.init.ones_(last.bias)  # begin near the scale
        self.head = nn.Sequential(nn.Linear(words.shape[1], head_width), nn.ReLU(), last)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Lengths in units of the scale, (B,), of ids and mask, each (B, T)."""
        rows, count = len(ids), len(self.prompts)
        embedded = torch.cat(
            [self.encoder.embeddings.word_embeddings(ids), self.prompts.expand(rows, -1, -1)], dim=1
        )
        present = torch.cat([mask, mask.new_ones(rows, count)], dim=1)
        order = torch.argsort(present, dim=1, descending=True, stable=True)  # text, prompt tokens, padding
        embedded = embedded.gather(1, order.unsqueeze(-1).expand(-1, -1, embedded.shape[-1]))
        hidden = self.encoder(
            inputs_embeds=embedded, attention_mask=present.gather(1, order)
        ).last_hidden_state
        lengths: Tensor = self.head(hidden[:, 0]).squeeze(-1)
        return lengths
