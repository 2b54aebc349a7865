"""What the scalar environments have in common: seeds and pictures; of simulated ones, records and forks."""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from typing import Any, Self, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.base.vector_env import MAX_SEED
from serving_gym.envs.interface.metrics import RequestRecords

Observed = TypeVar("Observed")


class BaseEnv(gym.Env[Observed, np.int64]):
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

    def render(self) -> Any:
        """The cluster now (ansi) or over time (rgb_array)."""
        if self._renderer is None:
            gym.logger.warn("render() needs a render_mode; pass render_mode='ansi' or 'rgb_array' to make()")
            return None
        return self._renderer.text() if self.render_mode == "ansi" else self._renderer.image()


class SimulatedEnv(BaseEnv[Observed]):
    """One simulated episode at a time.

    Attributes:
        core: The episode; it has `simulator`, `num_refused` and `fork()`.
    """

    core: Any

    @property
    @abstractmethod
    def state(self) -> Any:
        """What a policy may know now."""

    @abstractmethod
    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are possible now."""

    def advance(self, action: Any) -> tuple[Any, float, bool]:
        """`step` for those who may not look: what is seen, the reward, and whether the episode is over.

        Args:
            action: The decision.
        """
        observation, reward, terminated, truncated, _ = self.step(action)
        return observation, float(reward), terminated or truncated

    def records(self) -> RequestRecords:
        """What happened to every request that has arrived.

        Raises:
            ValueError: the environment was told not to keep it.
        """
        records: RequestRecords = self.core.simulator.results()
        return records

    def _info(self, dt_s: float, terms: dict[str, float], refused: str) -> dict[str, Any]:
        return {
            "dt": dt_s,
            "reward_terms": terms,
            "refused": refused,
            "num_refused": self.core.num_refused,
            "action_mask": self.action_masks(),
        }

    def _fork(self) -> Self:
        """A copy that shares its parts, which the caller replaces; it does not render."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._np_random = deepcopy(self._np_random)
        copy.render_mode, copy._renderer = None, None
        return copy


class SteppedEnv(SimulatedEnv[Observed]):
    """One episode at a time, which takes a decision and goes on to the next one; its core is a `SteppedEpisode`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Begins the episode that a seed stands for; `options={"split": ...}` chooses where it is drawn from."""
        chosen = self._seed_of(seed)
        self.core.reset(chosen, (options or {}).get("split"))
        if self._renderer:
            self._renderer.reset()
            self._renderer.record(self.core.state)
        return self.core.observe(), self._info(0.0, {}, "")

    def step(self, action: Any) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Takes a decision and lets time pass to the next one."""
        if self.core.done:
            raise RuntimeError("the episode is over; call reset()")
        outcome = self.core.step(action)
        if self._renderer:
            self._renderer.record(self.core.state)
        info = self._info(outcome.dt_s, outcome.terms, outcome.refused)
        return self.core.observe(), outcome.reward, outcome.terminated, outcome.truncated, info

    def advance(self, action: Any) -> tuple[Any, float, bool]:
        """`step` for those who may not look: what is seen is made when somebody does; no picture is kept.

        Args:
            action: The decision.
        """
        outcome = self.core.step(action)
        return LazyObservation(self.core.observe), outcome.reward, outcome.terminated or outcome.truncated

    def action_masks(self) -> NDArray[np.bool_]:
        """(actions,), which are possible now; of several levers, their entries one after another."""
        mask: NDArray[np.bool_] = self.core.mask()
        return mask

    def fork(self) -> Self:
        """A copy of the episode that continues to the same numbers; it does not render."""
        copy = self._fork()
        copy.core = self.core.fork()
        return copy
