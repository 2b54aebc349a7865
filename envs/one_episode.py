"""What the scalar environments have in common: seeds, pictures, forks."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self, TypeVar

import gymnasium as gym
import numpy as np

from envs.side_by_side import MAX_SEED

Observed = TypeVar("Observed")


class OneEpisode(gym.Env[Observed, np.int64]):
    """One episode at a time."""

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}
    _renderer: Any

    def _set_render_mode(self, render_mode: str | None) -> None:
        """Notes how the episode is to be shown.

        Raises:
            ValueError: in no way that there is.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode must be one of {self.metadata['render_modes']}, got {render_mode!r}"
            )
        self.render_mode = render_mode

    def _seed_of(self, seed: int | None) -> int:
        """Seed of the next episode: the one given, or the next of the stream that the last one given began."""
        super().reset(seed=seed)
        return int(self.np_random.integers(MAX_SEED)) if seed is None else seed

    def _fork(self) -> Self:
        """A copy that shares its parts, which the caller replaces; it does not render."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._np_random = deepcopy(self._np_random)
        copy.render_mode, copy._renderer = None, None
        return copy

    def render(self) -> Any:
        """The cluster now (ansi) or over time (rgb_array)."""
        if self._renderer is None:
            gym.logger.warn("render() needs a render_mode; pass render_mode='ansi' or 'rgb_array' to make()")
            return None
        return self._renderer.text() if self.render_mode == "ansi" else self._renderer.image()
