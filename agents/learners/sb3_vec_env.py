"""Adapts the vector environments to Stable-Baselines3's `VecEnv`.

Stable-Baselines3 has a `VecEnv` of its own and refuses `gymnasium.vector.VectorEnv`. The two differ in how an ended
episode is told (an entry of the info of its place), in who computes episode statistics, and in that info is one
dictionary a place.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Wrapper
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from serving_gym.agents.environments.spaces import highest

Indices = None | int | Iterable[int]
_DISTURBANCES = 0xD157  # stream of random numbers


class SB3VecEnv(VecEnv):
    """A Stable-Baselines3 `VecEnv` over a batched environment with same-step autoreset.

    Observations are handed on as they are, without a copy. The info dictionaries are kept and overwritten by the next
    step; `info["episode"]` (return `r`, length `l` in decisions, duration `t` in seconds since creation) is new each
    time, and only there where an episode has just ended.

    Args:
        env: The batched environment; `infos["dt"]` and `infos["action_mask"]` are used where it has them.
        reward_scale: Factor on the rewards handed on; `info["episode"]` keeps the environment's own.
        disturbance: Probability that a decision is replaced by a random possible one without the agent's being told, as
            though the environment did so. The agent comes to see every layout under every load, whatever it prefers.
        seed: Of the disturbances.
        goes_on: Whether a truncated episode would have gone on, which `info["TimeLimit.truncated"]` then says, so that
            agents add the value of its last state; else it has ended like any other (`Adapter.goes_on`).

    Raises:
        ValueError: the environment does not begin a new episode in the step in which one ends.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        reward_scale: float = 1.0,
        disturbance: float = 0.0,
        seed: int = 0,
        goes_on: bool = False,
    ) -> None:
        if env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise ValueError(f"SB3VecEnv needs same-step autoreset, {type(env).__name__} has another")
        self.env = env
        self.reward_scale, self.disturbance, self.goes_on = reward_scale, disturbance, goes_on
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, _DISTURBANCES]))
        self._levers: Any = env.single_action_space
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.elapsed_s = np.ones(self.num_envs)  # (num_envs,), time that the last step took
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._masks: NDArray[np.bool_] | None = None
        self._actions: NDArray[np.int64] = np.zeros(self.num_envs, np.int64)
        self._created_s = time.monotonic()

    def reset(self) -> Any:
        """Begins all episodes, with the seeds given to `seed()`."""
        seeds: Any = None if None in self._seeds else list(self._seeds)
        observation, infos = self.env.reset(seed=seeds)
        self._reset_seeds()
        self._reset_options()
        self._masks = infos.get("action_mask")
        self._returns[:] = 0.0
        self._lengths[:] = 0
        return observation

    def set_seeds(self, seeds: Sequence[int]) -> None:
        """Seeds of the episodes that the next `reset()` begins; equal seeds have equal arrivals."""
        self._seeds = list(seeds)

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Stores the actions for `step_wait`."""
        self._actions = actions if self.disturbance == 0.0 else self._disturbed(actions)

    def _disturbed(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Actions, some of them replaced."""
        places = np.flatnonzero(self._rng.random(self.num_envs) < self.disturbance)
        if len(places):
            actions, masks = actions.copy(), self.action_masks()
            for i in places:
                chance = self._rng.random((1, masks.shape[1])).astype(np.float32)  # a score of each entry
                actions[i] = highest(chance, masks[i : i + 1], self._levers)[0]
        return actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Takes one decision in every environment."""
        observation, rewards, terminated, truncated, infos = self.env.step(self._actions)
        self._masks = infos.get("action_mask")
        if "dt" in infos:
            ended = infos.get("final_info", {}).get("dt", 0.0)
            self.elapsed_s = np.where(terminated | truncated, ended, infos["dt"])
        self._returns += rewards
        self._lengths += 1
        dones = terminated | truncated
        for info in self._infos:
            info.clear()
        for i in np.flatnonzero(dones):
            cut_off = self.goes_on and bool(truncated[i] and not terminated[i])
            self._end(int(i), cut_off, infos["final_obs"][i])
        for info, elapsed_s in zip(self._infos, self.elapsed_s, strict=True):
            info["dt"] = elapsed_s
        return observation, (rewards * self.reward_scale).astype(np.float32), dones, self._infos

    def _end(self, i: int, cut_off: bool, last_observation: Any) -> None:
        """Reports an ended episode, and resets its statistics."""
        self._infos[i]["terminal_observation"] = last_observation
        self._infos[i]["TimeLimit.truncated"] = cut_off
        self._infos[i]["episode"] = {
            "r": float(self._returns[i]),
            "l": int(self._lengths[i]),
            "t": round(time.monotonic() - self._created_s, 6),
        }
        self._returns[i] = 0.0
        self._lengths[i] = 0

    def action_masks(self) -> NDArray[np.bool_]:
        """Action masks, (num_envs, num_actions).

        Raises:
            AttributeError: the environment has no masks.
        """
        if self._masks is None:
            self._masks = self.env.unwrapped.action_masks()  # type: ignore[attr-defined]
        return self._masks

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Results of a method, one per episode.

        Raises:
            AttributeError: there is no such method.
        """
        own = method_name == "action_masks"
        method = self.action_masks if own else getattr(self.env.unwrapped, method_name)
        results = method(*args, **kwargs)
        return [results[i] for i in self._get_indices(indices)]

    def has_attr(self, attr_name: str) -> bool:
        """Whether the vector environment has an attribute."""
        return hasattr(self.env.unwrapped, attr_name)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of the vector environment, once per episode."""
        value = getattr(self.env.unwrapped, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of the vector environment, for all episodes."""
        setattr(self.env.unwrapped, attr_name, value)

    def env_is_wrapped(
        self, wrapper_class: type[Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Single episodes are never wrapped."""
        return [False for _ in self._get_indices(indices)]

    def close(self) -> None:
        """Closes the vector environment."""
        self.env.close()
