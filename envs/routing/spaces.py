"""Observation and action space of the routing environment."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from serving_gym.envs.base.spaces import box_space
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.observation import shapes_of
from serving_gym.envs.simulator.kernel.features import HIGHEST


def make_spaces(episode: RoutingEpisode) -> tuple[spaces.Space[Any], spaces.Discrete]:
    """Observation and action space of a configuration."""
    config = episode.config
    shapes = shapes_of(config.num_rows, len(episode.classes), config.admission)
    return box_space(shapes, HIGHEST), spaces.Discrete(config.num_actions)
