"""An environment of two levers whose optimum is known: each is to stand where its row of the observation says."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from serving_gym.envs.base.vector_env import BaseVectorEnv

LENGTH, LEVERS, ENTRIES = 8, 2, 3
SPACES = (
    spaces.Dict(
        {
            "levers": spaces.Box(0.0, 1.0, (LEVERS, ENTRIES + 1), np.float32),
            "clock": spaces.Box(0.0, 1.0, (1,), np.float32),
        }
    ),
    spaces.MultiDiscrete([ENTRIES] * LEVERS),
)


class LeversEnv(gym.Env):
    """The reward is minus the number of levers that stand wrong; the last entry of the first lever is not possible."""

    observation_space, action_space = SPACES
    policy_spec = SimpleNamespace(decision_interval_s=1.0)
    state = None

    def __init__(self, split=None):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.passed = 0
        return self.observe(), {"action_mask": self.action_masks()}

    def observe(self):
        self.right = np.array([self.np_random.integers(ENTRIES - 1), self.np_random.integers(ENTRIES)])
        rows = np.concatenate([np.ones((LEVERS, 1)), np.eye(ENTRIES)[self.right]], axis=1)
        return {"levers": rows.astype(np.float32), "clock": np.full(1, self.passed / LENGTH, np.float32)}

    def action_masks(self):
        return np.array([True, True, False, True, True, True])

    def step(self, action):
        action = np.zeros(LEVERS, int) if action is None else action
        assert action[0] != ENTRIES - 1, "impossible"
        reward = -float((np.asarray(action) != self.right).sum())
        self.passed += 1
        info = {"dt": 1.0, "action_mask": self.action_masks(), "reward_terms": {"ttft_attainment/x": reward}}
        return self.observe(), reward, self.passed == LENGTH, False, info

    def records(self):
        return [0] * LENGTH


class LeversVectorEnv(BaseVectorEnv):
    """The same, batched."""

    def __init__(self, num_envs=1, render_mode=None, **config):
        self.envs = [LeversEnv() for _ in range(num_envs)]
        self._lay_out(num_envs, render_mode, SPACES)

    def reset(self, *, seed=None, options=None):
        seen = [env.reset(seed=own)[0] for env, own in zip(self.envs, self._seeds(seed), strict=True)]
        return self.batch(seen), {"action_mask": self.action_masks()}

    def batch(self, seen):
        return {key: np.stack([each[key] for each in seen]) for key in seen[0]}

    def action_masks(self):
        return np.stack([env.action_masks() for env in self.envs])

    def step(self, actions):
        steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        observation = self.batch([step[0] for step in steps])
        ended, infos = np.array([step[2] for step in steps]), {"dt": np.ones(self.num_envs)}
        over = np.flatnonzero(ended).tolist()
        self._keep_last(over, observation, self.action_masks()[over], infos)
        for i in over:
            for key, part in self.envs[i].reset(seed=self._draw(i))[0].items():
                observation[key][i] = part
        infos["action_mask"] = self.action_masks()
        return observation, np.array([step[1] for step in steps]), ended, np.zeros(self.num_envs, bool), infos
