"""The score of a policy given as a Python file: `policy_score("mine.py", "routing_overload")`.

For searches over programs, by a language model or by any other operator. A program is run in a process of its own,
forked from the caller's, so that the environments are made and the kernel is loaded once for many programs. Whatever a
program does wrong is a score of minus infinity, with the reason in the artifacts. This is no sandbox: a program may
read and write what the caller may.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.configuration.make import as_words
from serving_gym.runners.scoring.blocks import ScoringBlock, blocks_of
from serving_gym.runners.scoring.program import run_program

SPLITS = ("train", "validation")  # the test split is for comparisons, opened once


@dataclass(frozen=True)
class Score:
    """What a program is worth.

    Attributes:
        score: Mean return over the blocks; minus infinity where the program failed.
        artifacts: `returns`, one a block; `metrics`, their means over the blocks by name (a latency of requests that
            were refused is infinite); `decisions` and `us_per_decision`; `output`, the end of what the program printed;
            or `error`, one sentence, with `traceback` where there is one. Of these only `us_per_decision` depends on
            the machine.
    """

    score: float
    artifacts: Mapping[str, Any] = field(default_factory=dict)


def policy_score(
    program: str | Path,
    task: str = "routing_overload",
    *,
    blocks: int = 4,
    first_seed: int = 0,
    split: str = "validation",
    short: bool = False,
    decision_s: float = 1.0,
    limit_s: float = 60.0,
    **words: Any,
) -> Score:
    """Evaluates a policy on blocks of a benchmark task.

    Args:
        program: A Python file with one policy class (`reset(spec, seed)`, `act(observation, state)`), or
            `file.py:Class` where it has several.
        task: A file of `configs/benchmark/task`.
        blocks: Episodes, divided among the workloads of the task; a seed each, `first_seed` and those that follow.
        first_seed: First seed.
        split: Split of the workloads: train or validation.
        short: Whether to play the short episodes that the task has for quick checks.
        decision_s: Longest time of one decision, seconds.
        limit_s: Longest time of all of it, seconds.
        words: Further words of `runners.compare`: `**{"workload.num_requests": 500}`.

    Returns:
        The score; the same for the same program, arguments and version.

    Raises:
        ValueError: An argument is not allowed or the task does not exist; never what the program does.
    """
    check_choice("split", split, SPLITS)
    for name, value in {"blocks": blocks, "decision_s": decision_s, "limit_s": limit_s}.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
    prepared = _prepared(task, blocks, first_seed, split, short, tuple(as_words(words)))
    return _run_apart(str(program), prepared, decision_s, limit_s)


@lru_cache(maxsize=4)
def _prepared(
    task: str, blocks: int, first_seed: int, split: str, short: bool, words: tuple[str, ...]
) -> tuple[ScoringBlock, ...]:
    """The blocks, with environments that have been begun once: forked processes find the kernel loaded."""
    found = blocks_of(task, blocks, first_seed, split, short, words)
    for env in {id(block.env): block.env for block in found}.values():
        env.reset(seed=first_seed)
        env.step(None)
    return found


def _run_apart(program: str, blocks: tuple[ScoringBlock, ...], decision_s: float, limit_s: float) -> Score:
    """Runs a program in a forked process, which is killed when its time is over."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, program, blocks, decision_s), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            return _failed(f"the program took longer than limit_s={limit_s:g} s")
        artifacts: dict[str, Any] = receiver.recv()
    except EOFError:
        process.join()
        return _failed(f"the program ended its process (exit code {process.exitcode})")
    finally:
        process.kill()
        process.join()
        receiver.close()
    if "error" in artifacts:
        return Score(-math.inf, artifacts)
    return Score(sum(artifacts["returns"]) / len(artifacts["returns"]), artifacts)


def _failed(reason: str) -> Score:
    return Score(-math.inf, {"error": reason})


def _send(sender: Connection, program: str, blocks: tuple[ScoringBlock, ...], decision_s: float) -> None:
    sender.send(run_program(program, blocks, decision_s))
    sender.close()
