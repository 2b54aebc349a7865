"""The loops that people bring along, unchanged, on all five environments: Stable-Baselines3 and CleanRL."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import FlattenObservation, NormalizeReward, RecordEpisodeStatistics
from stable_baselines3 import PPO
from torch import nn
from torch.distributions import Categorical

from serving_gym.envs.registration import ENVS
from tests.environments.cases import CASES, NAMES, entries


@pytest.mark.parametrize("name", NAMES)
def test_stable_baselines(name):
    """Training, then the loop of its documentation: `predict` gives a 0-dimensional array, or a vector of levers."""
    env = gym.make(ENVS[name].env_id, **CASES[name])
    model = PPO("MultiInputPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu")
    model.learn(total_timesteps=16)
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        action, _ = model.predict(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert np.isfinite(reward)
        if terminated or truncated:
            observation, _ = env.reset()


class Agent(nn.Module):
    """CleanRL's actor and critic, for one lever or several."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.widths = entries(envs.single_action_space)
        self.vector = envs.single_action_space.shape != ()
        width = int(np.prod(envs.single_observation_space.shape))
        self.critic = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, sum(self.widths)))

    def act(self, seen: torch.Tensor, action: torch.Tensor | None = None):
        levers = [Categorical(logits=part) for part in self.actor(seen).split(self.widths, dim=-1)]
        if action is None:
            action = torch.stack([lever.sample() for lever in levers], dim=-1)
        logs = sum(lever.log_prob(action[..., i]) for i, lever in enumerate(levers))
        return action, logs, self.critic(seen)[..., 0]


class Flattened(gym.vector.VectorWrapper):
    """Gymnasium's own wrapper of observations takes no SAME_STEP environment (1.4); this one is as short."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.single_observation_space = gym.spaces.flatten_space(env.single_observation_space)

    def flat(self, observation: dict[str, np.ndarray], lead: int) -> np.ndarray:
        parts = [observation[key] for key in self.env.single_observation_space]
        return np.concatenate([part.reshape(*part.shape[:lead], -1) for part in parts], axis=-1)

    def reset(self, **kwargs: Any) -> Any:
        observation, infos = self.env.reset(**kwargs)
        return self.flat(observation, 1), infos

    def step(self, actions: Any) -> Any:
        observation, *rest, infos = self.env.step(actions)
        for i in np.flatnonzero(infos.get("_final_obs", [])):
            infos["final_obs"][i] = self.flat(infos["final_obs"][i], 0)
        return self.flat(observation, 1), *rest, infos


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("name", NAMES)
def test_cleanrl(name, mode):
    """CleanRL's `ppo.py`: rollout, episode statistics, advantages, one update, under Gymnasium's vector wrappers."""
    torch.manual_seed(0)
    envs: Any = gym.make_vec(ENVS[name].env_id, num_envs=2, autoreset_mode=mode, **CASES[name])
    envs = FlattenObservation(envs) if mode is AutoresetMode.NEXT_STEP else Flattened(envs)
    envs = NormalizeReward(RecordEpisodeStatistics(envs))
    agent, num_steps = Agent(envs), 400
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    obs = torch.zeros((num_steps, 2, *envs.single_observation_space.shape))
    actions = torch.zeros((num_steps, 2, len(agent.widths)), dtype=torch.long)
    logprobs, rewards, dones, values = torch.zeros((4, num_steps, 2))
    next_obs, next_done, returns = torch.tensor(envs.reset(seed=1)[0]), torch.zeros(2), []
    for step in range(num_steps):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            actions[step], logprobs[step], values[step] = agent.act(next_obs)
        chosen = actions[step] if agent.vector else actions[step, :, 0]
        next_seen, reward, terminations, truncations, infos = envs.step(chosen.numpy())
        done = np.logical_or(terminations, truncations)
        rewards[step] = torch.tensor(reward)
        next_obs, next_done = torch.tensor(next_seen), torch.tensor(done, dtype=torch.float32)
        if "episode" in infos:
            assert infos["_episode"].tolist() == done.tolist()
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
        if mode is AutoresetMode.SAME_STEP and done.any():
            assert infos["final_obs"][done.argmax()].shape == envs.single_observation_space.shape
        if len(returns) >= 2:
            break
    assert returns
    assert all(np.isfinite(returns))
    _, logs, value = agent.act(obs[: step + 1], actions[: step + 1])
    advantage = rewards[: step + 1] - values[: step + 1]
    loss = (
        -(advantage * (logs - logprobs[: step + 1]).exp()).mean()
        + ((value - rewards[: step + 1]) ** 2).mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
