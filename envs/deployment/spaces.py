"""Observation and action space of the deployment environment."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from serving_gym.envs.base.spaces import box_space
from serving_gym.envs.deployment.episode import DeploymentEpisode
from serving_gym.envs.deployment.observation import HIGH


def make_spaces(episode: DeploymentEpisode) -> tuple[spaces.Space[Any], spaces.Discrete]:
    """Observation and action space of a configuration."""
    return box_space(episode.encoder.shapes, HIGH), spaces.Discrete(episode.config.num_candidates)
