"""The vector routing environment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.placement import PlacementVectorEnv
from serving_gym.envs.base.vector_env import BatchOutcome
from serving_gym.envs.routing.action import refusal
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.env import RoutingEnv


class RoutingVectorEnv(PlacementVectorEnv):
    """`Serving/Routing-v1` many times; arguments and `info` as of `envs.base.vector_env.SimulatedVectorEnv`."""

    env_class = RoutingEnv
    _batch: RoutingBatch

    def _advance(self, actions: NDArray[np.int64], going: NDArray[np.bool_]) -> BatchOutcome:
        assert self._last is not None
        impossible = ~self._last.masks[np.arange(self.num_envs), actions] & self._batch.deciding
        observations, outcomes = self._batch.step(actions)
        refused = np.full(self.num_envs, "", object)
        for i in np.flatnonzero(impossible).tolist():
            refused[i] = refusal(int(actions[i]), self.config.num_rows)
        terms = outcomes.terms(self.episodes[0].classes)
        return BatchOutcome(
            observations.as_dict(),
            observations.masks,
            outcomes.rewards(self.config.objective),
            terms | outcomes.refusals() if self.config.admission else terms,
            outcomes.dt_s,
            outcomes.terminated,
            outcomes.truncated,
            refused,
            self._last.num_refused + impossible,
        )
