"""Spaces of an environment as JSON, and whether a setting has the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.dp_tp.action import num_actions
from envs.policy_spec import PolicySpec

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


def check_setting(name: str, observation: spaces.Dict, action: spaces.Discrete, spec: PolicySpec) -> None:
    """Refuses a cluster of another size than the one trained on.

    Raises:
        ValueError: says what differs.
    """
    rows = (observation["engines"].shape or (0,))[0]
    if spec.num_base != rows or num_actions(spec.num_base) != int(action.n):
        raise ValueError(
            f"policy {name!r} was trained on a node of {rows} base engines ({int(action.n)} actions), "
            f"this one has {spec.num_base} ({num_actions(spec.num_base)} actions)"
        )


def check_observation(name: str, space: spaces.Dict, observation: Mapping[str, Any]) -> None:
    """Refuses an observation of another shape than those trained on.

    Raises:
        ValueError: says what differs.
    """
    expected = {key: tuple(box.shape or ()) for key, box in space.spaces.items()}
    given = {key: tuple(np.shape(value)) for key, value in observation.items()}
    if given != expected:
        raise ValueError(
            f"policy {name!r} was trained on observations of shape {_shown(expected)}, this environment's are "
            f"{_shown(given)}: another number of request classes, or another version of the environment"
        )


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{key} {'x'.join(map(str, shape))}" for key, shape in sorted(shapes.items()))
