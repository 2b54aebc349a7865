"""An observation that is made when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


class LazyObservation(Mapping[str, FloatArray]):
    """An observation that is made when somebody looks; most baselines look at the state alone.

    Args:
        observe: Makes it.
    """

    def __init__(self, observe: Callable[[], Mapping[str, FloatArray]]) -> None:
        self._observe = observe
        self._made: Mapping[str, FloatArray] | None = None

    @property
    def made(self) -> Mapping[str, FloatArray]:
        """The observation."""
        if self._made is None:
            self._made = self._observe()
        return self._made

    def __getitem__(self, key: str) -> FloatArray:
        return self.made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)
