"""Observation and action space of the autoscaling environment."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from serving_gym.envs.autoscaling.episode import AutoscalingEpisode
from serving_gym.envs.autoscaling.observation import HIGH
from serving_gym.envs.base.spaces import box_space


def make_spaces(episode: AutoscalingEpisode) -> tuple[spaces.Space[Any], spaces.MultiDiscrete]:
    """Observation and action space of a configuration."""
    return box_space(episode.encoder.shapes, HIGH), spaces.MultiDiscrete(episode.levers.nvec)
