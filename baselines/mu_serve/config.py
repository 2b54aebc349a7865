"""Constants of mu-Serve's length predictor; sources in the package's docstring."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from serving_gym.baselines.length_prediction.config import PredictorConfig
from serving_gym.calibration.fields import check_at_least, check_not_negative


@dataclass(frozen=True, kw_only=True)
class MuServePredictorConfig(PredictorConfig):
    """Settings of `MuServeLengthPredictor`.

    Attributes:
        encoder: folder of a pretrained BERT; None: a tiny random one.
        percentiles: where the buckets end, in ascending order.
        head_width: hidden width of the multilayer perceptron.
        tuned_epochs: passes after which BERT is frozen and only the perceptron learns.
    """

    name: str = "mu_serve"
    epochs: int = 6
    batch_size: int = 16
    learning_rate: float = 1e-5
    percentiles: tuple[float, ...] = (25.0, 50.0, 75.0, 99.0)
    head_width: int = 128
    tuned_epochs: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = (0.0, *self.percentiles, 100.0)
        if not all(low < high for low, high in itertools.pairwise(ends)):
            raise ValueError(
                f"predictor.percentiles must be ascending and between 0 and 100, got {self.percentiles}"
            )
        check_at_least(self, 1, "head_width", prefix="predictor.")
        check_not_negative(self, "tuned_epochs", prefix="predictor.")
