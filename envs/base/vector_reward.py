"""Rewards as vectors, in the form of MO-Gymnasium (1.3, `mo_gymnasium/wrappers/wrappers.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice

Step = tuple[Any, NDArray[np.float64], bool, bool, dict[str, Any]]
REFUSED = "refused/"  # of a term of each class, where admission is a decision


class VectorReward(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """`step` returns the terms of the reward as a vector; their product with `reward_weights` is the reward.

    `env.unwrapped.reward_space` and `env.unwrapped.reward_dim` are there as well, as MO-Gymnasium's wrappers need them:
    `LinearReward(env, weight=env.reward_weights)` gives the scalar reward back. The scalar is `info["scalar_reward"]`.

    Args:
        env: A scalar environment of this package.
        objectives: By the name of each entry of the vector, the terms in it, weighted and added up; all weights are
            then 1. "*" stands for all terms that no other objective names. None: one entry a term, unweighted.

    Attributes:
        reward_names: What each entry is, (reward_dim,).
        reward_weights: (reward_dim,), weights of the entries in the scalar reward, the objective's scale included.
        reward_space: Of the vector.
        reward_dim: Its length.

    Raises:
        ValueError: The environment is none of this package, an objective names a term that there is not, or the
            scalar reward has a part that no term tells.
    """

    def __init__(self, env: gym.Env[Any, Any], objectives: Mapping[str, Sequence[str]] | None = None) -> None:
        RecordConstructorArgs.__init__(self, objectives=objectives)
        gym.Wrapper.__init__(self, env)
        core: Any = getattr(env.unwrapped, "core", None)
        if not hasattr(core, "term_weights"):
            raise ValueError(
                f"VectorReward is for environments of serving-gym, got {type(env.unwrapped).__name__}"
            )
        config: Any = env.unwrapped.config  # type: ignore[attr-defined]
        objective = config.objective
        weights = {name: objective.scale * weight for name, weight in core.term_weights.items()}
        if objective.refused and not any(name.startswith(REFUSED) for name in weights):
            raise ValueError(
                f"objective.refused must be 0 for a vector reward without admission, got {objective.refused}: "
                "no term tells refusals alone"
            )
        self._terms = tuple(weights)
        self._mixing, self.reward_names, self.reward_weights = _entries(weights, objectives)
        self.reward_dim = len(self.reward_names)
        self.reward_space = spaces.Box(-np.inf, np.inf, (self.reward_dim,), np.float64)
        base: Any = env.unwrapped
        base.reward_space, base.reward_dim = self.reward_space, self.reward_dim

    def step(self, action: Any) -> Step:
        """Takes an action; the reward is (reward_dim,)."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        terms = np.array([info["reward_terms"][name] for name in self._terms])
        info["scalar_reward"] = float(reward)
        return observation, self._mixing @ terms, terminated, truncated, info


def _entries(
    weights: Mapping[str, float], objectives: Mapping[str, Sequence[str]] | None
) -> tuple[NDArray[np.float64], tuple[str, ...], NDArray[np.float64]]:
    """What each term adds to each entry, (reward_dim, terms); names of the entries; their weights.

    Raises:
        ValueError: A term is unknown, or in two objectives, or in none.
    """
    if objectives is None:
        return np.eye(len(weights)), tuple(weights), np.array(list(weights.values()))
    named = [term for terms in objectives.values() for term in terms if term != "*"]
    for term in named:
        check_choice("reward term", term, weights)
    twice = sorted({term for term in named if named.count(term) > 1})
    if twice:
        raise ValueError(f"objectives has the reward term {twice[0]!r} more than once")
    rest = [term for term, weight in weights.items() if term not in named and weight]
    takers = [name for name, terms in objectives.items() if "*" in terms]
    if len(takers) != 1 and (rest or takers):
        raise ValueError(
            f"exactly one objective must have '*', which stands for the other terms ({', '.join(rest)}), "
            f"got {len(takers)}"
        )
    mixing = np.zeros((len(objectives), len(weights)))
    for i, (name, terms) in enumerate(objectives.items()):
        held = [*(term for term in terms if term != "*"), *(rest if name in takers else [])]
        for j, term in enumerate(weights):
            mixing[i, j] = weights[term] if term in held else 0.0
    return mixing, tuple(objectives), np.ones(len(objectives))
