"""The learned placement: the place with the highest score."""

from __future__ import annotations

from typing import Any

import numpy as np

from agents.routing.policy import Observation, SetPolicy
from envs.policy_spec import PolicySpec
from envs.sharing.state import Event


class SharingSetPolicy(SetPolicy):
    """Greedy in a set network over instances and nodes, for any number of them."""

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Looks at the setting.

        Raises:
            ValueError: nodes are not shared.
        """
        _ = spec.shared
        self._checked = False

    def act(self, observation: Observation, state: Any) -> int | None:  # type: ignore[override]
        """The best action, without chance; None where nothing is placed and no iteration given.

        Raises:
            ValueError: the observation is of another shape than those trained on.
        """
        if state.event not in (Event.PLACEMENT, Event.ITERATION):
            return None
        self.check(observation)
        masks = np.append(observation["places"][:, 0] > 0, True)
        return int(self.act_batch({key: value[None] for key, value in observation.items()}, masks[None])[0])
