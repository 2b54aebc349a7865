"""PreServe's request load predictor (section 4.2): a prompt-tuned DistilBERT regresses the response length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import l1_loss

from serving_gym.baselines.length_prediction.encoder import DISTILBERT
from serving_gym.baselines.length_prediction.predictor import LengthPredictor
from serving_gym.baselines.preserve.length_predictor.augmentation import augment
from serving_gym.baselines.preserve.length_predictor.config import PreServePredictorConfig
from serving_gym.baselines.preserve.length_predictor.network import PromptTunedDistilBert
from serving_gym.baselines.preserve.length_predictor.synonyms import load_synonyms


class PreServeLengthPredictor(LengthPredictor[PreServePredictorConfig]):
    """Regression on the semantics of the prompt, trained on data balanced over response lengths.

    Lengths are learned in units of the mean training length, with the absolute error as loss, the measure of Table 2;
    of a prompt longer than the encoder reads, the beginning is kept (source of all three: ours).
    """

    config_class = PreServePredictorConfig
    family = DISTILBERT
    keep = "head"

    def augmented(
        self, prompts: Sequence[str], lengths: NDArray[np.float64], rng: np.random.Generator
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Training data with rare lengths filled up."""
        config = self.config
        synonyms = {} if config.synonyms is None else load_synonyms(config.synonyms)
        self.notes |= {"synonyms": len(synonyms)}
        return augment(
            prompts,
            lengths,
            rng,
            num_buckets=config.num_buckets,
            fill_share=config.fill_share,
            replaced_share=config.replaced_share,
            synonyms=synonyms,
        )

    def learn_scale(self, lengths: NDArray[np.float64]) -> dict[str, Any]:
        """The mean length, tokens."""
        return {"mean_tokens": float(lengths.mean())}

    def make_network(self, encoder: nn.Module, scale: dict[str, Any]) -> nn.Module:
        """The encoder with prompt tokens and head."""
        return PromptTunedDistilBert(encoder, self.config.num_prompt_tokens, self.config.head_width)

    def loss(self, output: Tensor, lengths: Tensor) -> Tensor:
        """Mean absolute error in units of the scale."""
        return l1_loss(output, lengths / self.scale["mean_tokens"])

    def lengths_of(self, output: Tensor) -> Tensor:
        """Tokens."""
        return output * float(self.scale["mean_tokens"])

    @property
    def max_text_tokens(self) -> int:
        """What the prompt tokens leave of the encoder's positions."""
        return self.config.max_tokens - self.config.num_prompt_tokens
