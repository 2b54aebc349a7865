"""Gymnasium environments for LLM serving decisions, and the worlds they are made in."""

from serving_gym.envs.registration import register_envs

register_envs()
