"""Spaces that all environments build in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces


def box_space(shapes: Mapping[str, tuple[int, ...]], high: float) -> spaces.Space[Any]:
    """A dictionary of float32 boxes from 0 to `high`.

    Args:
        shapes: Shape of each part.
        high: Upper bound of every entry.
    """
    boxes: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(0.0, high, shape, np.float32) for name, shape in shapes.items()
    }
    return spaces.Dict(boxes)
