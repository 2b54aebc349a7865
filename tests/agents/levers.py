"""An environment of two levers whose optimum is known: each is to stand where its row of the observation says."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from serving_gym.envs.base.vector_env import BaseVectorEnv, BatchOutcome
from serving_gym.envs.interface.reward import Outcome

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
        info = {
            "dt": 1.0,
            "action_mask": self.action_masks(),
            "reward_terms": {"ttft_attainment/x": reward},
            "refused": "",
            "num_refused": 0,
        }
        return self.observe(), reward, self.passed == LENGTH, False, info

    def records(self):
        return [0] * LENGTH


class LeversVectorEnv(BaseVectorEnv):
    """The same, many times."""

    def __init__(self, num_envs=1, render_mode=None, autoreset_mode=AutoresetMode.SAME_STEP, **config):
        super().__init__(num_envs, SPACES, render_mode, autoreset_mode)
        self.envs = [LeversEnv() for _ in range(num_envs)]

    def _begin(self, rows, seeds):
        begun = [self.envs[i].reset(seed=seed)[0] for i, seed in zip(rows, seeds, strict=True)]
        masks = np.stack([self.envs[i].action_masks() for i in rows])
        return {key: np.stack([each[key] for each in begun]) for key in begun[0]}, masks

    def _advance(self, actions, going):
        masks = np.stack([env.action_masks() for env in self.envs])
        outcome = BatchOutcome.blank(
            self._empty_observation(self.num_envs), masks, np.zeros(self.num_envs, int)
        )
        for i in np.flatnonzero(going):
            observation, reward, terminated, truncated, info = self.envs[i].step(actions[i])
            outcome.put(i, Outcome(reward, info["reward_terms"], 1.0, terminated, truncated, ""))
            for key, part in observation.items():
                outcome.observation[key][i] = part
        return outcome
