"""RLlib: environments with their action masks, a module for its PPO, and policies of what was trained.

For the new API stack of Ray 2.60 (`ray.rllib.core.rl_module`); RLlib's own example of masks,
`rllib/examples/rl_modules/classes/action_masking_rlm.py`, has one number an action, this one levers too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import nn

from serving_gym.agents.environments.spaces import entries
from serving_gym.agents.integrations.masked import (
    ACTION_MASK,
    OBSERVATIONS,
    MaskedObservation,
    MaskedPolicy,
    action_of,
)
from serving_gym.envs.registration import env_id

_IMPOSSIBLE = -1e9  # logit; finite, so that PPO's divergence of two policies stays so


class MaskedEnv(MaskedObservation):
    """An environment as RLlib makes it: `.environment(MaskedEnv, env_config={"env": "routing"})`.

    Args:
        config: `env`, its name, and what `gymnasium.make` takes.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        words = dict(config)
        super().__init__(gym.make(env_id(words.pop("env")), **words))


class MaskedModule(TorchRLModule, ValueFunctionAPI):
    """Actor and critic of two hidden layers each, on observations of `MaskedObservation`.

    `model_config={"hidden": 64}` sets the width of the layers.
    """

    def setup(self) -> None:
        """Makes the networks."""
        width = self.observation_space[OBSERVATIONS].shape[0]
        hidden = int(self.model_config.get("hidden", 64))
        self.actor = _layers(width, hidden, sum(entries(self.action_space)))
        self.critic = _layers(width, hidden, 1)
        if isinstance(
            self.action_space, spaces.MultiDiscrete
        ):  # of a Discrete, RLlib knows the distribution itself
            levers = list(entries(self.action_space))
            self.action_dist_cls = TorchMultiCategorical.get_partial_dist_cls(
                space=self.action_space, input_lens=levers
            )

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        seen = batch[Columns.OBS]
        logits = self.actor(seen[OBSERVATIONS].float())
        return {Columns.ACTION_DIST_INPUTS: logits.masked_fill(seen[ACTION_MASK] == 0, _IMPOSSIBLE)}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        """The critic's values, (N,)."""
        values: torch.Tensor = self.critic(batch[Columns.OBS][OBSERVATIONS].float())
        return values[..., 0]


def ppo_config(env: str, hidden: int = 64, **words: Any) -> PPOConfig:
    """RLlib's PPO on an environment, in this process; everything else is set on the result as usual.

    Args:
        env: Name of the environment ("routing").
        hidden: Width of the hidden layers.
        words: What `gymnasium.make` takes.
    """
    module = RLModuleSpec(module_class=MaskedModule, model_config={"hidden": hidden})
    return (
        PPOConfig()
        .environment(MaskedEnv, env_config={"env": env, **words})
        .env_runners(num_env_runners=0)
        .rl_module(rl_module_spec=module)
    )


def rllib_policy(name: str, env: Any, module: RLModule, draw_seed: int | None = None) -> MaskedPolicy:
    """What was trained, as a policy.

    Args:
        name: What it is called in results.
        env: The environment that it was trained on.
        module: `algorithm.get_module()`, or `RLModule.from_checkpoint(...)`.
        draw_seed: Seed of actions that are drawn as in training; None: the most likely action.
    """
    action: Any = env.action_space
    rng = None if draw_seed is None else np.random.default_rng(draw_seed)

    def choose(observation: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        seen = {
            OBSERVATIONS: torch.as_tensor(observation)[None],
            ACTION_MASK: torch.as_tensor(mask, dtype=torch.int8)[None],
        }
        with torch.no_grad():
            logits = module.forward_inference({Columns.OBS: seen})[Columns.ACTION_DIST_INPUTS]
        return action_of(logits[0].numpy(), mask, action, rng)

    return MaskedPolicy(name, env, choose)


def _layers(width: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )
