"""Trackers of metrics, pictures and checkpoints of a run, in addition to its directory.

Curves are few and grouped by prefix: `train/...`, `validation/...`, `comparison/...`, `evaluation/...`.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import yaml

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.runners.configuration.schema import TrackerConfig
from serving_gym.runners.reporting.output import write_json

COMPARED_METRICS = ("return", "slo_attainment", "ttft_p99_s")  # of each policy of a comparison
STATE = "tracker.json"  # in the run directory: id with which a resumed run continues the same W&B run
_WANDB_MODE = "WANDB_MODE"
_WANDB_MODES = ("online", "offline", "disabled", "shared")


class Tracker(Protocol):
    """Base class of trackers; a context manager."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs metrics at a step. Call it once per rollout, not per decision: W&B offline takes about 4,000 calls/s."""
        ...

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Logs metrics of the whole run."""
        ...

    def picture(self, name: str, path: Path, step: int) -> None:
        """Logs a PNG file."""
        ...

    def checkpoint(self, name: str, folder: Path) -> None:
        """Logs a folder with a trained policy."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NoTracker:
    """Tracks nothing."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Does nothing."""

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Does nothing."""

    def picture(self, name: str, path: Path, step: int) -> None:
        """Does nothing."""

    def checkpoint(self, name: str, folder: Path) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class TensorBoardTracker(NoTracker):
    """Event files in `DIRECTORY/tensorboard`.

    Args:
        config: Settings.
        directory: Run directory.
        run_config: Resolved settings of the run, shown as text.
        from_step: Entries of an interrupted run from this step on are dropped.
    """

    def __init__(
        self, config: TrackerConfig, directory: Path, run_config: Mapping[str, Any], from_step: int = 0
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = directory / "tensorboard" / (config.run_name or "")
        self._writer: Any = SummaryWriter(str(folder), purge_step=from_step + 1 if from_step else None)
        self._last_step = from_step
        text = yaml.safe_dump(to_jsonable(run_config), sort_keys=False)
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()), from_step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes scalars."""
        self._last_step = step
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Writes scalars at the last step."""
        self.log(metrics, self._last_step)

    def picture(self, name: str, path: Path, step: int) -> None:
        """Writes an image."""
        from matplotlib.image import imread

        self._writer.add_image(name, imread(path), step, dataformats="HWC")

    def checkpoint(self, name: str, folder: Path) -> None:
        """Writes its path; TensorBoard stores no files."""
        self._writer.add_text(name, str(folder), self._last_step)

    def __exit__(self, *error: object) -> None:
        self._writer.close()


class WandbTracker(NoTracker):
    """A Weights & Biases run; offline it is a folder in the run directory and needs no account.

    The id of the run is in `tracker.json`; a command that resumes in the same directory resumes the same W&B run.

    Args:
        config: Settings.
        directory: Run directory.
        run_config: Resolved settings of the run.
    """

    def __init__(self, config: TrackerConfig, directory: Path, run_config: Mapping[str, Any]) -> None:
        import wandb

        mode = wandb_mode(config)
        self._wandb = wandb
        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.run_name,
            group=config.group or _group(run_config),
            id=_run_id(directory),
            resume="allow" if mode == "online" else None,
            tags=list(config.tags),
            mode=mode,  # type: ignore[arg-type]
            dir=str(directory),
            config=to_jsonable(run_config),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends one row."""
        self._run.log(dict(metrics), step=step)

    def summary(self, metrics: Mapping[str, float]) -> None:
        """Fills the run's summary."""
        self._run.summary.update(to_jsonable(metrics))

    def picture(self, name: str, path: Path, step: int) -> None:
        """Sends an image."""
        self._run.log({name: self._wandb.Image(str(path))}, step=step)

    def checkpoint(self, name: str, folder: Path) -> None:
        """Sends an artifact of type model."""
        artifact = self._wandb.Artifact(f"{name}-{self._run.id}", type="model")
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact)

    def __exit__(self, kind: object = None, *error: object) -> None:
        self._run.finish(exit_code=0 if kind is None else 1)


def wandb_mode(config: TrackerConfig) -> str:
    """The mode of W&B; the environment variable `WANDB_MODE` overrides `tracker.mode`.

    Raises:
        ValueError: the environment variable has a value that W&B does not know.
    """
    given = os.environ.get(_WANDB_MODE)
    if not given:
        return config.mode
    check_choice(_WANDB_MODE, given, _WANDB_MODES)
    if given != config.mode:
        print(f"{_WANDB_MODE}={given} overrides tracker.mode={config.mode}.", file=sys.stderr, flush=True)
    return given


def _run_id(directory: Path) -> str:
    """Id of the W&B run of a run directory; created at the first call."""
    path = directory / STATE
    if not path.is_file():
        write_json(path, {"wandb_id": uuid.uuid4().hex[:12]})
    return str(json.loads(path.read_text(encoding="utf-8"))["wandb_id"])


def _group(run_config: Mapping[str, Any]) -> str | None:
    """Group name shared by runs of the same environment and agent, or policy."""
    parts = [run_config.get(key) for key in ("env", "agent", "policy")]
    names = [str(part["name"]) for part in parts if isinstance(part, Mapping) and "name" in part]
    return "-".join(names) or None


def compared_curves(comparison: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a comparison that a tracker shows, as `comparison/METRIC/POLICY`."""
    return {
        f"comparison/{metric}/{name}": policy["metrics"][metric]["iqm"]
        for metric in COMPARED_METRICS
        for name, policy in comparison["policies"].items()
    }


def make_tracker(
    config: TrackerConfig, directory: Path, run_config: Mapping[str, Any], from_step: int = 0
) -> Tracker:
    """The tracker of a configuration.

    Args:
        config: its name and settings.
        directory: run directory.
        run_config: settings of the run, to be stored with it.
        from_step: step from which a resumed run continues.
    """
    if config.name == "tensorboard":
        return TensorBoardTracker(config, directory, run_config, from_step)
    if config.name == "wandb":
        return WandbTracker(config, directory, run_config)
    return NoTracker()
