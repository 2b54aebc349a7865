"""Many autoscaling episodes side by side in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.autoscaling.config import AutoscalingConfig
from envs.autoscaling.env import make_spaces
from envs.autoscaling.episode import Episode
from envs.side_by_side import BatchObservation, SideBySide, check_width


class AutoscalingVectorEnv(SideBySide):
    """`Serving/Autoscaling-v0`, batched; equal to the scalar environment step by step.

    What became of each request is not kept.

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        check_width(num_envs, render_mode)
        made = AutoscalingConfig(**{**config, "keep_records": False})
        self.episodes = [Episode(made) for _ in range(num_envs)]
        self._lay_out(num_envs, render_mode, make_spaces(self.episodes[0]))

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins an episode in every place. An integer seed gives place i the episode of seed + i.

        `options={"split": ...}` chooses where these and the episodes that follow them are drawn from.
        """
        observation = self._empty()
        for i, own in enumerate(self._seeds(seed, options)):
            self._begin(i, own, observation)
        return observation, {"action_mask": self.action_masks()}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one decision in every place, (num_envs, 3 P)."""
        observation = self._empty()
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        dt = np.zeros(self.num_envs)
        for i, episode in enumerate(self.episodes):
            outcome = episode.step(actions[i])
            rewards[i], dt[i] = outcome.reward, outcome.dt_s
            terminated[i], truncated[i] = outcome.terminated, outcome.truncated
            self._observe(i, observation)
        infos: dict[str, Any] = {"dt": dt}
        over = np.flatnonzero(terminated | truncated).tolist()
        if over:
            self._keep_last(over, observation, np.stack([self.episodes[i].mask() for i in over]), infos)
            for i in over:
                self._begin(i, self._draw(i), observation)
        infos["action_mask"] = self.action_masks()
        return observation, rewards, terminated, truncated, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, sum of entries), which entries of the action space are possible now."""
        return np.stack([episode.mask() for episode in self.episodes])

    def _empty(self) -> BatchObservation:
        shapes = self.episodes[0].encoder.shapes
        return {name: np.empty((self.num_envs, *shape), np.float32) for name, shape in shapes.items()}

    def _begin(self, i: int, seed: int, observation: BatchObservation) -> None:
        self.episodes[i].reset(seed, self._split)
        self._observe(i, observation)

    def _observe(self, i: int, observation: BatchObservation) -> None:
        for name, part in self.episodes[i].observe().items():
            observation[name][i] = part
