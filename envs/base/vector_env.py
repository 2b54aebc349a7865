"""What the batched environments have in common: seeds of many episodes, and what is kept of one that ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

BatchObservation = dict[str, NDArray[np.float32]]
MAX_SEED = 2**31 - 1


class BaseVectorEnv(VectorEnv[BatchObservation, NDArray[np.int64], NDArray[Any]]):
    """Many episodes in one process.

    An episode that ends begins anew in the same step; its last observation and info are in `infos["final_obs"]` and
    `infos["final_info"]` (Gymnasium's same-step autoreset).

    Attributes:
        begins_anew: Whether an episode that ends is followed by another. Otherwise its place stands still until the
            next reset: it is over, at no reward, and what is seen of it is zero.
    """

    begins_anew: bool = True

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}

    def _lay_out(
        self,
        num_envs: int,
        render_mode: str | None,
        spaces: tuple[gym.Space[Any], gym.spaces.Discrete | gym.spaces.MultiDiscrete],
    ) -> None:
        """Sets spaces and seeds.

        Args:
            num_envs: Episodes side by side.
            render_mode: None.
            spaces: Observation and action space of one episode.
        """
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._streams: list[np.random.Generator] = [np.random.default_rng() for _ in range(num_envs)]
        self._split: str | None = None

    def _draw(self, i: int) -> int:
        """Seed of the next episode in a place."""
        return int(self._streams[i].integers(MAX_SEED))

    def _seeds(self, seed: int | list[int | None] | None, options: dict[str, Any] | None = None) -> list[int]:
        """Seeds of the first episodes. An integer gives place i the episode of seed + i.

        `options={"split": ...}` says where these and the episodes that follow them are drawn from (`_split`).

        Raises:
            ValueError: there are not as many as places.
        """
        self._split = (options or {}).get("split")
        given = (
            seed
            if isinstance(seed, list)
            else [None if seed is None else seed + i for i in range(self.num_envs)]
        )
        if len(given) != self.num_envs:
            raise ValueError(f"seed must have {self.num_envs} entries, got {len(given)}")
        for i, own in enumerate(given):
            if own is not None:
                self._streams[i] = np.random.default_rng(own)
        return [self._draw(i) if own is None else own for i, own in enumerate(given)]

    def _keep_last(
        self,
        over: Sequence[int],
        observation: BatchObservation,
        masks: NDArray[np.bool_],
        infos: dict[str, Any],
    ) -> None:
        """Keeps ended episodes' last observations and masks, as Gymnasium's vector environments do.

        Args:
            over: Places of the episodes that have ended.
            observation: Of all places.
            masks: (len(over), num_actions), theirs.
            infos: Where to.
        """
        if not over:
            return
        ended = np.isin(np.arange(self.num_envs), over)
        last = np.full(self.num_envs, None, object)
        action_mask = np.zeros((self.num_envs, masks.shape[1]), bool)
        action_mask[over] = masks
        for i in over:
            last[i] = {key: value[i].copy() for key, value in observation.items()}
        infos["final_obs"], infos["final_info"] = last, {"action_mask": action_mask}
        infos["_final_obs"], infos["_final_info"] = ended, ended.copy()


class StepOutcome(Protocol):
    """What a step brought an episode."""

    @property
    def reward(self) -> float:
        """Weighted sum of the terms."""
        ...

    @property
    def dt_s(self) -> float:
        """Time to the next decision, seconds."""
        ...

    @property
    def terminated(self) -> bool:
        """Whether every request has been served, refused or lost."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether a limit was reached."""
        ...


class SteppedEpisode(Protocol):
    """One episode after another of a configuration."""

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode that a seed stands for."""
        ...

    def step(self, action: Any) -> StepOutcome:
        """Takes a decision and lets time pass to the next one."""
        ...

    def observe(self) -> Mapping[str, NDArray[np.float32]]:
        """What is seen now."""
        ...

    def mask(self) -> NDArray[np.bool_]:
        """(actions,), which are possible now."""
        ...


class SequentialVectorEnv(BaseVectorEnv):
    """Many episodes that are moved on one after another; equal to the scalar environment step by step.

    Attributes:
        episodes: The episodes.
    """

    episodes: Sequence[SteppedEpisode]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins an episode in every place. An integer seed gives place i the episode of seed + i.

        `options={"split": ...}` chooses where these and the episodes that follow them are drawn from.
        """
        observation = self._empty()
        self._standing = np.zeros(self.num_envs, bool)
        for i, own in enumerate(self._seeds(seed, options)):
            self._begin(i, own, observation)
        return observation, {"action_mask": self.action_masks()}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one decision in every place, (num_envs,) or (num_envs, levers)."""
        observation = self._empty()
        rewards, dt_s = np.zeros(self.num_envs), np.zeros(self.num_envs)
        terminated, truncated = self._standing.copy(), np.zeros(self.num_envs, bool)
        for i in np.flatnonzero(~self._standing).tolist():
            outcome = self.episodes[i].step(actions[i])
            rewards[i], dt_s[i] = outcome.reward, outcome.dt_s
            terminated[i], truncated[i] = outcome.terminated, outcome.truncated
            self._observe(i, observation)
        infos: dict[str, Any] = {"dt": dt_s}
        over = np.flatnonzero((terminated | truncated) & ~self._standing).tolist()
        if over:
            self._keep_last(over, observation, np.stack([self.episodes[i].mask() for i in over]), infos)
        if self.begins_anew:
            for i in over:
                self._begin(i, self._draw(i), observation)
        else:
            self._standing[over] = True
        infos["action_mask"] = self.action_masks()
        return observation, rewards, terminated, truncated, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, actions), which are possible now."""
        return np.stack([episode.mask() for episode in self.episodes])

    def _empty(self) -> BatchObservation:
        parts: Any = self.single_observation_space
        return {name: np.zeros((self.num_envs, *box.shape), np.float32) for name, box in parts.items()}

    def _begin(self, i: int, seed: int, observation: BatchObservation) -> None:
        self.episodes[i].reset(seed, self._split)
        self._observe(i, observation)

    def _observe(self, i: int, observation: BatchObservation) -> None:
        for name, part in self.episodes[i].observe().items():
            observation[name][i] = part


def check_width(num_envs: int, render_mode: str | None) -> None:
    """Refuses what no batched environment does.

    Raises:
        ValueError: fewer than one episode, or a picture is asked for.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if render_mode is not None:
        raise ValueError("the batched environment does not render; use the scalar one")
