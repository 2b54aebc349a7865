"""Records what a policy saw, did and got in an episode, decision by decision."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Adapter
from serving_gym.agents.environments.spaces import ActionSpace, highest, plain_action
from serving_gym.baselines.policy import Policy
from serving_gym.envs.interface.policy_spec import PolicySpec

_STREAM = 0xC0113C
Step = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the last episode of a scalar environment.

    Attributes:
        mask: Action mask of the present decision, (entries,).
        explored: Whether the next action is a random one.
        terms: Names of the reward terms, in the order of `infos["reward_terms"]`; empty before the first step.
    """

    mask: NDArray[np.bool_]

    @property
    def levers(self) -> ActionSpace:
        """The action space."""
        levers = self.action_space
        assert isinstance(levers, ActionSpace)
        return levers

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.terms: tuple[str, ...] = ()
        self.explored = False

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, and forgets the last."""
        observation, info = super().reset(**kwargs)
        self._observations: dict[str, list[NDArray[np.float32]]] = {name: [] for name in observation}
        self._actions: list[Any] = []
        self._rewards: list[float] = []
        self._ends: list[tuple[bool, bool]] = []
        self._infos: list[tuple[NDArray[np.bool_], float, bool, bool]] = []
        self._terms: list[dict[str, float]] = []
        self._see(observation, info, False)
        return observation, info

    def step(self, action: Any) -> Step:
        """Takes an action of the action space and keeps what came of it."""
        observation, reward, terminated, truncated, info = super().step(action)
        self._actions.append(np.array(action))
        self._rewards.append(float(reward))
        self._ends.append((terminated, truncated))
        self._terms.append(info["reward_terms"])
        self._see(observation, info, self.explored)
        return observation, reward, terminated, truncated, info

    def _see(self, observation: Any, info: dict[str, Any], explored: bool) -> None:
        self.mask = np.array(info["action_mask"], bool)
        for name, part in observation.items():
            self._observations[name].append(np.array(part))
        self._infos.append((self.mask, float(info["dt"]), bool(info["refused"]), explored))

    def episode(self) -> dict[str, Any]:
        """Fields of Minari's `EpisodeBuffer`: T decisions, and T + 1 observations and infos.

        `infos` has `action_mask` (T + 1, entries) of the observation beside it, and of the decision that led to it
        `dt` (T + 1,), seconds, `refused` (T + 1,), `explored` (T + 1,), whether it was a random one, and `reward_terms`
        (T + 1, terms), before weighting; zeros at first.
        """
        self.terms = tuple(self._terms[0])
        masks, dt_s, refused, explored = zip(*self._infos, strict=True)
        terms = [[0.0] * len(self.terms), *([each[name] for name in self.terms] for each in self._terms)]
        return {
            "observations": {name: np.stack(parts) for name, parts in self._observations.items()},
            "actions": np.stack(self._actions).astype(self.action_space.dtype),
            "rewards": self._rewards,
            "terminations": [terminated for terminated, _ in self._ends],
            "truncations": [truncated for _, truncated in self._ends],
            "infos": {
                "action_mask": np.stack(masks),
                "dt": list(dt_s),  # Minari 0.5 does not read vectors of one dimension
                "refused": list(refused),
                "explored": list(explored),
                "reward_terms": np.array(terms),
            },
        }


class Numbered:
    """A policy whose decisions are actions of the action space: the possible one nearest to what it says.

    It is asked when the environment asks, also where it has a period of its own.

    Args:
        policy: The policy.
        adapter: Of the environment.
        recorder: The environment, whose action mask counts.
        explore: Share of decisions that are replaced by random possible actions.
    """

    def __init__(self, policy: Policy, adapter: Adapter, recorder: Recorder, explore: float = 0.0) -> None:
        self.policy, self.adapter, self.recorder, self.explore = policy, adapter, recorder, explore
        self.name, self.clairvoyant = policy.name, policy.clairvoyant

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares for an episode."""
        self.policy.reset(spec, seed)
        self._spec, self._rng = spec, np.random.default_rng([seed, _STREAM])

    def act(self, observation: Any, state: Any) -> Any:
        """Decides.

        Raises:
            ValueError: No action of the action space stands for what the policy says.
        """
        recorder = self.recorder
        said = self.policy.act(observation, state)
        chosen = self.adapter.index_of(said, state, recorder.mask, self._spec)
        recorder.explored = bool(self.explore) and self._rng.random() < self.explore
        if not recorder.explored:
            return chosen
        chances = self._rng.random((1, len(recorder.mask))).astype(np.float32)
        return plain_action(highest(chances, recorder.mask[None], recorder.levers)[0])
