"""Records the states of an evaluation with its decisions, and lets some decisions be random, for `runners.replay`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from serving_gym.baselines.policy import Policy, PolicySpec
from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.envs.live.control import NoDecision
from serving_gym.envs.routing.action import decode_action
from serving_gym.envs.routing.state import Dispatch, RoutingState
from serving_gym.runners.serving.served import served_environment

VERSION = 1
STATES_FILE = "states.jsonl"


class Exploring:
    """A routing policy of whose decisions a share is drawn evenly from the places that can take the request.

    Args:
        policy: The policy.
        share: Share of random decisions.
        num_rows: Rows for places in the observation.

    Attributes:
        propensity: Probability with which the last decision was taken, given what the policy itself chose.
    """

    def __init__(self, policy: Policy, share: float, num_rows: int) -> None:
        self.policy, self.share, self.num_rows = policy, share, num_rows
        self.name, self.clairvoyant = policy.name, policy.clairvoyant
        self.propensity = 1.0
        self.unhurried = getattr(
            policy, "unhurried", contextlib.nullcontext
        )  # of one in a process of its own

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares for an episode."""
        self.policy.reset(spec, seed)
        self._random = np.random.default_rng([seed, 0x5EED])

    def act(self, observation: Any, state: RoutingState) -> Any:
        """Decides."""
        action: Any = self.policy.act(observation, state)
        if isinstance(action, NoDecision):  # late, or failed, on live servers
            return action
        verdict = decode_action(action, self.num_rows)
        own = verdict.place if isinstance(verdict, Dispatch) else None
        places = np.flatnonzero(state.can_take)
        self.propensity = 1.0
        if not places.size or not self.share:
            return action
        explores = self._random.random() < self.share
        drawn = int(self._random.choice(places))
        place = drawn if explores else own
        evenly = self.share / places.size if place is not None else 0.0
        self.propensity = evenly + (1.0 - self.share) * (place == own)
        return action if place == own else drawn


class StateLog(gym.Wrapper[Any, Any, Any, Any]):
    """Writes each decision of a routing environment with its state, one JSON object a line.

    The lines have the form of the decision log of `runners.serve`, and `seed` and `index`. On live servers, a decision
    that was taken for the policy because it was late has `applied` false and no propensity.

    Args:
        env: The environment.
        policy: The policy that decides in it; its `propensity` is read where it has one.
        path: File to write.
        goes_on: Whether the run was interrupted before: the file is added to.
    """

    def __init__(self, env: gym.Env[Any, Any], policy: Policy, path: Path, goes_on: bool = False) -> None:
        super().__init__(env)
        self.policy = policy
        self._file = path.open("a" if goes_on else "w", encoding="utf-8")
        self._seed: int | None = None
        self._wire = served_environment("routing", env.unwrapped).wire

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        self._seed = seed
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a decision and writes it."""
        core: Any = self.env.unwrapped
        state: RoutingState = core.state
        num_rows, written = core.config.num_rows, self._wire.write_state(state)
        outcome = self.env.step(action)
        info = outcome[4]
        assert state.request is not None, "an episode that is not over offers a request"
        overrides = {override.row for override in info.get("overrides", ())}
        late = state.request.index in overrides
        place = info["executed"] if "executed" in info else _place(action, num_rows)
        line = {
            "v": VERSION,
            "at_s": state.now_s,
            "env": "routing",
            "policy": self.policy.name,
            "seed": self._seed,
            "state": written,
            "action": {"kind": "dispatch", "place": None if place is None else int(place)},
            "applied": not late,
            "fallback": None,
            "propensity": None if late else getattr(self.policy, "propensity", 1.0),
            "reward": float(outcome[1]),
        }
        self._file.write(json.dumps(to_jsonable(line), allow_nan=False) + "\n")
        return outcome

    def close_file(self) -> None:
        """Closes the file; the environment stays open."""
        self._file.close()


def _place(action: Any, num_rows: int) -> int | None:
    verdict = decode_action(int(action) if isinstance(action, np.integer) else action, num_rows)
    return verdict.place if isinstance(verdict, Dispatch) else None
