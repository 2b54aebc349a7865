"""Runs trainings side by side, each in a folder of its own, and goes on with those that were stopped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_gym.agents.checkpoint import LAST, standing
from serving_gym.runners.rollouts.processes import call_in_processes
from serving_gym.runners.training.loop import METRICS

LOG, DONE = "train.log", "comparison.json"
# The comparison at the end of each training: itself, once.
_CLOSING = ("baselines=[]", "seeds=1", "launcher.workers=1")


@dataclass(frozen=True)
class OneTraining:
    """A training of one agent with one seed.

    Attributes:
        agent: Name of its file in configs/agent.
        seed: Of weights, exploration and training episodes.
        folder: Its run directory.
        words: Further words of `runners.train`.
    """

    agent: str
    seed: int
    folder: Path
    words: tuple[str, ...]

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return (self.folder / DONE).is_file()

    @property
    def command(self) -> list[str]:
        """Words of `runners.train`, which go on with the training where it was stopped."""
        if standing(self.folder / LAST).is_dir():
            return [f"resume={self.folder}", *_CLOSING]
        return [*self.words, f"agent={self.agent}", f"seed={self.seed}", f"out={self.folder}", *_CLOSING]

    def validations(self) -> list[dict[str, Any]]:
        """Its validations in order, one a step: `steps`, `minutes`, `return` and other metrics."""
        lines = (self.folder / METRICS).read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(json.loads, lines) if row["kind"] == "validation"]
        return list({row["steps"]: row for row in rows}.values())


def run_trainings(trainings: Sequence[OneTraining], processes: int) -> Iterator[OneTraining]:
    """Runs what is not done yet; yields each training when it ends.

    Raises:
        ValueError: One failed; names its log.
    """
    left = [each for each in trainings if not each.done]
    if not left:
        return
    for position, failure in call_in_processes(_train, [(each,) for each in left], min(processes, len(left))):
        if failure:
            raise ValueError(
                f"the training in {left[position].folder} failed ({failure}); its output is in "
                f"{left[position].folder / LOG}"
            )
        yield left[position]


def _train(training: OneTraining) -> str:
    """Runs one training in this process; what it prints goes to its log.

    Returns:
        What went wrong; empty: nothing.
    """
    from serving_gym.runners import train

    training.folder.mkdir(parents=True, exist_ok=True)
    with (training.folder / LOG).open("a", encoding="utf-8") as log:
        status = _into(log, lambda: train.main(training.command))
    if status == 0:
        return ""
    said = (training.folder / LOG).read_text(encoding="utf-8").split("error: ")
    return said[-1].strip() if len(said) > 1 else f"exit status {status}"


def _into(log: Any, call: Any) -> int:
    """Calls a function while both outputs of this process go to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        status: int = call()
        sys.stdout.flush()
        sys.stderr.flush()
        return status
    finally:
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
