"""The vector sharing environment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.placement import PlacementVectorEnv
from serving_gym.envs.base.vector_env import BatchOutcome
from serving_gym.envs.sharing.batch import SharingBatch
from serving_gym.envs.sharing.env import SharingEnv


class SharingVectorEnv(PlacementVectorEnv):
    """`Serving/Sharing-v1` many times; arguments and `info` as of `envs.base.vector_env.SimulatedVectorEnv`."""

    env_class = SharingEnv
    _batch: SharingBatch

    def _advance(self, actions: NDArray[np.int64], going: NDArray[np.bool_]) -> BatchOutcome:
        observations, outcomes = self._batch.step(actions)
        counts = np.array([episode.num_refused for episode in self.episodes], np.int64)
        batch = BatchOutcome.blank(observations.as_dict(), observations.masks, counts)
        for i, outcome in enumerate(outcomes):
            if outcome is not None:
                batch.put(i, outcome)
        return batch
