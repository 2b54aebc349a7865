"""Spaces of an environment: as JSON, whether an observation is of the same shape, and what scores mean.

An action is a number (`Discrete`) or several, one a lever (`MultiDiscrete`). Either way a policy scores entries, those
of all levers one after another, and takes the highest possible one of each.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

FILE = "spaces.json"
ActionSpace = spaces.Discrete | spaces.MultiDiscrete


def entries(action: ActionSpace) -> tuple[int, ...]:
    """Entries of each lever."""
    if isinstance(action, spaces.Discrete):
        return (int(action.n),)
    return tuple(int(number) for number in action.nvec)


def highest(
    scores: NDArray[np.float32], masks: NDArray[np.bool_] | None, action: ActionSpace
) -> NDArray[np.int64]:
    """The first possible entry of the highest score of each lever: (N,), or (N, levers).

    Args:
        scores: (N, entries).
        masks: (N, entries), which are possible; None: all.
        action: What they are scores of.
    """
    if masks is not None:
        scores = np.where(masks, scores, -np.inf)
    if isinstance(action, spaces.Discrete):
        best: NDArray[np.int64] = scores.argmax(axis=1)
        return best
    levers = np.split(scores, np.cumsum(entries(action))[:-1], axis=1)
    return np.stack([lever.argmax(axis=1) for lever in levers], axis=1)


def one_hot(actions: NDArray[np.int64], action: ActionSpace) -> NDArray[np.float32]:
    """(N, entries), a 1 at the entry that is chosen of each lever.

    Args:
        actions: (N,), or (N, levers).
        action: What they are chosen from.
    """
    sizes = entries(action)
    rows = np.zeros((len(actions), sum(sizes)), np.float32)
    chosen = actions.reshape(len(actions), len(sizes)) + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    np.put_along_axis(rows, chosen.astype(np.int64), 1.0, axis=1)
    return rows


def plain_action(action: NDArray[np.int64] | np.int64) -> Any:
    """One episode's action as its environment takes it: a number, or a vector of them."""
    return int(action) if np.ndim(action) == 0 else np.asarray(action)


def spaces_to_json(observation: spaces.Dict, action: ActionSpace) -> str:
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
    discrete = isinstance(action, spaces.Discrete)
    proposed = {"n": int(action.n)} if discrete else {"nvec": list(entries(action))}  # type: ignore[union-attr]
    return json.dumps({"observation": boxes, "action": proposed}, indent=1) + "\n"


def read_spaces(folder: Path) -> tuple[spaces.Dict, ActionSpace]:
    """The spaces that a checkpoint was trained on."""
    stored: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    boxes: dict[str, spaces.Space[Any]] = {
        key: spaces.Box(box["low"], box["high"], tuple(box["shape"]), np.dtype(box["dtype"]).type)
        for key, box in stored["observation"].items()
    }
    proposed = stored["action"]
    action = spaces.Discrete(proposed["n"]) if "n" in proposed else spaces.MultiDiscrete(proposed["nvec"])
    return spaces.Dict(boxes), action


def check_observation(
    name: str,
    space: spaces.Dict,
    observation: Mapping[str, Any],
    rows_of: str | None = None,
    any_length: Collection[str] = (),
) -> None:
    """Checks that an observation has the shape of those trained on.

    Args:
        name: Of the policy.
        space: What it was trained to see.
        observation: Observation space.
        rows_of: Part of which there may be any number of rows.
        any_length: Vectors that may have another length than in training.

    Raises:
        ValueError: says what differs.
    """
    expected = {key: tuple(box.shape or ()) for key, box in space.spaces.items()}
    given = {key: tuple(np.shape(value)) for key, value in observation.items()}
    if rows_of is not None and len(given.get(rows_of, ())) == len(expected[rows_of]):
        expected[rows_of] = (given[rows_of][0], *expected[rows_of][1:])
    for key in any_length:
        expected[key] = given.get(key, expected[key])
    if given != expected:
        raise ValueError(
            f"policy {name!r} was trained on observations of shape {_shown(expected)}, this environment's are "
            f"{_shown(given)}: another number of request classes, or another version of the environment"
        )


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{key} {'x'.join(map(str, shape))}" for key, shape in sorted(shapes.items()))
