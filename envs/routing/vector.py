"""Many routing episodes side by side in one process, stepped by one call of the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.routing.config import RoutingConfig
from envs.routing.deciders import Deciders, Observations
from envs.routing.env import MAX_SEED, make_spaces
from envs.routing.episode import Episode

BatchObservation = dict[str, NDArray[np.float32]]


class RoutingVectorEnv(VectorEnv[BatchObservation, NDArray[np.int64], NDArray[Any]]):
    """`Serving/Routing-v0`, batched; equal to the scalar environment step by step.

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
        self.config = RoutingConfig(**config)
        self.episodes = [Episode(self.config) for _ in range(num_envs)]
        self._deciders = Deciders(self.episodes)
        self.single_observation_space, self.single_action_space = make_spaces(self.episodes[0])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._streams: list[np.random.Generator] = [np.random.default_rng() for _ in range(num_envs)]
        self._masks = np.zeros((num_envs, self.config.num_rows + 1), bool)

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
        for i, own in enumerate(seeds):
            if own is not None:
                self._streams[i] = np.random.default_rng(own)
        chosen = [self._draw(i) if own is None else own for i, own in enumerate(seeds)]
        observations = self._deciders.reset(range(self.num_envs), chosen)
        self._masks = observations.masks
        return _as_dict(observations), {"action_mask": self._masks}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one decision in every place."""
        observations, outcomes = self._deciders.step(np.asarray(actions, np.int64))
        infos: dict[str, Any] = {"dt": outcomes.dt_s}
        over = np.flatnonzero(outcomes.terminated | outcomes.truncated).tolist()
        if over:
            self._finish(over, observations, infos)
            fresh = self._deciders.reset(over, [self._draw(i) for i in over])
            for batch, rows in zip(observations, fresh, strict=True):
                batch[over] = rows
        self._masks = observations.masks
        infos["action_mask"] = self._masks
        rewards = outcomes.rewards(self.config.objective)
        return _as_dict(observations), rewards, outcomes.terminated, outcomes.truncated, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, places + 1), which actions are possible now."""
        return self._masks

    def _draw(self, i: int) -> int:
        return int(self._streams[i].integers(MAX_SEED))

    def _finish(self, over: list[int], observations: Observations, infos: dict[str, Any]) -> None:
        """Keeps ended episodes' last observations and masks, as Gymnasium's vector environments do."""
        infos["final_obs"] = np.full(self.num_envs, None, object)
        infos["final_info"] = {"action_mask": np.zeros_like(observations.masks)}
        infos["_final_obs"] = np.zeros(self.num_envs, bool)
        infos["_final_obs"][over] = True
        infos["_final_info"] = infos["_final_obs"].copy()
        infos["final_info"]["action_mask"][over] = observations.masks[over]
        for i in over:
            infos["final_obs"][i] = {key: value[i].copy() for key, value in _as_dict(observations).items()}


def _as_dict(observations: Observations) -> BatchObservation:
    return {"places": observations.places, "request": observations.request, "cluster": observations.cluster}
