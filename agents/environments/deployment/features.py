"""What the network sees: one vector for the state, one for each choice, both from the observation alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.learners.api.start import flagged
from serving_gym.envs.deployment.candidate_rows import CANDIDATE_FEATURES
from serving_gym.envs.deployment.observation import REPLICA_FEATURES

FloatArray = NDArray[np.float32]
EXISTS, TP = CANDIDATE_FEATURES.index("exists"), REPLICA_FEATURES.index("tp")


def state_size(observation: spaces.Dict) -> int:
    """Length of the state vector."""
    shapes = {name: box.shape or () for name, box in observation.spaces.items()}
    return shapes["cluster"][0] + shapes["types"][0] * shapes["types"][1] + 2 * shapes["replicas"][1]


def action_size(observation: spaces.Dict, started: bool = False) -> int:
    """Length of a choice's vector.

    Args:
        observation: The observation.
        started: Whether the proposal of a policy that was started from is among the choices.
    """
    return (observation["candidates"].shape or (0, 0))[1] + started


def encode_state(observation: Mapping[str, FloatArray]) -> FloatArray:
    """(state_size,), the cluster, the types in their order, and the replicas' mean and maximum."""
    replicas = observation["replicas"]
    there = replicas[replicas[:, TP] > 0]
    pooled = [there.mean(axis=0), there.max(axis=0)] if len(there) else [np.zeros(replicas.shape[1])] * 2
    return np.concatenate([observation["cluster"], observation["types"].ravel(), *pooled]).astype(np.float32)


def encode_actions(observation: Mapping[str, FloatArray], usual: FloatArray | None = None) -> FloatArray:
    """(choices, action_size), those that are possible; they come first in the action space.

    Args:
        observation: The observation.
        usual: (F,), the proposal of the policy that was started from, to be the last choice; None: there is none.
    """
    rows = observation["candidates"]
    rows = rows[rows[:, EXISTS] > 0]
    return rows if usual is None else flagged(rows, usual)
