"""Actions of a baseline in the episodes of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from serving_gym.agents.config import CHECKPOINT, no_policy
from serving_gym.agents.environments.adapter import Adapter
from serving_gym.agents.learners.learner import Task
from serving_gym.agents.learners.serial_env import SerialVectorEnv
from serving_gym.baselines.policy import BatchPolicy, Policy
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.registration import make_env, make_vector_env


def make_teacher(config: str | Mapping[str, Any] | None, key: str) -> Policy:
    """The teacher policy of a learner.

    Args:
        config: A baseline's name; `name` and `params`, as in `configs/policy`; or `name: checkpoint` and its `path`.
        key: What the setting is called, for messages.

    Raises:
        ValueError: none is named, or there is no such policy.
    """
    if config is None:
        raise no_policy(key)
    if isinstance(config, str):
        return make_policy(config)
    if "name" not in config or (config["name"] == CHECKPOINT and "path" not in config):
        raise ValueError(
            f"{key} must be a policy's name, {{name: NAME, params: {{...}}}} or {{name: checkpoint, path: FOLDER}}, "
            f"got {dict(config)}"
        )
    if config["name"] == CHECKPOINT:
        from serving_gym.agents.checkpoint import load_policy

        return load_policy(config["path"])
    return make_policy(config["name"], **config.get("params", {}))


class Teacher:
    """One policy in each of N parallel episodes.

    Args:
        config: The policy.
        key: What the setting is called, for messages.
        task: The training task.
        adapter: Of the environment.
        arguments: Of the environment.
    """

    def __init__(
        self,
        config: str | Mapping[str, Any] | None,
        key: str,
        task: Task,
        adapter: Adapter,
        arguments: dict[str, Any],
    ) -> None:
        first = make_teacher(config, key)
        scalar: Any = make_env(task.env, **arguments)
        self.spec, self.adapter = scalar.policy_spec, adapter
        first.reset(self.spec, task.seed)
        self.env: VectorEnv[Any, Any, Any]
        self._batch = first if isinstance(first, BatchPolicy) else None
        self._each: list[Policy] = []
        if self._batch is not None:
            self.env = make_vector_env(task.env, task.num_envs, **arguments)
            return
        self.env = SerialVectorEnv(task.env, task.num_envs, arguments)
        self._each = [make_teacher(config, key) for _ in range(task.num_envs)]
        self._rng = np.random.default_rng([task.seed, task.num_envs])

    def begin(self, which: NDArray[np.int64]) -> None:
        """Resets the policy in rows where new episodes have begun."""
        for i in which if self._each else ():
            self._each[i].reset(self.spec, int(self._rng.integers(2**31)))

    def actions(
        self, observation: Mapping[str, NDArray[np.float32]], masks: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Its action in each episode, (N,) or (N, entries), always a possible one.

        Args:
            observation: Of the environment `self.env` as it stands, N first.
            masks: (N, entries).
        """
        if self._batch is not None:
            return self._batch.act_batch(observation, masks)
        assert isinstance(self.env, SerialVectorEnv)
        chosen = []
        for i, (policy, state) in enumerate(zip(self._each, self.env.states, strict=True)):
            said = policy.act({key: value[i] for key, value in observation.items()}, state)
            chosen.append(self.adapter.index_of(said, state, masks[i], self.spec))
        return np.array(chosen, np.int64)
