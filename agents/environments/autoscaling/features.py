"""What the network sees: one vector for an endpoint, one for each thing that may be done there, from the observation.

Endpoints are scored one by one by the same network.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.spaces import entries
from serving_gym.agents.learners.api.start import flagged
from serving_gym.envs.autoscaling.action import LEVERS, MACHINE, SPOT
from serving_gym.envs.autoscaling.config import AutoscalingScales
from serving_gym.envs.autoscaling.observation import CLOCK_FEATURES, ENDPOINT_FEATURES

FloatArray = NDArray[np.float32]
Actions = NDArray[np.int64]

_COLUMN = {name: number for number, name in enumerate(ENDPOINT_FEATURES)}
_SCALE = AutoscalingScales().instances
_LOADS = ("load_minute", "load_hour", "forecast_interval", "forecast_hour")
_LEAST = 0.25  # instances; below, a load on none is not told apart

ACTION_FEATURES = (
    "change",  # over the scale of instances
    "up",  # 1: more instances
    "down",  # 1: fewer
    "machines",  # 1: vacant machines first
    "level",  # release level over the number of levels less one
    "full_release",  # 1: the most eager level
    "level_change",  # of the release level, as a share
    "after",  # instances afterwards; log
    *(f"{name}_after" for name in _LOADS),  # load over the instances afterwards; log
)
ACTION_SIZE = len(ACTION_FEATURES)  # one more where the policy that was started from is shown
STATE_SIZE = len(CLOCK_FEATURES) + 2 * len(ENDPOINT_FEATURES)


def options(mask: NDArray[np.bool_], action: spaces.MultiDiscrete) -> list[Actions]:
    """What may be done at each endpoint, (K, 3) each: entries of its levers; to leave all as it is has one row a level.

    Args:
        mask: (sum of entries,), which entries are possible.
        action: The action space.
    """
    changes, ways, levels = entries(action)[:LEVERS]
    most = changes // 2
    found = []
    for own in mask.reshape(-1, changes + ways + levels):
        possible = np.flatnonzero(own[:changes])
        grid = np.stack(np.meshgrid(possible, np.arange(ways), np.arange(levels), indexing="ij"), axis=-1)
        rows = grid.reshape(-1, LEVERS).astype(np.int64)
        found.append(rows[(rows[:, 0] != most) | (rows[:, 1] == SPOT)])
    return found


def encode_state(observation: Mapping[str, FloatArray], endpoint: int) -> FloatArray:
    """(STATE_SIZE,), the clock, the endpoint, and the mean of all endpoints."""
    rows = observation["endpoints"]
    return np.concatenate([observation["clock"], rows[endpoint], rows.mean(axis=0)]).astype(np.float32)


def encode_actions(
    observation: Mapping[str, FloatArray],
    endpoint: int,
    rows: Actions,
    action: spaces.MultiDiscrete,
    started: bool = False,
) -> FloatArray:
    """(K, action_size), what entries of an endpoint's levers come to.

    Args:
        observation: The observation.
        endpoint: Which.
        rows: (K, 3) entries.
        action: The action space.
        started: Whether the last row is what the policy that was started from would do.
    """
    own = observation["endpoints"][endpoint].astype(np.float64)
    changes, _, levels = entries(action)[:LEVERS]
    change = rows[:, 0] - changes // 2
    level = rows[:, 2] / max(levels - 1, 1)
    present = _SCALE * (np.expm1(own[_COLUMN["running"]]) + np.expm1(own[_COLUMN["starting"]]))
    after = np.maximum(present + change, 0.0)
    load = np.expm1(own[[_COLUMN[name] for name in _LOADS]])
    columns = [
        change / _SCALE,
        change > 0,
        change < 0,
        rows[:, 1] == MACHINE,
        level,
        rows[:, 2] == levels - 1,
        level - own[_COLUMN["release_level"]],
        np.log1p(after / _SCALE),
        *np.log1p(load[:, None] / np.maximum(after, _LEAST)),
    ]
    features = np.stack(columns, axis=1).astype(np.float32)
    return flagged(features[:-1], features[-1]) if started else features
