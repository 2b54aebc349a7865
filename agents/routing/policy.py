"""The learned router: the place with the highest score."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.routing.set_network import SetScorer
from agents.spaces import check_observation
from envs.policy_spec import PolicySpec
from envs.routing.state import RoutingState

Observation = Mapping[str, NDArray[np.float32]]


class SetPolicy:
    """Greedy in a set network; it routes for any number of places.

    Args:
        scorer: Scores places.
        name: What it is called in results.
        observation: What it was trained to see; the number of places may be another.
        masked: Whether it chooses among the possible actions only.
        holds: Whether it may hold a request that some place could take.
    """

    clairvoyant = False

    def __init__(
        self, scorer: SetScorer, name: str, observation: spaces.Dict, masked: bool = True, holds: bool = False
    ) -> None:
        self.scorer, self.name, self.observation = scorer, name, observation
        self.masked, self.holds = masked, holds
        self._checked = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Looks at the setting.

        Raises:
            ValueError: the cluster is a node, whose engines are what is decided.
        """
        _ = spec.fleet
        self._checked = False

    def act(self, observation: Observation, state: RoutingState) -> int:
        """The best action, without chance.

        Raises:
            ValueError: the observation is of another shape than those trained on.
        """
        self.check(observation)
        rows = len(observation["places"])
        masks = np.zeros((1, rows + 1), bool)
        masks[0, : len(state.can_take)] = state.can_take
        masks[0, rows] = True
        return int(self.act_batch({key: value[None] for key, value in observation.items()}, masks)[0])

    def check(self, observation: Observation) -> None:
        """Looks at the first observation of an episode.

        Raises:
            ValueError: it is of another shape than those trained on.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation, rows_of="places")
            self._checked = True

    def act_batch(self, observation: Observation, masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The best action in each of N episodes, (N,).

        Args:
            observation: N first.
            masks: (N, R + 1).
        """
        context = np.concatenate([observation["request"], observation["cluster"]], axis=1)
        scores = self.scorer.scores(context, observation["places"], self.holds)
        if self.masked:
            scores = np.where(masks[:, : scores.shape[1]], scores, -np.inf)
        best = scores.argmax(axis=1)
        if self.masked and not self.holds:
            best = np.where(masks[:, :-1].any(axis=1), best, masks.shape[1] - 1)
        return best.astype(np.int64)
