"""A clairvoyant search: at every decision it tries candidates on forks of the world that is to come.

It is a reference, not a bound: it looks one decision ahead and follows a plain policy from there, so that a better
policy may well beat it. What it shows is that there is room.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.adapter import adapter_of
from baselines.policy import Action, Policy
from envs.policy_spec import PolicySpec


class ClairvoyantSearchPolicy:
    """Takes the candidate whose rollout returns most, on the arrivals that really come.

    Args:
        env: The scalar environment that it decides in; it forks it.
        env_name: Its name.
        base: What rollouts follow after the candidate; its own choice is always one. None: all is left as it is.
        horizon: Decisions that a rollout looks ahead.
        candidates: Most actions compared; more are drawn from.
        every: Decisions between two searches; in between, the base decides.

    Raises:
        ValueError: the environment cannot be forked, or takes several numbers a decision.
    """

    clairvoyant = True
    name = "clairvoyant_search"

    def __init__(
        self,
        env: Any,
        env_name: str,
        base: Policy | None,
        horizon: int = 100,
        candidates: int = 8,
        every: int = 1,
    ) -> None:
        if not hasattr(env.unwrapped, "fork"):
            raise ValueError(f"env {env_name!r} cannot be forked, which a clairvoyant search needs")
        if not isinstance(env.action_space, spaces.Discrete):
            raise ValueError(
                f"env {env_name!r} takes several numbers a decision, a clairvoyant search tries one"
            )
        self.env, self.base, self.adapter = env.unwrapped, base, adapter_of(env_name)
        self.horizon, self.candidates, self.every = horizon, candidates, every

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares the base."""
        self._rng, self._decisions = np.random.default_rng(seed), 0
        if self.base is not None:
            self.base.reset(spec, seed)

    def act(self, observation: Any, state: Any) -> Action:
        """The best candidate."""
        usual = None if self.base is None else self.base.act(observation, state)
        self._decisions += 1
        if (self._decisions - 1) % self.every:
            return usual
        options = self.adapter.candidates(observation, state, self.env.action_masks())
        if len(options) >= self.candidates:
            options = self._rng.choice(options, self.candidates - 1, replace=False)
        actions = [usual, *options.tolist()]
        return actions[int(np.argmax(self._values(actions)))]

    def _values(self, actions: list[Action]) -> NDArray[np.float64]:
        """Return of each action and what the base does after it; inside the kernel where both can be there."""
        score = getattr(self.base, "in_kernel", None)
        if score is not None and hasattr(self.env, "roll_forks"):
            values: NDArray[np.float64] = self.env.roll_forks(actions, score, self.horizon)
            return values
        return np.array([self._rollout(action) for action in actions])

    def _rollout(self, action: Action) -> float:
        """Return of an action and what the base does after it."""
        env, base = self.env.fork(), copy.deepcopy(self.base)
        total = 0.0
        for _ in range(self.horizon):
            observation, reward, terminated, truncated, _ = env.step(action)
            total += reward
            if terminated or truncated:
                break
            action = None if base is None else base.act(observation, env.state)
        return total
