"""A clairvoyant search: at every decision it compares candidates on forks of the true future.

It is a reference, not a bound: it varies one decision and follows a base policy afterwards, so a better
policy may exceed it. It shows how much can be gained.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.environments.spaces import entries
from serving_gym.baselines.policy import Action, Policy
from serving_gym.envs.interface.policy_spec import PolicySpec


class ClairvoyantSearchPolicy:
    """Takes the candidate whose rollout has the highest return on the true arrivals.

    Args:
        env: The scalar environment that it decides in; it forks it.
        env_name: Its name.
        base: Policy that rollouts follow after the candidate; its action is always a candidate. None: no action.
        horizon: Rollout length, decisions.
        candidates: Most actions compared; a random sample if there are more. In a `MultiDiscrete` action space a
            candidate differs from the base's action in the entries of one row of the observation.
        every: Decisions between two searches; in between, the base decides, or no action is taken (`hold`).
        hold: Whether to also compare rollouts without further actions after the candidate, one of them without any
            action. If one of these is best, no action is taken until the next search. Without this, a base that undoes
            the candidate at once hides its value. In routing and sharing "no action" means that requests are held.

    Raises:
        ValueError: the environment cannot be forked, or its action space is not discrete.
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
        hold: bool = False,
    ) -> None:
        if not hasattr(env.unwrapped, "fork"):
            raise ValueError(f"env {env_name!r} cannot be forked, which a clairvoyant search needs")
        if not isinstance(env.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
            raise ValueError(f"env {env_name!r} does not take numbers, which a clairvoyant search tries")
        self.env, self.base, self.adapter = env.unwrapped, base, adapter_of(env_name)
        self.horizon, self.candidates, self.every, self.hold = horizon, candidates, every, hold

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares the base."""
        self._rng, self._decisions, self._spec = np.random.default_rng(seed), 0, spec
        self._held = False
        if self.base is not None:
            self.base.reset(spec, seed)

    def act(self, observation: Any, state: Any) -> Action:
        """The best candidate."""
        usual = None if self.base is None else self.base.act(observation, state)
        self._decisions += 1
        if (self._decisions - 1) % self.every:
            return None if self._held else usual
        options = self._options(usual, observation, state)
        actions = [usual, *options]
        values = self._values(actions)
        if self.hold:
            actions += [None, *options]
            values = np.append(values, [self._rollout(action, None) for action in (None, *options)])
        best = int(np.argmax(values))
        self._held = best > len(options)
        return actions[best]

    def _values(self, actions: list[Action]) -> NDArray[np.float64]:
        """Return of each action followed by the base; computed inside the kernel if both support it."""
        score = getattr(self.base, "in_kernel", None)
        if score is not None and hasattr(self.env, "roll_forks"):
            values: NDArray[np.float64] = self.env.roll_forks(actions, score, self.horizon)
            return values
        return np.array([self._rollout(action, self.base) for action in actions])

    def _options(self, usual: Action, observation: Any, state: Any) -> list[Any]:
        """Actions to compare with the base's."""
        mask = self.env.action_masks()
        if isinstance(self.env.action_space, spaces.MultiDiscrete):
            vector = self.adapter.index_of(usual, state, mask, self._spec)
            rows = len(observation[self.adapter.rows]) if self.adapter.rows else 1
            return [self._varied(vector, rows, mask) for _ in range(self.candidates - 1)]
        options = self.adapter.candidates(observation, state, mask)
        if len(options) >= self.candidates:
            options = self._rng.choice(options, self.candidates - 1, replace=False)
        chosen: list[Any] = options.tolist()
        return chosen

    def _varied(self, vector: NDArray[np.int64], rows: int, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The action with the entries of one row redrawn from the possible values."""
        sizes = entries(self.env.action_space)
        begins = np.cumsum((0, *sizes))
        row, levers = int(self._rng.integers(rows)), len(sizes) // rows
        varied = vector.copy()
        for lever in range(row * levers, (row + 1) * levers):
            own = mask[begins[lever] : begins[lever + 1]]
            varied[lever] = self._rng.choice(np.flatnonzero(own))
        return varied

    def _rollout(self, action: Action, base: Policy | None) -> float:
        """Return of an action followed by a policy, less the charge for the queue at the end.

        Args:
            action: The first action.
            base: The policy; None: no action.
        """
        env, base = self.env.fork(), copy.deepcopy(base)
        total = 0.0
        for _ in range(self.horizon):
            observation, reward, terminated, truncated, _ = env.step(action)
            total += reward
            if terminated or truncated:
                return total
            action = None if base is None else base.act(observation, env.state)
        return total + float(getattr(env, "standing_reward", 0.0))
