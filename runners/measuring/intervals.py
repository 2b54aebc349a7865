"""Runs of ordinary traffic in the log of the server that had them, cut into intervals of known length.

Requests of a run, with what they asked in the order in which they came, and the counts in the log leave one story
(`composition`); runs are looked for one after another, so the log may hold others between them. With asynchronous
scheduling the engine launches an iteration with prompts before it has seen the end of the one before, whose line then
comes late: lengths of single lines are off there, their sums are not. What is known are intervals, therefore: decode
iterations in a row, or all from the one before a prompt to the one after the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from serving_gym.runners.measuring.composition import ContradictionError, Step, Story, story_of
from serving_gym.runners.measuring.drive import Sent
from serving_gym.runners.measuring.loads import held_out
from serving_gym.runners.measuring.log import Iteration

DECODE_STEPS = 16  # of a interval without prompts, at most
LEAST_AFTER_UNKNOWN = 4  # iterations of a interval that follows one of unknown length
HELD_OUT_INTERVALS = 10  # that are kept out of a fit together


@dataclass(frozen=True)
class Run:
    """Requests that one server served, from an idle engine to the next.

    Attributes:
        name: What to call it.
        sent: Its requests in the order in which they came.
        ttft_s: Time to the first token of each at the client, s.
        tpot_s: Mean time between its tokens there, s; NaN for an answer of one.
    """

    name: str
    sent: Sequence[Sent]
    ttft_s: Sequence[float]
    tpot_s: Sequence[float]


@dataclass(frozen=True)
class LoggedRun:
    """A run and what the log says of it."""

    run: Run
    story: Story


@dataclass(frozen=True, slots=True)
class Interval:
    """Iterations in a row whose length together is known.

    Attributes:
        steps: The iterations.
    """

    steps: tuple[Step, ...]

    @property
    def kind(self) -> str:
        """`prefill_stretch` if any of them has prompts, else `decode_stretch`."""
        return "prefill_stretch" if any(step.prompt_tokens for step in self.steps) else "decode_stretch"

    @property
    def seconds(self) -> float:
        """How long they took."""
        return sum(step.seconds for step in self.steps)


def match_runs(log: Sequence[Iteration], runs: Sequence[Run]) -> tuple[list[LoggedRun], list[str]]:
    """Finds runs in a log; what else the server did between them is passed over.

    Args:
        log: its lines.
        runs: in any order, but that of those that sent the same.

    Returns:
        What was found, and of each of the others why not.
    """
    found: list[LoggedRun] = []
    missing: list[str] = []
    taken: set[int] = set()
    for run in runs:
        try:
            place, logged = _first(log, run, taken)
        except ContradictionError as error:
            missing.append(f"{run.name}: {error}")
        else:
            found.append(logged)
            taken |= set(range(place, place + len(logged.story.steps)))
    return found, missing


def _first(log: Sequence[Iteration], run: Run, taken: set[int]) -> tuple[int, LoggedRun]:
    """Where a run begins, and what is told of it; else raises where the best of all beginnings ends."""
    best = ContradictionError("no line of the log can be its first")
    for place, iteration in enumerate(log):
        if iteration.decoding or not iteration.prompts or place in taken:
            continue
        try:
            return place, LoggedRun(run, story_of(run.sent, islice(log, place, None)))
        except ContradictionError as error:
            best = max(best, error, key=lambda each: each.after)
    raise best


def intervals_of(steps: Sequence[Step]) -> list[Interval]:
    """Cuts a run into intervals.

    An iteration of unknown length ends one and is left out. So is the one that follows, unless it is of some
    iterations: it begins with a line that comes as late as that of any iteration with prompts.
    """
    intervals: list[Interval] = []
    part: list[Step] = []
    after_unknown = False

    def close() -> None:
        nonlocal after_unknown
        if len(part) >= (LEAST_AFTER_UNKNOWN if after_unknown else 1):
            intervals.append(Interval(tuple(part)))
        part.clear()
        after_unknown = False

    for place, step in enumerate(steps):
        if math.isnan(step.seconds):
            close()
            after_unknown = True
            continue
        prompts_next = any(each.prompt_tokens for each in steps[place + 1 : place + 2])
        beside_prompts = step.prompt_tokens > 0 or prompts_next
        with_prompts = after_unknown or any(each.prompt_tokens for each in part)
        if prompts_next and not step.prompt_tokens and not with_prompts:
            close()  # this one belongs to the prompts after it
        part.append(step)
        with_prompts = with_prompts or step.prompt_tokens > 0
        if not beside_prompts and (with_prompts or len(part) >= DECODE_STEPS):
            close()
    close()
    return intervals


def split(intervals: Sequence[Interval]) -> tuple[list[Interval], list[Interval]]:
    """Those to fit to, and a quarter that is kept out, some neighbours at a time."""
    fitted: list[Interval] = []
    kept_out: list[Interval] = []
    for place, interval in enumerate(intervals):
        (kept_out if held_out(place // HELD_OUT_INTERVALS) else fitted).append(interval)
    return fitted, kept_out
