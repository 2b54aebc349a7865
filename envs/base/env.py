"""Base classes of the scalar environments."""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from typing import Any, ClassVar, Generic, Self, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from serving_gym.envs.base.features import Part
from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.base.render import BaseRenderer
from serving_gym.envs.base.validation import check_action, check_options, check_render_mode, check_running
from serving_gym.envs.base.vector_env import MAX_SEED
from serving_gym.envs.base.window import Window
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.reward import Outcome

Observation = dict[str, NDArray[np.float32]]
Config = TypeVar("Config")
State = TypeVar("State")


class BaseEnv(gym.Env[Observation, Any], Generic[Config, State]):
    """Base class of the scalar environments, simulated or on live servers.

    Attributes:
        parts: The arrays of the observation, number by number; empty: they are not described.
        make_spaces: Returns the observation and the action space of an episode.
        renderer_class: Draws episodes.
        commands: Classes of the commands that `step` takes besides actions of the action space and None.
        core: The episode; on live servers, a simulated episode of the same configuration.
        has_clock: Whether time alone brings decisions, so that a policy may be asked at a period of its own.
        period_s: Time between decisions that `ask_every` has set, seconds; None: the configuration's.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi", "rgb_array"], "render_fps": 10}
    parts: ClassVar[tuple[Part, ...]] = ()
    make_spaces: ClassVar[Any]
    renderer_class: ClassVar[type[BaseRenderer[Any]]]
    commands: ClassVar[tuple[type, ...]] = ()
    has_clock: ClassVar[bool] = False
    period_s: float | None = None
    core: Any

    def _set_up(self, core: Any, render_mode: str | None) -> None:
        """Sets the episode, its spaces and its renderer.

        Raises:
            ValueError: The render mode is unknown.
        """
        self.render_mode = check_render_mode(render_mode, self.metadata["render_modes"])
        self.core = core
        self.observation_space, self.action_space = type(self).make_spaces(core)
        self._renderer = self.renderer_class(core) if render_mode else None
        self._window = Window(type(self).__name__) if render_mode == "human" else None

    @property
    def config(self) -> Config:
        """Configuration of the environment."""
        config: Config = self.core.config
        return config

    @property
    def state(self) -> State:
        """State that a policy may read at this decision.

        Raises:
            gymnasium.error.ResetNeeded: No episode has begun.
        """
        if not self._begun:
            raise ResetNeeded("Cannot read env.state before calling env.reset()")
        return self._read_state()

    def _read_state(self) -> State:
        state: State = self.core.state
        return state

    @property
    def policy_spec(self) -> PolicySpec:
        """Setting that a policy may read before an episode."""
        spec: PolicySpec = self.core.policy_spec
        return spec.asked_every(self.period_s)

    def ask_every(self, period_s: float | None) -> None:
        """Lets decisions come at a policy's own period, from the next step on; the objective stays as it is.

        Args:
            period_s: Time between decisions, seconds; None: the configuration's.

        Raises:
            ValueError: Not positive, or decisions come with requests here and not with time.
        """
        if period_s is not None and not period_s > 0:
            raise ValueError(f"period_s must be positive, got {period_s}")
        if period_s is not None and not self.has_clock:
            raise ValueError(
                f"this policy is asked every {period_s:g} s; decisions of {type(self).__name__} do not follow a clock"
            )
        self.period_s = period_s

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the cluster has been provisioned."""
        return float(self.core.gpu_seconds)

    @property
    def _begun(self) -> bool:
        return bool(self.core.begun)

    @property
    def _over(self) -> bool:
        return bool(self.core.done)

    def _next_episode(self, seed: int | None, options: dict[str, Any] | None) -> tuple[int, str | None]:
        """Seed and split of the next episode. Without a seed, the next one of the generator's stream."""
        split = check_options(options)
        super().reset(seed=seed)
        return int(self.np_random.integers(MAX_SEED)) if seed is None else seed, split

    def _checked(self, action: Any) -> Any:
        """Checks an action.

        Raises:
            gymnasium.error.ResetNeeded: No episode is running.
            ValueError: The action is neither in the action space, nor a command, nor None.
        """
        check_running(self._begun, self._over)
        if action is None or isinstance(action, self.commands):
            return action
        return check_action(action, self.action_space, self.commands)  # type: ignore[arg-type]

    @property
    def renderer(self) -> BaseRenderer[Any] | None:
        """What draws the episode; None without a render mode."""
        return self._renderer

    def _begin_rendering(self) -> None:
        """Shows the renderer the first state of an episode."""
        if self._renderer:
            self._renderer.reset(self.state)
            self._show()

    def _record(self, action: Any, reward: float, refused: str = "") -> None:
        """Shows the renderer a decision and the state it led to."""
        if self._renderer:
            self._renderer.record(self.state, action, reward, refused)
            self._show()

    def _show(self) -> None:
        """Draws into the window of the render mode `human`."""
        if self._window and self._renderer:
            self._window.show(self._renderer.image(), 1.0 / self.metadata["render_fps"])

    def render(self) -> Any:
        """The cluster now: text (ansi), or a picture with the episode so far (rgb_array).

        With `human`, `reset` and `step` draw, and this returns None.

        Raises:
            gymnasium.error.ResetNeeded: No episode has begun.
        """
        if self._renderer is None:
            gym.logger.warn(
                "You are calling render method without specifying any render mode. You can specify the render_mode "
                f'at initialization, e.g. gym.make("{self.spec.id if self.spec else "ID"}", render_mode="rgb_array")'
            )
            return None
        if not self._begun:
            raise ResetNeeded("Cannot call env.render() before calling env.reset()")
        if self.render_mode == "human":
            return None
        return self._renderer.text() if self.render_mode == "ansi" else self._renderer.image()

    def close(self) -> None:
        """Closes the window of the render mode `human`."""
        if self._window:
            self._window.close()
        super().close()


class SimulatedEnv(BaseEnv[Config, State]):
    """Base class of the simulated scalar environments.

    Attributes:
        config_class: Class of the configuration; its fields are the arguments of the environment.
        episode_class: Class of the episode, built from a configuration.

    Args:
        render_mode: "human", "ansi", "rgb_array" or None.
        config: Fields of the configuration.

    Raises:
        ValueError: An argument is unknown or impossible.
    """

    config_class: ClassVar[type[Any]]
    episode_class: ClassVar[type[Any]]

    def __init__(self, render_mode: str | None = None, **config: Any) -> None:
        self._set_up(type(self).episode_class(type(self).config_class(**config)), render_mode)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins the episode of a seed; `options={"split": ...}` chooses the workload split it is drawn from."""
        self._begin(*self._next_episode(seed, options))
        self._begin_rendering()
        return self._observe(), self._info(0.0, {}, "")

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes an action and simulates to the next decision."""
        checked = self._checked(action)
        outcome = self._advance(checked)
        self._record(checked, outcome.reward, outcome.refused)
        info = self._info(outcome.dt_s, outcome.terms, outcome.refused)
        return self._observe(), outcome.reward, outcome.terminated, outcome.truncated, info

    @abstractmethod
    def _begin(self, seed: int, split: str | None) -> None:
        """Begins an episode."""

    @abstractmethod
    def _advance(self, action: Any) -> Outcome:
        """Takes an action that has been checked."""

    @abstractmethod
    def _observe(self) -> Observation:
        """The present observation."""

    @abstractmethod
    def action_masks(self) -> NDArray[np.bool_]:
        """Action mask, (actions,); of a `MultiDiscrete` space, the values of all entries concatenated."""

    def advance(self, action: Any) -> tuple[Any, float, bool]:
        """`step` with fewer results: observation, reward, and whether the episode is over.

        Args:
            action: The action.
        """
        observation, reward, terminated, truncated, _ = self.step(action)
        return observation, float(reward), terminated or truncated

    def records(self) -> RequestRecords:
        """Records of every request that has arrived.

        Raises:
            ValueError: The configuration does not keep records.
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

    def fork(self) -> Self:
        """Returns a copy that continues with the same random numbers; it does not render."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._np_random = deepcopy(self._np_random)
        copy.render_mode, copy._renderer, copy._window = None, None, None
        self._fork_core(copy)
        return copy

    def _fork_core(self, copy: Self) -> None:
        """Forks the episode into a copy."""
        copy.core = self.core.fork()


class SteppedEnv(SimulatedEnv[Config, State]):
    """A simulated environment whose episode is a `SteppedEpisode`.

    Attributes:
        observes_lazily: Whether `step` returns an observation that is computed on first access, before the next step.
    """

    observes_lazily: bool = False

    def _begin(self, seed: int, split: str | None) -> None:
        self.core.reset(seed, split)

    def _advance(self, action: Any) -> Outcome:
        outcome: Outcome = (
            self.core.step(action) if self.period_s is None else self.core.step(action, self.period_s)
        )
        return outcome

    def _observe(self) -> Observation:
        observation: Any = LazyObservation(self.core.observe) if self.observes_lazily else self.core.observe()
        seen: Observation = observation
        return seen

    def advance(self, action: Any) -> tuple[Any, float, bool]:
        """`step` with fewer results and a lazy observation; nothing is rendered.

        Args:
            action: The action.
        """
        outcome = self._advance(self._checked(action))
        return LazyObservation(self.core.observe), outcome.reward, outcome.terminated or outcome.truncated

    def action_masks(self) -> NDArray[np.bool_]:
        """Action mask, (actions,); of a `MultiDiscrete` space, the values of all entries concatenated."""
        mask: NDArray[np.bool_] = self.core.mask()
        return mask
