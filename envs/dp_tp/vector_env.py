"""Many DP/TP episodes side by side in one process, observations written straight into one batch."""

from __future__ import annotations

from typing import Any

from serving_gym.envs.base.vector_env import BatchObservation, SequentialVectorEnv, check_width
from serving_gym.envs.dp_tp.env import make_spaces
from serving_gym.envs.dp_tp.episode import DPTPConfig, DPTPCore


class DPTPVectorEnv(SequentialVectorEnv):
    """`Serving/DPTP-v0`, batched; equal to the scalar environment step by step.

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    episodes: list[DPTPCore]

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        check_width(num_envs, render_mode)
        self.episodes = [DPTPCore(DPTPConfig(**config)) for _ in range(num_envs)]
        self._lay_out(num_envs, render_mode, make_spaces(self.episodes[0]))

    def _observe(self, i: int, observation: BatchObservation) -> None:
        self.episodes[i].observe_into(observation["engines"][i], observation["cluster"][i])
