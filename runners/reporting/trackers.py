"""Where figures of a run go besides its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.runners.configuration.schema import TrackerConfig


class Tracker(Protocol):
    """Takes figures as they come; used with `with`."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Figures at a step. Call it once a rollout, not once a decision: W&B offline takes about 4,000 a second."""
        ...

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Figures of the whole run."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NoTracker:
    """Keeps nothing."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Does nothing."""

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class TensorBoardTracker(NoTracker):
    """Event files in `DIRECTORY/tensorboard`."""

    def __init__(self, config: TrackerConfig, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory / "tensorboard" / (config.run_name or "")))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Writes scalars at step 0, under `summary/`."""
        self.log({f"summary/{name}": value for name, value in metrics.items()}, 0)

    def __exit__(self, *error: object) -> None:
        self._writer.close()


class WandbTracker(NoTracker):
    """A Weights & Biases run; offline it is a folder in the run directory and needs no account."""

    def __init__(self, config: TrackerConfig, directory: Path, run_config: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.run_name,
            tags=list(config.tags),
            mode=config.mode,  # type: ignore[arg-type]
            dir=str(directory),
            config=to_jsonable(run_config),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends one row."""
        self._run.log(dict(metrics), step=step)

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Fills the run's summary."""
        self._run.summary.update(to_jsonable(metrics))

    def __exit__(self, kind: object = None, *error: object) -> None:
        self._run.finish(exit_code=0 if kind is None else 1)


def make_tracker(config: TrackerConfig, directory: Path, run_config: Mapping[str, Any]) -> Tracker:
    """The tracker asked for.

    Args:
        config: which one, and its settings.
        directory: the run's.
        run_config: settings of the run, to be stored with it.
    """
    if config.name == "tensorboard":
        return TensorBoardTracker(config, directory)
    if config.name == "wandb":
        return WandbTracker(config, directory, run_config)
    return NoTracker()
