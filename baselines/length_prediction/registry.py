"""Every predictor of output lengths by name; free of torch until one is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving_gym.calibration.lookup import check_choice, load_attribute

if TYPE_CHECKING:
    from serving_gym.baselines.length_prediction.config import PredictorConfig
    from serving_gym.baselines.length_prediction.predictor import LengthPredictor


@dataclass(frozen=True)
class PredictorEntry:
    """Where a predictor is, each as "module:name".

    Attributes:
        predictor: its class.
        config: dataclass of its settings.
    """

    predictor: str
    config: str


PREDICTORS = {
    "preserve": PredictorEntry(
        "baselines.preserve.length_predictor.predictor:PreServeLengthPredictor",
        "baselines.preserve.length_predictor.config:PreServePredictorConfig",
    ),
    "mu_serve": PredictorEntry(
        "baselines.mu_serve.predictor:MuServeLengthPredictor",
        "baselines.mu_serve.config:MuServePredictorConfig",
    ),
}


def predictor_config_class(name: str) -> type[PredictorConfig]:
    """Dataclass of a predictor's settings.

    Raises:
        ValueError: there is no such predictor.
    """
    check_choice("predictor", name, PREDICTORS)
    found: type[PredictorConfig] = load_attribute(PREDICTORS[name].config)
    return found


def make_predictor(config: PredictorConfig) -> LengthPredictor[Any]:
    """A predictor with these settings, not fitted yet.

    Raises:
        ValueError: there is no such predictor.
    """
    check_choice("predictor", config.name, PREDICTORS)
    predictor: LengthPredictor[Any] = load_attribute(PREDICTORS[config.name].predictor)(config)
    return predictor


def load_predictor(checkpoint: str | Path, device: str = "auto") -> LengthPredictor[Any]:
    """The predictor in a checkpoint.

    Args:
        checkpoint: its folder, or that of the run which wrote it.
        device: "cpu", "cuda" or "auto".

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    from serving_gym.baselines.length_prediction.predictor import DESCRIPTION, read_description

    inside = Path(checkpoint) / "checkpoint"
    folder = inside if (inside / DESCRIPTION).is_file() else Path(checkpoint)
    description = read_description(folder)
    name = str(description["config"].get("name"))
    check_choice("predictor", name, PREDICTORS)
    predictor: LengthPredictor[Any] = load_attribute(PREDICTORS[name].predictor).load(
        folder, description, device
    )
    return predictor
