"""Llumnix on a cluster that is cut into replicas, as OServe compares with it (Jiang et al., 2026, section 6.1).

Llumnix (Sun et al., OSDI 2024) knows no deployments: its instances are the best uniform layout for the past, as OServe
gives every baseline its best, and each request goes to the instance with least to do, whatever its type. Departure:
here decisions come once a span, so that running requests are not moved; `baselines/llumnix/policy.py` is Llumnix with
migration, on a fleet of such instances (`Serving/Routing-v1`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from serving_gym.baselines.common.deploying import DeployingPolicy
from serving_gym.baselines.oserve.uniform import vllm_static
from serving_gym.baselines.policy import Action, PolicySpec
from serving_gym.envs.deployment.state import Deploy, DeploymentState
from serving_gym.envs.machines.placement import place


class LlumnixDeploymentPolicy(DeployingPolicy):
    """The best uniform layout for the whole of the past; requests go to the replica with least to do."""

    name = "llumnix_deployment"

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Works out the layout."""
        super().reset(spec, seed)
        setting = self.setting
        self.kinds = vllm_static(setting.cluster, setting.table.of_role("mixed"), setting.past)

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The layout at the first decision, nothing afterwards; no shares, so that load decides."""
        if state.switch is not None or (
            Counter(self.kinds) == state.deployment.kinds and not state.shares.any()
        ):
            return None
        deployment = place(self.setting.cluster, self.kinds, state.deployment)
        return Deploy(deployment, np.zeros((len(deployment.replicas), self.setting.num_types)))
