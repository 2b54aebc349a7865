"""Checks of what a user gives an environment: actions, reset options, render and autoreset modes."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.workload.registry import SPLITS

ActionSpace = gym.spaces.Discrete | gym.spaces.MultiDiscrete


def check_action(action: Any, space: ActionSpace, commands: tuple[type, ...] = ()) -> Any:
    """An action of a space: an `int`, or the int64 vector of several levers.

    Args:
        action: A Python or NumPy integer or a 0-dimensional integer array; for several levers a vector of integers.
        space: The action space.
        commands: What the environment takes besides, for the message.

    Raises:
        ValueError: Shape, type or range are others.
    """
    array = _integers(action)
    if array is None or array.shape != space.shape or not _in_range(array, space):
        besides = "".join(f", a {command.__name__}" for command in commands)
        raise ValueError(f"action must be {_allowed(space)}{besides} or None, got {action!r}")
    return int(array) if isinstance(space, gym.spaces.Discrete) else array.astype(np.int64)


def check_actions(actions: Any, num_envs: int, space: ActionSpace) -> NDArray[np.int64]:
    """Actions of many episodes, (num_envs,) or (num_envs, levers) int64.

    Args:
        actions: Integers, one action for each episode.
        num_envs: Number of episodes.
        space: The action space of one of them.

    Raises:
        ValueError: Shape, type or range are others.
    """
    array = _integers(actions)
    shape = (num_envs, *(space.shape or ()))
    if array is None or array.shape != shape or not _in_range(array, space):
        raise ValueError(f"actions must have the shape {shape}, each {_allowed(space)}, got {actions!r}")
    return array.astype(np.int64, copy=False)


def _integers(value: Any) -> NDArray[np.integer] | None:
    """As an array of integers; None if it is something else (a boolean, a float, a string)."""
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        return None
    return array if array.dtype.kind in "iu" else None


def _in_range(array: NDArray[np.integer], space: ActionSpace) -> bool:
    if isinstance(space, gym.spaces.Discrete):
        return bool(array.min() >= 0 and array.max() < space.n)
    return bool((array >= 0).all() and (array < space.nvec).all())


def _allowed(space: ActionSpace) -> str:
    if isinstance(space, gym.spaces.Discrete):
        return f"an integer from 0 to {space.n - 1}"
    return f"{len(space.nvec)} integers from 0 to {(space.nvec - 1).tolist()}"


def check_options(options: Mapping[str, Any] | None, known: Collection[str] = ("split",)) -> str | None:
    """The split that the options of `reset` ask for; None: the configuration's.

    Args:
        options: As given to `reset`.
        known: Keys that there are.

    Raises:
        ValueError: A key or the split is unknown.
    """
    given = options or {}
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"unknown reset option {key!r}; did you mean {near!r}? known: {', '.join(known)}"
            )
    split: str | None = given.get("split")
    if split is not None:
        check_choice("options['split']", split, SPLITS)
    return split


def check_reset_mask(options: Mapping[str, Any] | None, num_envs: int) -> NDArray[np.bool_]:
    """(num_envs,), which episodes `options["reset_mask"]` begins anew; without the option all.

    Raises:
        ValueError: It is no boolean array of that shape, or nothing in it is true.
    """
    mask = (options or {}).get("reset_mask")
    if mask is None:
        return np.ones(num_envs, np.bool_)
    chosen = np.asarray(mask)
    if chosen.dtype != np.bool_ or chosen.shape != (num_envs,) or not chosen.any():
        raise ValueError(
            f"options['reset_mask'] must be booleans of shape ({num_envs},) with at least one true, got {mask!r}"
        )
    return chosen


def check_render_mode(render_mode: str | None, modes: Collection[str]) -> str | None:
    """The render mode.

    Raises:
        ValueError: It is unknown.
    """
    if render_mode is not None and render_mode not in modes:
        allowed = ", ".join((*map(repr, modes), "None"))
        raise ValueError(f"render_mode must be one of {allowed}, got {render_mode!r}")
    return render_mode


def check_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """The autoreset mode, by itself, its name or its value.

    Raises:
        ValueError: It is unknown.
    """
    for known in AutoresetMode:
        if mode in (known, known.name, known.value):
            return known
    allowed = ", ".join(known.name for known in AutoresetMode)
    raise ValueError(f"autoreset_mode must be one of {allowed}, got {mode!r}")


def check_running(begun: bool, over: bool) -> None:
    """Refuses a step without an episode.

    Raises:
        gymnasium.error.ResetNeeded: No episode has begun, or it has ended.
    """
    if not begun:
        raise ResetNeeded("Cannot call env.step() before calling env.reset()")
    if over:
        raise ResetNeeded("Cannot call env.step() after the episode has ended; call env.reset()")
