"""Spaces of an environment as JSON, and whether an observation is of the same shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

FILE = "spaces.json"


def spaces_to_json(observation: spaces.Dict, action: spaces.Discrete) -> str:
    """Both spaces as text."""
    boxes = {
        key: {
            "shape": list(box.shape or ()),
            "low": float(box.low.min()),
            "high": float(box.high.max()),
            "dtype": str(box.dtype),
        }
        for key, box in observation.spaces.items()
        if isinstance(box, spaces.Box)
    }
    return json.dumps({"observation": boxes, "action": {"n": int(action.n)}}, indent=1) + "\n"


def read_spaces(folder: Path) -> tuple[spaces.Dict, spaces.Discrete]:
    """The spaces that a checkpoint was trained on."""
    stored: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    boxes: dict[str, spaces.Space[Any]] = {
        key: spaces.Box(box["low"], box["high"], tuple(box["shape"]), np.dtype(box["dtype"]).type)
        for key, box in stored["observation"].items()
    }
    return spaces.Dict(boxes), spaces.Discrete(stored["action"]["n"])


def check_observation(
    name: str, space: spaces.Dict, observation: Mapping[str, Any], rows_of: str | None = None
) -> None:
    """Refuses an observation of another shape than those trained on.

    Args:
        name: Of the policy.
        space: What it was trained to see.
        observation: What it sees.
        rows_of: Part of which there may be any number of rows.

    Raises:
        ValueError: says what differs.
    """
    expected = {key: tuple(box.shape or ()) for key, box in space.spaces.items()}
    given = {key: tuple(np.shape(value)) for key, value in observation.items()}
    if rows_of is not None and len(given.get(rows_of, ())) == len(expected[rows_of]):
        expected[rows_of] = (given[rows_of][0], *expected[rows_of][1:])
    if given != expected:
        raise ValueError(
            f"policy {name!r} was trained on observations of shape {_shown(expected)}, this environment's are "
            f"{_shown(given)}: another number of request classes, or another version of the environment"
        )


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{key} {'x'.join(map(str, shape))}" for key, shape in sorted(shapes.items()))
