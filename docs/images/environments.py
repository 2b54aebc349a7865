"""Draws a picture of each environment, NAME.png: an episode of its default task under a heuristic, some way in.

python docs/images/environments.py
"""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
from matplotlib.image import imsave

import serving_gym
from serving_gym.envs.registration import ENVS

# Policy, and decisions before the picture.
SHOWN = {
    "dp_tp": ("prompt_threshold_default_tuned", 598),
    "routing": ("linear_score_tuned", 1500),
    "deployment": ("dynamo_tuned", 22),
    "autoscaling": ("hpa_rate_tuned", 240),
    "sharing": ("place_score_tuned", 2000),
}


def draw(name: str, policy_name: str, decisions: int) -> None:
    """Draws one environment."""
    env = gym.make(ENVS[name].env_id, split="test", render_mode="rgb_array").unwrapped
    policy = serving_gym.load_policy(policy_name)
    observation, _ = env.reset(seed=0)
    policy.reset(env.policy_spec, 0)
    for _ in range(decisions):
        observation, _, terminated, truncated, _ = env.step(policy.act(observation, env.state))
        if terminated or truncated:
            raise ValueError(f"{name}: the episode ends before {decisions} decisions")
    imsave(Path(__file__).with_name(f"{name}.png"), env.render())


if __name__ == "__main__":
    for name, (policy_name, decisions) in SHOWN.items():
        draw(name, policy_name, decisions)
