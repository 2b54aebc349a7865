"""Checks of user input to an environment: actions, reset options, render and autoreset modes."""

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
    """Checks an action; returns an `int`, or an int64 vector for a `MultiDiscrete` space.

    Args:
        action: A Python or NumPy integer or a 0-dimensional integer array; for `MultiDiscrete` a vector of integers.
        space: The action space.
        commands: Command classes that the environment also takes, for the message.

    Raises:
        ValueError: Shape, type or range does not fit the space.
    """
    array = _integers(action)
    if array is None or array.shape != space.shape or not _in_range(array, space):
        besides = "".join(f", a {command.__name__}" for command in commands)
        raise ValueError(f"action must be {_allowed(space)}{besides} or None, got {action!r}")
    return int(array) if isinstance(space, gym.spaces.Discrete) else array.astype(np.int64)


def check_actions(actions: Any, num_envs: int, space: ActionSpace) -> NDArray[np.int64]:
    """Checks the actions of a vector environment; returns int64, (num_envs,) or (num_envs, entries).

    Args:
        actions: Integers, one action for each episode.
        num_envs: Number of episodes.
        space: The action space of one episode.

    Raises:
        ValueError: Shape, type or range does not fit the space.
    """
    array = _integers(actions)
    shape = (num_envs, *(space.shape or ()))
    if array is None or array.shape != shape or not _in_range(array, space):
        raise ValueError(f"actions must have the shape {shape}, each {_allowed(space)}, got {actions!r}")
    return array.astype(np.int64, copy=False)


def _integers(value: Any) -> NDArray[np.integer] | None:
    """The value as an array of integers; None if it is something else (a boolean, a float, a string)."""
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
    """Checks the options of `reset`; returns their split; None: the configuration's.

    Args:
        options: The options given to `reset`.
        known: Allowed keys.

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
    """(num_envs,), the episodes that `options["reset_mask"]` resets; without the option, all.

    Raises:
        ValueError: The mask is not a boolean array of that shape, or has no true entry.
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
    """Checks a render mode.

    Raises:
        ValueError: The mode is unknown.
    """
    if render_mode is not None and render_mode not in modes:
        allowed = ", ".join((*map(repr, modes), "None"))
        raise ValueError(f"render_mode must be one of {allowed}, got {render_mode!r}")
    return render_mode


def check_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Returns the autoreset mode given as a member, a name or a value.

    Raises:
        ValueError: The mode is unknown.
    """
    for known in AutoresetMode:
        if mode in (known, known.name, known.value):
            return known
    allowed = ", ".join(known.name for known in AutoresetMode)
    raise ValueError(f"autoreset_mode must be one of {allowed}, got {mode!r}")


def check_running(begun: bool, over: bool) -> None:
    """Raises if no episode is running.

    Raises:
        gymnasium.error.ResetNeeded: No episode has begun, or it has ended.
    """
    if not begun:
        raise ResetNeeded("Cannot call env.step() before calling env.reset()")
    if over:
        raise ResetNeeded("Cannot call env.step() after the episode has ended; call env.reset()")
