"""The action mask as a part of the observation, for libraries that look for it there, and policies trained on that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Observation, adapter_of
from serving_gym.agents.environments.spaces import ActionSpace, entries, highest, plain_action
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.registration import env_id, env_names

OBSERVATIONS, ACTION_MASK = "observations", "action_mask"

Choose = Callable[[NDArray[np.float32], NDArray[np.bool_]], Any]


class MaskedObservation(gym.ObservationWrapper[dict[str, Any], Any, Any]):
    """An environment whose observation is one vector beside the action mask.

    Observation: `observations`, (width,) float32, all parts one after another as `gymnasium.spaces.flatten` has them;
    `action_mask`, (entries,) int8, 1 where an action is possible; of a `MultiDiscrete` the entries of all levers.

    Args:
        env: An environment of this project.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._own_space = env.observation_space
        action: Any = env.action_space
        self.observation_space = spaces.Dict(
            {
                OBSERVATIONS: spaces.flatten_space(self._own_space),
                ACTION_MASK: spaces.MultiBinary(sum(entries(action))),
            }
        )

    def observation(self, observation: Any) -> dict[str, Any]:
        """The vector and the mask of an observation."""
        world: Any = self.unwrapped
        return {
            OBSERVATIONS: spaces.flatten(self._own_space, observation),
            ACTION_MASK: world.action_masks().astype(np.int8),
        }


def make_masked(env: str, **words: Any) -> MaskedObservation:
    """An environment by name, with the mask in its observation.

    Args:
        env: Its name ("routing").
        words: What `gymnasium.make` takes.

    Raises:
        ValueError: A name, a word or a value is unknown or not allowed.
    """
    return MaskedObservation(gym.make(env_id(env), **words))


class MaskedPolicy:
    """A policy by a function of the flattened observation and the action mask.

    Args:
        name: What it is called in results.
        env: The environment, scalar or vector and in any wrappers, whose observations the function knows.
        choose: Returns an action for `observations` (width,) and `action_mask` (entries,).
    """

    clairvoyant = False
    learned = True  # judged as trained agents are

    def __init__(self, name: str, env: Any, choose: Choose) -> None:
        world = env.unwrapped
        self.name, self._choose = name, choose
        self._env = next(each for each in env_names() if env_id(each) == world.spec.id)
        self.environments = (self._env,)
        self._observation_space = getattr(world, "single_observation_space", world.observation_space)
        self._action_space = getattr(world, "single_action_space", world.action_space)

    def check_spaces(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        """Checks that an environment has the spaces of the one trained on.

        Raises:
            ValueError: It has others.
        """
        width, own = spaces.flatdim(observation), spaces.flatdim(self._observation_space)
        if width != own or action != self._action_space:
            raise ValueError(
                f"{self.name!r} was trained with {own} observed numbers and {self._action_space}; "
                f"the environment has {width} and {action}"
            )

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Keeps the setting, by which the mask is known."""
        self._spec, self._adapter = spec, adapter_of(self._env)

    def act(self, observation: Observation, state: Any) -> Any:
        """The action that the function chooses."""
        mask = self._adapter.mask(observation, state, self._spec)
        if mask is None:
            mask = np.ones(sum(entries(self._action_space)), np.bool_)
        flat: Any = spaces.flatten(self._observation_space, observation)
        return plain_action(np.asarray(self._choose(flat, mask), np.int64))


def action_of(
    logits: NDArray[np.float32],
    mask: NDArray[np.bool_],
    action: ActionSpace,
    rng: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """An action by the logits of its entries.

    Args:
        logits: (entries,).
        mask: (entries,), which are possible.
        action: The action space.
        rng: Draws from the distribution of the logits; None: the likeliest entry of each lever.
    """
    if rng is not None:
        logits = logits + rng.gumbel(size=logits.shape).astype(
            np.float32
        )  # the highest is then a draw from the softmax
    chosen: NDArray[np.int64] = highest(logits[None], mask[None], action)[0]
    return chosen
