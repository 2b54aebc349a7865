"""Configuration of `runners.train_predictor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from hydra.core.config_store import ConfigStore

from serving_gym.baselines.length_prediction.config import PredictorConfig
from serving_gym.baselines.length_prediction.registry import PREDICTORS, predictor_config_class
from serving_gym.calibration.fields import check_within
from serving_gym.runners.configuration.schema import check_least
from serving_gym.runners.configuration.typed import build, schema_of


@dataclass(frozen=True)
class TrainPredictorConfig:
    """Configuration of `runners.train_predictor`.

    Attributes:
        data: conversations in ShareGPT's form.
        predictor: name and settings of the predictor.
        out: run directory.
        tokenizer: folder of the tokenizer by which lengths are counted, that of the served LLM; None: words and
            punctuation marks.
        limit: conversations to read, from the beginning; None: all.
        test_share: share of the conversations, drawn at random, that are kept for testing.
        seed: of split, augmentation, weights and batches.
    """

    data: str
    predictor: Any
    out: str
    tokenizer: str | None = None
    limit: int | None = None
    test_share: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        check_least("seed", self.seed, 0)
        if self.limit is not None:
            check_least("limit", self.limit, 2)
        check_within(self, "(0, 1)", "test_share")

    @property
    def predictor_config(self) -> PredictorConfig:
        """The predictor's settings, typed."""
        config_class: type[PredictorConfig] = predictor_config_class(self.predictor["name"])
        return build(config_class, self.predictor, "predictor.")


def register_predictors() -> None:
    """Puts the schema of every predictor into Hydra's ConfigStore."""
    store = ConfigStore.instance()
    for name in PREDICTORS:
        node = schema_of(cast(Any, predictor_config_class(name)))
        store.store(group="schema/predictor", name=name, node=node)
