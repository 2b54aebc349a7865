"""Constants of PreServe's request load predictor."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.length_prediction.config import PredictorConfig
from serving_gym.calibration.fields import check_at_least, check_within


@dataclass(frozen=True, kw_only=True)
class PreServePredictorConfig(PredictorConfig):
    """Settings of `PreServeLengthPredictor`.

    Attributes:
        encoder: folder of a pretrained DistilBERT (section 4.2); None: a tiny random one.
        epochs: source: ours.
        batch_size: source: ours.
        learning_rate: source: ours.
        num_prompt_tokens: M, learnable prompt tokens; source: ours.
        head_width: hidden width of the two-layer feed-forward head; source: ours.
        num_buckets: N, evenly spaced buckets of response length; source: ours.
        fill_share: mu: smaller buckets are filled up to this share of the largest; 0.25 in section 4.2.
        replaced_share: share of words replaced by synonyms in an added prompt; "e.g., 15%" in section 4.2.
        synonyms: table of synonyms (see `synonyms`); None: added prompts are plain copies.
    """

    name: str = "preserve"
    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 2e-4
    num_prompt_tokens: int = 16
    head_width: int = 256
    num_buckets: int = 20
    fill_share: float = 0.25
    replaced_share: float = 0.15
    synonyms: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_prompt_tokens", "head_width", "num_buckets", prefix="predictor.")
        check_within(self, "[0, 1]", "fill_share", "replaced_share", prefix="predictor.")
        room = self.max_tokens - 3
        if self.num_prompt_tokens > room:
            raise ValueError(
                f"predictor.num_prompt_tokens must be at most {room}, to leave room for text, "
                f"got {self.num_prompt_tokens}"
            )
