"""Many sharing episodes side by side in one process, stepped by one call of the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.sharing.config import SharingConfig
from envs.sharing.deciders import Observations, SharingDeciders
from envs.sharing.env import make_spaces
from envs.sharing.episode import SharingEpisode
from envs.side_by_side import BatchObservation, SideBySide, check_width


class SharingVectorEnv(SideBySide):
    """`Serving/Sharing-v0`, batched; equal to the scalar environment step by step.

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        check_width(num_envs, render_mode)
        self.config = SharingConfig(**config)
        self.episodes = [SharingEpisode(self.config) for _ in range(num_envs)]
        self._deciders = SharingDeciders(self.episodes)
        self._lay_out(num_envs, render_mode, make_spaces(self.episodes[0]))
        self._masks = np.zeros((num_envs, self.episodes[0].num_actions), bool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins an episode in every place. An integer seed gives place i the episode of seed + i.

        `options={"split": ...}` chooses where these and the episodes that follow them are drawn from.
        """
        seeds = self._seeds(seed, options)
        observations = self._deciders.reset(range(self.num_envs), seeds, self._split)
        self._masks = observations.masks
        return _as_dict(observations), {"action_mask": self._masks}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one decision in every place."""
        if not self.episodes[0].begun:
            raise RuntimeError("no episode has begun; call reset()")
        observations, every = self._deciders.step(np.asarray(actions, np.int64))
        outcomes = [outcome for outcome in every if outcome is not None]
        assert len(outcomes) == self.num_envs, "episodes that end begin anew at once"
        terminated = np.array([outcome.terminated for outcome in outcomes])
        truncated = np.array([outcome.truncated for outcome in outcomes])
        rewards = np.array([outcome.reward for outcome in outcomes])
        infos: dict[str, Any] = {"dt": np.array([outcome.dt_s for outcome in outcomes])}
        over = np.flatnonzero(terminated | truncated).tolist()
        if over:
            self._keep_last(over, _as_dict(observations), observations.masks[over], infos)
            fresh = self._deciders.reset(over, [self._draw(i) for i in over], self._split)
            for batch, rows in zip(observations, fresh, strict=True):
                batch[over] = rows
        self._masks = observations.masks
        infos["action_mask"] = self._masks
        return _as_dict(observations), rewards, terminated, truncated, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, S + N + 1), which actions are possible now."""
        return self._masks


def _as_dict(observations: Observations) -> BatchObservation:
    return {"places": observations.places, "request": observations.request, "cluster": observations.cluster}
