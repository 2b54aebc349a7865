"""The vector DP/TP environment."""

from __future__ import annotations

from typing import Any

from serving_gym.envs.base.vector_env import BatchObservation, SequentialVectorEnv
from serving_gym.envs.dp_tp.env import DPTPEnv
from serving_gym.envs.dp_tp.episode import DPTPEpisode


class DPTPVectorEnv(SequentialVectorEnv):
    """`Serving/DPTP-v1` many times; arguments and `info` as of `envs.base.vector_env.SimulatedVectorEnv`."""

    env_class = DPTPEnv
    episodes: list[DPTPEpisode]

    def _observe_into(self, episode: Any, observation: BatchObservation, row: int) -> None:
        episode.observe_into(observation["engines"][row], observation["cluster"][row])
