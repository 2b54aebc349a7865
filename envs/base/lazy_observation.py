"""An observation that is computed on first access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


class LazyObservation(Mapping[str, FloatArray]):
    """An observation that is computed on first access; most baselines read only the state.

    Args:
        observe: Computes the observation.
    """

    def __init__(self, observe: Callable[[], Mapping[str, FloatArray]]) -> None:
        self._observe = observe
        self._value: Mapping[str, FloatArray] | None = None

    @property
    def is_known(self) -> bool:
        """Whether it has been computed."""
        return self._value is not None

    @property
    def value(self) -> Mapping[str, FloatArray]:
        """The observation."""
        if self._value is None:
            self._value = self._observe()
        return self._value

    def __getitem__(self, key: str) -> FloatArray:
        return self.value[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)
