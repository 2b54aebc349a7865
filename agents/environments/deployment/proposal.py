"""What a baseline proposes, described as the environment describes what can be chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import Action
from serving_gym.envs.deployment.candidate_rows import CandidateRows
from serving_gym.envs.deployment.candidates import Candidate, plan_of
from serving_gym.envs.deployment.config import DeploymentScales
from serving_gym.envs.deployment.state import Deploy, DeploymentSetting, DeploymentState
from serving_gym.envs.deployment.switch_cost import switch_cost
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.machines.cluster import ReplicaKind, replica_spec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.fleet.build import kv_tokens

FloatArray = NDArray[np.float32]


class Proposals:
    """Describes deployments that need not be among the environment's choices, by its default scales.

    Args:
        spec: The setting.
        max_replicas: Rows of replicas in the observation.
    """

    def __init__(self, spec: PolicySpec, max_replicas: int) -> None:
        assert isinstance(spec.cluster, DeploymentSpec)
        self.cluster, self.setting = spec.cluster, spec.setting_of(DeploymentSetting)
        self._rows = CandidateRows(
            self.setting, DeploymentScales(), max_replicas, spec.cluster.max_pp, self._kv_tokens
        )
        self._tokens: dict[ReplicaKind, int] = {}

    def _kv_tokens(self, kind: ReplicaKind) -> int:
        if kind not in self._tokens:
            alone = ReplicaKind(kind.tp, kind.pp)
            self._tokens[kind] = kv_tokens(replica_spec(alone, self.cluster.replica))
        return self._tokens[kind]

    def row(self, action: Action, state: DeploymentState) -> FloatArray:
        """(F,), as a row of the environment's choices.

        Args:
            action: A command, or None to leave all as it is.
            state: At the decision.

        Raises:
            ValueError: It is a number, or something else than a deployment.
        """
        if not isinstance(action, Deploy | None):
            raise ValueError(
                f"a deployment was expected of the policy, got {type(action).__name__} {action!r}"
            )
        command = action or Deploy(state.deployment, state.shares)
        setting, forecast = self.setting, state.forecast
        kinds = command.deployment.kinds
        plan = plan_of(setting.evaluator(forecast), kinds, setting.divisions(forecast))
        stay = command.deployment == state.deployment
        candidate = Candidate(plan, stay, command.shares is None or bool((command.shares == 0.0).any()))
        cost = switch_cost(self.cluster, state.deployment, command.deployment, state.engines)
        described: FloatArray = self._rows.rows(forecast, [candidate], [cost])[0].astype(np.float32)
        return described
