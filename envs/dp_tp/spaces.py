"""Observation and action space of the DP/TP environment."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from serving_gym.envs.base.spaces import box_space
from serving_gym.envs.dp_tp.action import num_actions
from serving_gym.envs.dp_tp.episode import DPTPEpisode
from serving_gym.envs.dp_tp.observation import HIGH


def make_spaces(episode: DPTPEpisode) -> tuple[spaces.Space[Any], spaces.Discrete]:
    """Observation and action space of a configuration."""
    return box_space(episode.encoder.shapes, HIGH), spaces.Discrete(num_actions(episode.num_base))
