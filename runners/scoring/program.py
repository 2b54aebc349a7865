"""Runs a program on blocks, in a process of its own."""

from __future__ import annotations

import contextlib
import inspect
import io
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from serving_gym.baselines.files import load_file
from serving_gym.baselines.fit import check_fits
from serving_gym.baselines.outside import make_outside
from serving_gym.baselines.policy import Policy, period_of
from serving_gym.runners.rollouts.rollout import run_episode
from serving_gym.runners.scoring.blocks import ScoringBlock

_SEED = 0  # of the generators that a program may use without seeding them
_OUTPUT = 2_000  # characters of what a program prints that are kept


class DecisionTimeout(BaseException):
    """A decision took too long; no `Exception`, so that a program does not catch it by the way."""


def run_program(program: str, blocks: Sequence[ScoringBlock], decision_s: float) -> dict[str, Any]:
    """The artifacts of a program (`score.Score`).

    Args:
        program: A file, or `file.py:Class`.
        blocks: Where it is played.
        decision_s: Longest time of one decision, seconds.
    """
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002 -- what a program may use
    output = io.StringIO()
    with _no_bytecode(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            artifacts = _play(program, blocks, decision_s)
        except DecisionTimeout:
            artifacts = {"error": f"a decision took longer than decision_s={decision_s:g} s"}
        except BaseException as error:  # noqa: BLE001 -- whatever a program does, it has a score
            said = f"{type(error).__name__}: {error}"
            artifacts = {"error": said, "traceback": traceback.format_exc()}
    return artifacts | {"output": output.getvalue()[-_OUTPUT:]}


def _play(program: str, blocks: Sequence[ScoringBlock], decision_s: float) -> dict[str, Any]:
    name = _class_in(program)
    episodes = []
    for block in blocks:
        with limited(decision_s):
            policy = make_outside(name, {})
        if policy.clairvoyant:
            raise ValueError("a program that is scored must not be clairvoyant")
        check_fits(program, policy, block.env_name)
        episodes.append(run_episode(block.env, _Limited(policy, decision_s), block.seed, policy.name))
    names = episodes[0].metrics
    return {
        "returns": [float(episode.metrics["return"]) for episode in episodes],
        "metrics": {name: float(np.mean([each.metrics[name] for each in episodes])) for name in names},
        "decisions": sum(len(episode.decisions) for episode in episodes),
        "us_per_decision": float(np.mean([episode.us_per_decision for episode in episodes])),
    }


def _class_in(program: str) -> str:
    """`file.py:Class` of a file's only policy.

    Raises:
        ValueError: There is no such file, or it has no policy, or several.
    """
    if not program.endswith(".py"):
        return program
    module = load_file(program)
    own = [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and all(callable(getattr(value, method, None)) for method in ("reset", "act"))
    ]
    if len(own) != 1:
        held = ", ".join(own) or "none"
        raise ValueError(
            f"{Path(program).name} must have one class with reset and act, it has {held}; say file.py:Class"
        )
    return f"{program}:{own[0]}"


class _Limited:
    """A policy whose calls must not take longer than a limit."""

    def __init__(self, policy: Policy, limit_s: float) -> None:
        self._policy, self._limit_s = policy, limit_s
        self.name, self.clairvoyant = policy.name, policy.clairvoyant
        self.period_s = period_of(policy)

    def reset(self, spec: Any, seed: int) -> None:
        with limited(self._limit_s):
            self._policy.reset(spec, seed)

    def act(self, observation: Any, state: Any) -> Any:
        with limited(self._limit_s):
            return self._policy.act(observation, state)


@contextlib.contextmanager
def limited(limit_s: float) -> Iterator[None]:
    """Ends what runs in it after some time.

    Args:
        limit_s: The time, seconds; in the main thread alone.

    Raises:
        DecisionTimeout: It is over.
    """

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise DecisionTimeout

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _no_bytecode() -> Iterator[None]:
    """Compiles what is imported anew: bytecode is told by second and length, and two programs may have both alike."""
    before = sys.dont_write_bytecode, sys.pycache_prefix
    with tempfile.TemporaryDirectory() as folder:
        sys.dont_write_bytecode, sys.pycache_prefix = True, folder
        try:
            yield
        finally:
            sys.dont_write_bytecode, sys.pycache_prefix = before
