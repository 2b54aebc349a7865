"""mu-Serve's length predictor: the median of the bucket into which BERT puts the prompt."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from serving_gym.baselines.length_prediction.encoder import BERT
from serving_gym.baselines.length_prediction.predictor import LengthPredictor
from serving_gym.baselines.mu_serve.buckets import Buckets, percentile_buckets
from serving_gym.baselines.mu_serve.config import MuServePredictorConfig
from serving_gym.baselines.mu_serve.network import BertClassifier


class MuServeLengthPredictor(LengthPredictor[MuServePredictorConfig]):
    """Classification into percentile buckets; sources and departures in the package's docstring."""

    config_class = MuServePredictorConfig
    family = BERT
    keep = "tail"

    @property
    def buckets(self) -> Buckets:
        """Buckets of the training lengths."""
        return Buckets(**{name: tuple(values) for name, values in self.scale.items()})

    def learn_scale(self, lengths: NDArray[np.float64]) -> dict[str, Any]:
        """The buckets."""
        buckets = percentile_buckets(lengths, self.config.percentiles)
        return {name: list(values) for name, values in asdict(buckets).items()}

    def make_network(self, encoder: nn.Module, scale: dict[str, Any]) -> nn.Module:
        """The encoder with a perceptron over the buckets."""
        return BertClassifier(encoder, len(scale["medians"]), self.config.head_width)

    def begin_epoch(self, epoch: int) -> None:
        """Freezes BERT when its passes are over."""
        if epoch == self.config.tuned_epochs:
            self.network.get_submodule("encoder").requires_grad_(False)

    def loss(self, output: Tensor, lengths: Tensor) -> Tensor:
        """Negative log-likelihood of the buckets, each weighted by one over its training samples."""
        labels = torch.from_numpy(self.buckets.of(lengths.double().cpu().numpy())).to(output.device)
        weight = 1.0 / output.new_tensor(self.buckets.counts)
        return cross_entropy(output, labels, weight=weight)

    def lengths_of(self, output: Tensor) -> Tensor:
        """Median of the most likely bucket, tokens."""
        return output.new_tensor(self.buckets.medians)[output.argmax(dim=-1)]
