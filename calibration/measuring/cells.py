"""Many noisy iterations of one kind become one figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from calibration.measuring.composition import Step

# An iteration this many times longer or shorter than the median of its kind is not the engine's doing: the machine
# stalled it, or the front end, which writes the log, fell behind and wrote several lines at once.
STALL_FACTOR = 3.0
LEAST_DECODE_STEPS = 16  # fewer of a kind are a load's ragged end


@dataclass(frozen=True, slots=True)
class Cell:
    """Iterations of one configuration that computed nearly the same.

    Attributes:
        load: Place of the configuration in the design.
        decoding: Requests decoded.
        context_tokens: Their mean context together, tokens.
        prompt_tokens: Tokens prefilled; 0: a pure decode iteration.
        pairs: Mean query-key pairs of the prefill.
        seconds: Mean time without stalls.
        count: Iterations that went into it.
        stalls: Iterations left out.
    """

    load: int
    decoding: int
    context_tokens: float
    prompt_tokens: int
    pairs: float
    seconds: float
    count: int
    stalls: int

    @property
    def kind(self) -> str:
        """`prefill_step` or `decode_step`, as in `validation.json`."""
        return "prefill_step" if self.prompt_tokens else "decode_step"


def cells_of(steps: Iterable[tuple[int, Step]]) -> list[Cell]:
    """Groups steps by configuration, batch and prompt tokens.

    Args:
        steps: (place of the configuration in the design, step).
    """
    groups: dict[tuple[int, int, int], list[Step]] = defaultdict(list)
    for load, step in steps:
        groups[load, step.decoding, step.prompt_tokens].append(step)
    cells = [_cell(key, group) for key, group in sorted(groups.items())]
    return [cell for cell in cells if cell.prompt_tokens or cell.count >= LEAST_DECODE_STEPS]


def _cell(key: tuple[int, int, int], steps: list[Step]) -> Cell:
    seconds = np.array([step.seconds for step in steps])
    median = np.median(seconds)
    kept = (seconds <= STALL_FACTOR * median) & (seconds >= median / STALL_FACTOR)
    rows = [step for step, keep in zip(steps, kept, strict=True) if keep]
    load, decoding, prompt_tokens = key
    return Cell(
        load=load,
        decoding=decoding,
        context_tokens=float(np.mean([step.context_tokens for step in rows])),
        prompt_tokens=prompt_tokens,
        pairs=float(np.mean([step.pairs for step in rows])),
        seconds=float(seconds[kept].mean()),
        count=len(rows),
        stalls=len(steps) - len(rows),
    )
