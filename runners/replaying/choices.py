"""What policies choose in logged states, and the features of a choice that its cost is predicted from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import Policy
from serving_gym.runners.replaying.log import UNKNOWN, Coder, Log

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Choices:
    """Choices of policies in the logged states.

    Attributes:
        actions: By policy (N,), numbers of its actions; UNKNOWN: it failed, or chose what is not possible.
        failures: By policy, the first error and how often there was one.
        observations: The observation of each state.
        places: Rows for places of routing.
    """

    actions: dict[str, NDArray[np.int64]]
    failures: dict[str, str]
    observations: list[dict[str, NDArray[np.float32]]]
    places: int

    def features(self, log: Log, actions: NDArray[np.int64]) -> Floats:
        """Features of an action of routing in each state, (N, features).

        They are the observation's row of the chosen place, the same relative to the mean of the places that could be
        chosen, the observation's other parts, the place's number and whether it is one at all.

        Args:
            log: The log.
            actions: (N,), an action for each state.
        """
        rows = []
        for state, observation, action in zip(log.states, self.observations, actions.tolist(), strict=True):
            places = observation["places"]
            possible = np.flatnonzero(state.can_take)
            mean = places[possible].mean(axis=0) if possible.size else np.zeros(places.shape[1])
            is_place = 0 <= action < self.places
            own = places[action] if is_place else np.zeros(places.shape[1])
            others = [part.ravel() for name, part in observation.items() if name != "places"]
            rows.append(
                np.concatenate(
                    [own, own - mean, *others, [float(action if is_place else -1), float(is_place)]]
                )
            )
        return np.array(rows, np.float64)


def choices_of(policies: Mapping[str, Policy], log: Log, coder: Coder, seed: int) -> Choices:
    """Asks policies in every logged state, in order; each episode begins with a reset.

    A policy sees the states that the logged decisions led to, not those that its own would have led to.

    Args:
        policies: By name.
        log: The log.
        coder: Numbers of actions.
        seed: Of the policies, where the log has none.
    """
    served = coder.served
    actions = {name: np.full(len(log), UNKNOWN, np.int64) for name in policies}
    failed: dict[str, list[str]] = {name: [] for name in policies}
    observations = []
    for row, state in enumerate(log.states):
        if row == 0 or log.episode[row] != log.episode[row - 1]:
            served.reset()
            own = seed if log.seed[row] == UNKNOWN else int(log.seed[row])
            for policy in policies.values():
                policy.reset(served.spec, own)
        observation = served.observe(state)
        observations.append(observation)
        for name, policy in policies.items():
            try:
                decision = served.decision(policy.act(observation, state), state)
                actions[name][row] = coder.code(served.wire.write_action(decision))
            except Exception as error:  # noqa: BLE001 -- whatever a policy does, the others are replayed
                failed[name].append(f"{type(error).__name__}: {error}")
    failures = {
        name: f"{len(reasons)} of {len(log)} decisions failed, first by {reasons[0]}"
        for name, reasons in failed.items()
        if reasons
    }
    return Choices(actions, failures, observations, coder.num_rows or 0)
