"""Many deployment episodes side by side in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.deployment.config import DeploymentConfig
from envs.deployment.core import DeploymentCore
from envs.deployment.env import MAX_SEED, make_spaces

BatchObservation = dict[str, NDArray[np.float32]]


class DeploymentVectorEnv(VectorEnv[BatchObservation, NDArray[np.int64], NDArray[Any]]):
    """`Serving/Deployment-v0`, batched; equal to the scalar environment step by step.

    An episode that ends begins anew in the same step; its last observation and info are in `infos["final_obs"]` and
    `infos["final_info"]` (Gymnasium's same-step autoreset).

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if render_mode is not None:
            raise ValueError("the batched environment does not render; use the scalar one")
        self.num_envs = num_envs
        self.render_mode = None
        self.cores = [DeploymentCore(DeploymentConfig(**config)) for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = make_spaces(self.cores[0])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._streams: list[np.random.Generator] = [np.random.default_rng() for _ in range(num_envs)]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins an episode in every place. An integer seed gives place i the episode of seed + i."""
        seeds = (
            [None if seed is None else seed + i for i in range(self.num_envs)]
            if not isinstance(seed, list)
            else seed
        )
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed must have {self.num_envs} entries, got {len(seeds)}")
        observation = self._empty()
        for i, own in enumerate(seeds):
            if own is not None:
                self._streams[i] = np.random.default_rng(own)
            self._begin(i, own, observation)
        return observation, {"action_mask": self.action_masks()}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one decision in every place."""
        observation = self._empty()
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        dt = np.zeros(self.num_envs)
        infos: dict[str, Any] = {}
        for i, core in enumerate(self.cores):
            outcome = core.step(actions[i])
            rewards[i], dt[i] = outcome.reward, outcome.dt_s
            terminated[i], truncated[i] = outcome.terminated, outcome.truncated
            self._observe(i, observation)
            if core.done:
                self._finish(i, observation, infos)
                self._begin(i, None, observation)
        infos["dt"] = dt
        infos["action_mask"] = self.action_masks()
        return observation, rewards, terminated, truncated, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, num_candidates), which actions are possible now."""
        return np.stack([core.mask() for core in self.cores])

    def _empty(self) -> BatchObservation:
        shapes = self.cores[0].encoder.shapes
        return {name: np.empty((self.num_envs, *shape), np.float32) for name, shape in shapes.items()}

    def _begin(self, i: int, seed: int | None, observation: BatchObservation) -> None:
        core = self.cores[i]
        core.reset(seed if seed is not None else int(self._streams[i].integers(MAX_SEED)))
        self._observe(i, observation)

    def _observe(self, i: int, observation: BatchObservation) -> None:
        for name, part in self.cores[i].observe().items():
            observation[name][i] = part

    def _finish(self, i: int, observation: BatchObservation, infos: dict[str, Any]) -> None:
        """Keeps an ended episode's last observation and mask, as Gymnasium's vector environments do."""
        if "final_obs" not in infos:
            infos["final_obs"] = np.full(self.num_envs, None, object)
            infos["final_info"] = {
                "action_mask": np.zeros((self.num_envs, self.cores[0].config.num_candidates), bool)
            }
            infos["_final_obs"] = np.zeros(self.num_envs, bool)
            infos["_final_info"] = np.zeros(self.num_envs, bool)
        infos["final_obs"][i] = {key: value[i].copy() for key, value in observation.items()}
        infos["final_info"]["action_mask"][i] = self.cores[i].mask()
        infos["_final_obs"][i] = infos["_final_info"][i] = True
