"""How far observations lie outside what training saw, for checkpoints that store the range of their features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.lazy_observation import LazyObservation

Range = tuple[NDArray[np.float32], NDArray[np.float32]]  # least and largest value of each feature
_WEIGHTS = "weights.pt"
_LOW, _HIGH = "low_", "high_"  # buffers of `agents.networks.networks.RowNetwork`


def training_ranges(policy: Mapping[str, Any]) -> dict[str, Range] | None:
    """Range of each part of the observation in training; None: the policy does not store it.

    Args:
        policy: The `policy` config group.
    """
    from serving_gym.agents.checkpoint import find_checkpoint, is_saved_model

    path = policy.get("path")
    if path is None or is_saved_model(str(path)):
        return None
    file = Path(find_checkpoint(str(path))) / _WEIGHTS
    if not file.is_file():
        return None
    import torch

    weights = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(weights, Mapping):
        return None
    ranges: dict[str, Range] = {}
    for member in weights.get(
        "members", [weights]
    ):  # of several trainings that were joined: what any of them saw
        for part, (low, high) in _ranges_in(member).items():
            known = ranges.get(part, (low, high))
            ranges[part] = np.minimum(known[0], low), np.maximum(known[1], high)
    return ranges or None


def _ranges_in(weights: Mapping[str, Any]) -> dict[str, Range]:
    """Ranges among the weights of one network."""
    found: dict[str, Range] = {}
    for key in weights:
        head, dot, tail = str(key).rpartition(".")
        part = tail.removeprefix(_LOW)
        high = weights.get(f"{head}{dot}{_HIGH}{part}")
        if part != tail and high is not None:
            found[part] = weights[key].numpy(), high.numpy()
    return found


def outside(observation: LazyObservation, ranges: Mapping[str, Range] | None) -> dict[str, int] | None:
    """Number of values of each feature outside its range, as `part.column`; features without any are left out.

    Args:
        observation: The observation.
        ranges: Range of each part; None: not known.

    Returns:
        None: The observation was not read, or the ranges are not known.
    """
    if not ranges or not observation.is_known:
        return None
    counts: dict[str, int] = {}
    for part, (low, high) in ranges.items():
        values = np.atleast_2d(observation[part])
        beyond = ((values < low) | (values > high)).sum(axis=0)
        counts |= {f"{part}.{column}": int(beyond[column]) for column in np.flatnonzero(beyond).tolist()}
    return counts
