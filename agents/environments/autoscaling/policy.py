"""The learned policy: at every endpoint, what has the highest score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.autoscaling.features import (
    Actions,
    encode_actions,
    encode_state,
    options,
)
from serving_gym.agents.environments.spaces import check_observation, entries
from serving_gym.agents.learners.api.start import Start
from serving_gym.agents.networks.score_network import Scores
from serving_gym.baselines.policy import Action
from serving_gym.envs.autoscaling.action import LEVERS, is_changes, mask_from_state, vector_from_changes
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState
from serving_gym.envs.interface.policy_spec import PolicySpec

Observation = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Options:
    """What may be done at a decision.

    Attributes:
        rows: (K, 3) entries of the levers of each endpoint; the last are what the policy that was started from would
            do there, if there is one.
        proposed: What that policy says, of all endpoints.
        started: Whether there is one.
    """

    rows: Sequence[Actions]
    proposed: Any = None
    started: bool = False

    @property
    def usual(self) -> tuple[int, ...]:
        """Last row of each endpoint."""
        return tuple(len(rows) - 1 for rows in self.rows)

    def action(self, chosen: Sequence[int]) -> Any:
        """The action for the environment: the proposal itself, where its row is chosen at all endpoints.

        Args:
            chosen: (P,) row of each endpoint.
        """
        if self.started and tuple(chosen) == self.usual:
            return self.proposed
        return np.concatenate([rows[row] for rows, row in zip(self.rows, chosen, strict=True)])


def find_options(
    mask: NDArray[np.bool_],
    action: spaces.MultiDiscrete,
    start: Start | None = None,
    observation: Observation | None = None,
    state: AutoscalingState | None = None,
    spec: AutoscalingSpec | None = None,
) -> Options:
    """The options at a decision.

    Args:
        mask: (sum of entries,), which entries are possible.
        action: The action space.
        start: The policy to start from, which proposes an action; None: there is none, nor the arguments below.
        observation: The observation.
        state: The state that it encodes.
        spec: The setting.
    """
    rows = options(mask, action)
    if start is None:
        return Options(rows)
    assert observation is not None
    assert state is not None
    assert spec is not None
    proposed: Any = start.act(observation, state)
    vector = (
        vector_from_changes(spec, state, proposed or ())
        if proposed is None or is_changes(proposed)
        else proposed
    )
    nearest = np.asarray(vector, np.int64).reshape(-1, 1, LEVERS)
    return Options(
        [np.concatenate([own, last]) for own, last in zip(rows, nearest, strict=True)], proposed, True
    )


def check_levers(name: str, action: spaces.MultiDiscrete, spec: AutoscalingSpec) -> None:
    """Refuses a setting with other levers than a policy was trained with.

    Args:
        name: Of the policy.
        action: Action space of the training.
        spec: The setting.

    Raises:
        ValueError: Says what differs.
    """
    own, trained = (2 * spec.max_change + 1, 2, spec.num_levels), entries(action)[:LEVERS]
    if own != trained:
        raise ValueError(
            f"{name} was trained with env.max_change and env.queue.levels that give levers of "
            f"{list(trained)} entries, here they have {list(own)}"
        )


class LeversPolicy:
    """Greedy in a score network, endpoint by endpoint.

    Args:
        network: Scores what may be done at an endpoint.
        name: Its name in results.
        observation: Observation space of the training.
        action: Action space of the training.
        start: The policy that it was started from; what that would do is one more choice. None: none.
    """

    clairvoyant = False

    def __init__(
        self,
        network: Scores,
        name: str,
        observation: spaces.Dict,
        action: spaces.MultiDiscrete,
        start: Start | None = None,
    ) -> None:
        self.network, self.name, self.observation, self.action = network, name, observation, action
        self.start = start
        self._checked = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Checks the setting.

        Raises:
            ValueError: The setting is not about instances, or has other levers.
        """
        self.spec = spec.setting_of(AutoscalingSpec)
        check_levers(self.name, self.action, self.spec)
        if self.start is not None:
            self.start.reset(spec, seed)
        self._checked = False

    def act(self, observation: Observation, state: AutoscalingState) -> Action:
        """(3 P,), the best entries of all levers; or what the policy that it was started from says.

        Raises:
            ValueError: The observation is of another shape than those trained on.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation)
            self._checked = True
        mask = mask_from_state(self.spec, state)
        possible = find_options(mask, self.action, self.start, observation, state, self.spec)
        return possible.action(self.choose(observation, possible))

    def choose(self, observation: Observation, possible: Options) -> list[int]:
        """(P,) the best row of each endpoint.

        Args:
            observation: The observation.
            possible: What may be done.
        """
        chosen = []
        for endpoint, rows in enumerate(possible.rows):
            features = encode_actions(observation, endpoint, rows, self.action, possible.started)
            scores = self.network.scores(encode_state(observation, endpoint), features)
            chosen.append(int(np.argmax(scores)))
        return chosen
