"""Settings of predictors from text, free of torch, so that the command line can read them at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from serving_gym.calibration.fields import check_at_least, check_positive, check_within
from serving_gym.calibration.lookup import check_choice

DEVICES = ("auto", "cpu", "cuda")

Config = TypeVar("Config", bound="PredictorConfig")


@dataclass(frozen=True, kw_only=True)
class PredictorConfig:
    """What all predictors have in common.

    Attributes:
        name: of the predictor, in `baselines.length_prediction.registry.PREDICTORS`.
        encoder: folder of a pretrained encoder with its tokenizer, as the `transformers` package saves them; None: a
            tiny random one, untrained, which shows that the machinery runs and predicts little.
        tiny_layers: layers of the tiny encoder.
        tiny_width: its width.
        tiny_vocabulary: entries of the tokenizer built beside it, from the prompts to train on.
        epochs: passes over the training data.
        batch_size: prompts in a gradient step.
        learning_rate: of AdamW; falls linearly to 0.
        max_tokens: longest input of the encoder, tokens; what is longer is cut off.
        device: "cpu", "cuda", or "auto": CUDA where there is any.
    """

    name: str
    encoder: str | None = None
    tiny_layers: int = 2
    tiny_width: int = 32
    tiny_vocabulary: int = 2000
    epochs: int
    batch_size: int
    learning_rate: float
    max_tokens: int = 512
    device: str = "auto"

    def __post_init__(self) -> None:
        check_choice("predictor.device", self.device, DEVICES)
        check_at_least(self, 1, "tiny_layers", "tiny_width", "epochs", "batch_size", prefix="predictor.")
        check_at_least(self, 100, "tiny_vocabulary", prefix="predictor.")
        check_within(self, "[8, 512]", "max_tokens", prefix="predictor.")  # BERT has 512 positions
        check_positive(self, "learning_rate", prefix="predictor.")


def build_config(config_class: type[Config], values: dict[str, Any]) -> Config:
    """Settings from plain values, as a checkpoint holds them.

    Raises:
        ValueError: a setting that the predictor does not have, or a value that is not allowed.
    """
    known = [entry.name for entry in fields(config_class)]
    for key in values:
        check_choice("predictor setting", key, known)
    # JSON has lists where the settings have tuples.
    typed: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    return config_class(**typed)
