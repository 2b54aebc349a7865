"""Base classes of the vector environments: seeds, autoreset, info, and episodes stepped one after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from serving_gym.envs.base.episode import SteppedEpisode
from serving_gym.envs.base.validation import (
    ActionSpace,
    check_actions,
    check_autoreset_mode,
    check_options,
    check_reset_mask,
    check_running,
)
from serving_gym.envs.interface.reward import Outcome

BatchObservation = dict[str, NDArray[np.float32]]
Step = tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
MAX_SEED = 2**31 - 1


@dataclass(eq=False)
class BatchOutcome:
    """Results of one step of N episodes, before autoreset."""

    observation: BatchObservation  # N first
    masks: NDArray[np.bool_]  # (N, actions), action masks
    rewards: NDArray[np.float64]  # (N,), weighted sums of the terms
    terms: dict[str, NDArray[np.float64]]  # (N,) each
    dt_s: NDArray[np.float64]  # (N,), to the next decision
    terminated: NDArray[np.bool_]  # (N,), whether every request has been served, refused or lost
    truncated: NDArray[np.bool_]  # (N,), whether a limit was reached
    refused: NDArray[np.object_]  # (N,), why actions or commands were refused; "" if none was
    num_refused: NDArray[np.int64]  # (N,), actions of the episode that were refused

    @classmethod
    def blank(
        cls, observation: BatchObservation, masks: NDArray[np.bool_], num_refused: NDArray[np.int64]
    ) -> BatchOutcome:
        """An outcome in which no time has passed."""
        n = len(masks)
        over, cut, refused = np.zeros(n, np.bool_), np.zeros(n, np.bool_), np.full(n, "", object)
        return cls(observation, masks, np.zeros(n), {}, np.zeros(n), over, cut, refused, num_refused)

    def put(self, i: int, outcome: Outcome) -> None:
        """Writes the outcome of one episode into its row."""
        self.rewards[i], self.dt_s[i], self.refused[i] = outcome.reward, outcome.dt_s, outcome.refused
        self.terminated[i], self.truncated[i] = outcome.terminated, outcome.truncated
        for name, value in outcome.terms.items():
            if name not in self.terms:
                self.terms[name] = np.zeros(len(self.rewards))
            self.terms[name][i] = value

    def clear(self, rows: NDArray[np.bool_]) -> None:
        """Zeroes the rows of episodes that had already ended."""
        for values in (self.rewards, self.dt_s, *self.terms.values()):
            values[rows] = 0.0
        self.terminated[rows] = self.truncated[rows] = False
        self.refused[rows] = ""


class BaseVectorEnv(VectorEnv[BatchObservation, NDArray[np.int64], NDArray[Any]]):
    """Base class of the vector environments: steps as `gymnasium.vector.SyncVectorEnv` steps scalar environments.

    `info` has the keys of the scalar environment as arrays with N first, each with Gymnasium's mask `_KEY` of the
    episodes that have it; `reward_terms` is a dictionary of arrays. The autoreset mode sets what happens to an episode
    that ends:

    * SAME_STEP (default): it is reset in the same step. Its last observation and info are `info["final_obs"]` and
      `info["final_info"]`; the latter also has `episode`: return `r`, length `l` in decisions, and time `t` in seconds
      of the environment's clock.
    * NEXT_STEP: it is reset in the next step, which ignores its action and returns reward 0.
    * DISABLED: it stays ended until `reset`, of all episodes or with `options={"reset_mask": ...}`. Steps ignore its
      action; its reward is 0 and its observation zero.

    Args:
        num_envs: Number of episodes.
        spaces: Observation and action space of one episode.
        render_mode: None.
        autoreset_mode: An `AutoresetMode`, or its name.
        max_episode_steps: Decisions after which an episode is truncated, as by Gymnasium's `TimeLimit`; None: no limit.

    Raises:
        ValueError: An argument is out of range.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}

    def __init__(
        self,
        num_envs: int,
        spaces: tuple[gym.Space[Any], ActionSpace],
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
    ) -> None:
        check_vector_arguments(num_envs, render_mode, max_episode_steps)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.autoreset_mode, self.max_episode_steps = check_autoreset_mode(autoreset_mode), max_episode_steps
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seed_streams = [np.random.default_rng() for _ in range(num_envs)]
        self._split: str | None = None
        self._over = np.ones(num_envs, np.bool_)  # episodes that have ended and were not reset
        self._last: BatchOutcome | None = None
        self._returns, self._elapsed_s = np.zeros(num_envs), np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)

    @abstractmethod
    def _begin(self, rows: list[int], seeds: list[int]) -> tuple[BatchObservation, NDArray[np.bool_]]:
        """Begins episodes; returns their observations and masks, (len(rows), ...)."""

    @abstractmethod
    def _advance(self, actions: NDArray[np.int64], going: NDArray[np.bool_]) -> BatchOutcome:
        """Steps the episodes in `going`; other rows of the outcome are ignored."""

    def _stop(self, rows: list[int]) -> None:
        """Called for episodes that `max_episode_steps` truncated and that are not reset in the same step."""

    def action_masks(self) -> NDArray[np.bool_]:
        """Action masks, (num_envs, actions).

        Raises:
            gymnasium.error.ResetNeeded: No episode has begun.
        """
        if self._last is None:
            raise ResetNeeded("Cannot call env.action_masks() before calling env.reset()")
        return self._last.masks

    # -- reset ---------------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins all episodes. An integer seed gives episode i the seed `seed + i`.

        Args:
            seed: Seeds of the episodes; None: each takes the next seed of its own stream.
            options: `split` chooses the workload split of these and all following episodes; `reset_mask`,
                (num_envs,) booleans, the episodes to reset.

        Raises:
            ValueError: The number of seeds is not the number of episodes, or an option is unknown or impossible.
        """
        self._split = check_options(options, ("split", "reset_mask"))
        chosen = check_reset_mask(options, self.num_envs)
        if self._last is None and not chosen.all():
            raise ResetNeeded("options['reset_mask'] must be all true at the first env.reset()")
        rows = np.flatnonzero(chosen).tolist()
        drawn = self._seeds(seed, rows)
        outcome = None if chosen.all() else self._unchanged()
        self._last = outcome = self._restart(rows, drawn, outcome)
        return outcome.observation, self._infos(outcome, chosen, chosen)

    def _seeds(self, seed: int | Sequence[int | None] | None, rows: list[int]) -> list[int]:
        """Seeds of the episodes that begin in some rows."""
        if seed is None or isinstance(seed, (int, np.integer)):
            given = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        else:
            given = [None if own is None else int(own) for own in seed]
        if len(given) != self.num_envs:
            raise ValueError(f"seed must have {self.num_envs} entries, got {len(given)}")
        for i in rows:
            own = given[i]
            if own is not None:
                self._seed_streams[i] = np.random.default_rng(own)
        return [self._next_seed(i) if (own := given[i]) is None else own for i in rows]

    def _next_seed(self, i: int) -> int:
        """Seed of the next episode of a row."""
        return int(self._seed_streams[i].integers(MAX_SEED))

    def _restart(self, rows: list[int], seeds: list[int], outcome: BatchOutcome | None) -> BatchOutcome:
        """Begins episodes and writes their observations into an outcome; None: into a new one, of all episodes."""
        observation, masks = self._begin(rows, seeds)
        self._returns[rows] = self._elapsed_s[rows] = 0.0
        self._lengths[rows] = 0
        self._over[rows] = False
        if outcome is None:
            return BatchOutcome.blank(observation, masks, np.zeros(self.num_envs, np.int64))
        for name, part in observation.items():
            outcome.observation[name][rows] = part
        outcome.masks[rows], outcome.num_refused[rows] = masks, 0
        return outcome

    def _unchanged(self) -> BatchOutcome:
        """The last outcome with no time passed; episodes that have ended stay ended."""
        last = self._last
        assert last is not None
        observation = {name: part.copy() for name, part in last.observation.items()}
        outcome = BatchOutcome.blank(observation, last.masks.copy(), last.num_refused.copy())
        outcome.terminated, outcome.truncated = last.terminated & self._over, last.truncated & self._over
        return outcome

    def _empty_observation(self, rows: int) -> BatchObservation:
        parts: Any = self.single_observation_space
        return {name: np.zeros((rows, *box.shape), np.float32) for name, box in parts.items()}

    # -- step ----------------------------------------------------------------------------------------------------------

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Takes one action in every episode.

        Args:
            actions: (num_envs,) or (num_envs, entries) integers.

        Raises:
            gymnasium.error.ResetNeeded: No episode has begun, or (DISABLED) all have ended.
            ValueError: Shape, type or range of the actions does not fit the action space.
        """
        waiting, disabled = self._over, self.autoreset_mode is AutoresetMode.DISABLED
        check_running(self._last is not None, disabled and bool(waiting.all()))
        chosen = check_actions(actions, self.num_envs, self.single_action_space)  # type: ignore[arg-type]
        outcome = self._advance(chosen, ~waiting)
        ended = self._count(outcome, waiting)
        fresh, infos = ended, {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos = self._final_infos(outcome, ended) if ended.any() else {}
        elif disabled:
            self._over, fresh = waiting | ended, np.zeros(self.num_envs, np.bool_)
        else:
            self._over, fresh = ended, waiting
        rows = np.flatnonzero(fresh).tolist()
        if rows:
            self._restart(rows, [self._next_seed(i) for i in rows], outcome)
        self._last = outcome
        infos |= self._infos(outcome, fresh if rows else None)
        return outcome.observation, outcome.rewards, outcome.terminated, outcome.truncated, infos

    def _count(self, outcome: BatchOutcome, waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Adds a step to the statistics, and truncates at `max_episode_steps`.

        Returns:
            (num_envs,), the episodes that end in this step.
        """
        if waiting.any():
            outcome.clear(waiting)
        self._returns += outcome.rewards
        self._elapsed_s += outcome.dt_s
        self._lengths += ~waiting
        if self.max_episode_steps is not None:
            limit = ~waiting & (self._lengths >= self.max_episode_steps)
            cut = np.flatnonzero(limit & ~outcome.terminated & ~outcome.truncated).tolist()
            outcome.truncated |= limit
            if cut and self.autoreset_mode is not AutoresetMode.SAME_STEP:
                self._stop(cut)
        ended: NDArray[np.bool_] = outcome.terminated | outcome.truncated
        if waiting.any() and self.autoreset_mode is AutoresetMode.DISABLED and self._last is not None:
            outcome.terminated |= waiting & self._last.terminated
            outcome.truncated |= waiting & self._last.truncated
            outcome.masks[waiting] = self._last.masks[waiting]
        return ended

    # -- info ----------------------------------------------------------------------------------------------------------

    def _infos(
        self,
        outcome: BatchOutcome,
        begun: NDArray[np.bool_] | None,
        present: NDArray[np.bool_] | None = None,
    ) -> dict[str, Any]:
        """The info of a step or a reset.

        Args:
            outcome: Outcome of the step or reset.
            begun: (num_envs,), episodes that began in it; None: none.
            present: (num_envs,), episodes that have info; None: all.
        """
        there = np.ones(self.num_envs, np.bool_) if present is None else present
        stepped = there
        if begun is not None:
            stepped = there & ~begun
            for values in (outcome.dt_s, *outcome.terms.values()):
                values[begun] = 0.0
            outcome.refused[begun] = ""
        return _info_of(outcome, there, stepped)

    def _final_infos(self, outcome: BatchOutcome, ended: NDArray[np.bool_]) -> dict[str, Any]:
        """Last observations and infos of the episodes that end, before their reset."""
        observations = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(ended).tolist():
            observations[i] = {name: part[i].copy() for name, part in outcome.observation.items()}
        info = _info_of(outcome, ended, ended, copied=True)
        statistics = {"r": self._returns, "l": self._lengths, "t": self._elapsed_s}
        own = {name: np.where(ended, values, 0) for name, values in statistics.items()}
        info |= _with_masks({"episode": _with_masks(own, ended)}, ended)
        return _with_masks({"final_obs": observations, "final_info": info}, ended)


def _info_of(
    outcome: BatchOutcome, there: NDArray[np.bool_], stepped: NDArray[np.bool_], copied: bool = False
) -> dict[str, Any]:
    """The info of the episodes in `there`, with reward terms of those in `stepped`."""

    def of(values: NDArray[Any]) -> NDArray[Any]:
        if not copied:
            return values
        nothing: Any = None if values.dtype == object else 0
        return np.where(there.reshape(-1, *[1] * (values.ndim - 1)), values, nothing).astype(values.dtype)

    terms = _with_masks({name: of(values) for name, values in outcome.terms.items()}, stepped)
    values = {
        "dt": of(outcome.dt_s),
        "reward_terms": terms,
        "refused": of(outcome.refused),
        "num_refused": of(outcome.num_refused),
        "action_mask": of(outcome.masks),
    }
    return _with_masks(values, there)


def _with_masks(values: dict[str, Any], mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Gymnasium's form of a vector info: each key with a mask of the episodes that have it."""
    infos: dict[str, Any] = {}
    for name, value in values.items():
        infos[name], infos[f"_{name}"] = value, mask
    return infos


class SimulatedVectorEnv(BaseVectorEnv):
    """Base class of the simulated vector environments: many episodes of one configuration.

    Attributes:
        env_class: The scalar environment, which gives configuration, episode and spaces.
        config: Configuration of the environment.
        episodes: The episodes.

    Args:
        num_envs: Number of episodes.
        render_mode: None.
        autoreset_mode: See `BaseVectorEnv`.
        max_episode_steps: See `BaseVectorEnv`.
        config: Arguments of the scalar environment.

    Raises:
        ValueError: An argument is unknown or impossible.
    """

    env_class: ClassVar[Any]

    def __init__(
        self,
        num_envs: int = 1,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
        **config: Any,
    ) -> None:
        check_vector_arguments(num_envs, render_mode, max_episode_steps)
        self.config = self._make_config(config)
        self.episodes: Sequence[Any] = [self.env_class.episode_class(self.config) for _ in range(num_envs)]
        spaces = self.env_class.make_spaces(self.episodes[0])
        super().__init__(num_envs, spaces, render_mode, autoreset_mode, max_episode_steps)

    def _make_config(self, config: dict[str, Any]) -> Any:
        return self.env_class.config_class(**config)


class SequentialVectorEnv(SimulatedVectorEnv):
    """Steps its episodes one after another; equal to the scalar environment step by step."""

    episodes: Sequence[SteppedEpisode[Any]]

    def _begin(self, rows: list[int], seeds: list[int]) -> tuple[BatchObservation, NDArray[np.bool_]]:
        observation = self._empty_observation(len(rows))
        for row, (i, seed) in enumerate(zip(rows, seeds, strict=True)):
            self.episodes[i].reset(seed, self._split)
            self._observe_into(self.episodes[i], observation, row)
        return observation, np.stack([self.episodes[i].mask() for i in rows])

    def _advance(self, actions: NDArray[np.int64], going: NDArray[np.bool_]) -> BatchOutcome:
        assert self._last is not None
        outcome = BatchOutcome.blank(
            self._empty_observation(self.num_envs), self._last.masks.copy(), self._last.num_refused.copy()
        )
        for i in np.flatnonzero(going).tolist():
            episode = self.episodes[i]
            outcome.put(i, episode.step(actions[i]))
            outcome.num_refused[i], outcome.masks[i] = episode.num_refused, episode.mask()
            self._observe_into(episode, outcome.observation, i)
        return outcome

    def _observe_into(self, episode: SteppedEpisode[Any], observation: BatchObservation, row: int) -> None:
        """Writes the observation of an episode into a row of a batch."""
        for name, part in episode.observe().items():
            observation[name][row] = part


def check_vector_arguments(num_envs: int, render_mode: str | None, max_episode_steps: int | None) -> None:
    """Checks the arguments of a vector environment.

    Raises:
        ValueError: `num_envs` or `max_episode_steps` is below 1, or a render mode is given.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if render_mode is not None:
        raise ValueError(f"render_mode must be None in a vector environment, got {render_mode!r}")
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ValueError(f"max_episode_steps must be at least 1 or None, got {max_episode_steps}")
