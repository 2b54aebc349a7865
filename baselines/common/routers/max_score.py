"""llm-d's picker of the highest score."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class MaxScorePicker:
    """The highest score; of equal ones a counter picks in turns.

    llm-d-router's `max-score-picker`: the counter goes up at each decision with ties, and back to 0 when it reaches
    their number.
    """

    def __init__(self) -> None:
        self.turn = 0

    def pick(self, scores: NDArray[np.float64]) -> int:
        """Index of the one that is picked.

        Args:
            scores: (N,), N at least 1.
        """
        best = np.flatnonzero(scores == scores.max())
        if len(best) == 1:
            return int(best[0])
        pick = int(best[self.turn % len(best)])
        self.turn = self.turn + 1 if self.turn + 1 < len(best) else 0
        return pick
