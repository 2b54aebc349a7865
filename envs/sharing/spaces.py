"""Observation and action space of the sharing environment."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from serving_gym.envs.base.spaces import box_space
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.observation import HIGHEST, shapes_of


def make_spaces(episode: SharingEpisode) -> tuple[spaces.Space[Any], spaces.Discrete]:
    """Observation and action space of a configuration."""
    return box_space(shapes_of(episode.setting), HIGHEST), spaces.Discrete(episode.num_actions)
