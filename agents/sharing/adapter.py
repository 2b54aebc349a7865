"""Between the sharing environment and the learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from agents.adapter import Adapter, Observation
from agents.api.config import APIConfig
from agents.learner import Task
from agents.network_policy import NetworkPolicy, place_scores
from agents.set_network import SetNetwork
from agents.sharing.counterfactuals import SharingCounterfactuals
from agents.sharing.policy import SharingNetworkPolicy
from agents.spaces import ActionSpace
from baselines.common.place_score import PlaceScorePolicy
from baselines.policy import Action
from envs.policy_spec import PolicySpec
from envs.sharing.config import SharingConfig
from envs.sharing.state import SharingState
from envs.simulator.sharing.features import PLACE_FEATURES
from envs.workload.registry import WorkloadSource

_CONTEXT = ("request", "cluster")
_CAN_TAKE = 0  # column of the places


class SharingAdapter(Adapter):
    """Instances and nodes; a decision for every request that arrives."""

    rows = "places"
    present = PLACE_FEATURES.index("there")

    def __init__(self, env: str = "sharing") -> None:
        super().__init__(env)
        self._plain = PlaceScorePolicy()

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The mean time between two arrivals."""
        return 1.0 / WorkloadSource(SharingConfig(**arguments).workload).rate_rps

    def plain_action(self, observation: Observation, state: SharingState) -> Action:
        """Where an untuned score sends the request."""
        return self._plain.act(observation, state)

    def mask(self, observation: Observation, state: SharingState, spec: PolicySpec) -> NDArray[np.bool_]:
        """The places that can take the request, and to hold it."""
        return np.append(observation["places"][:, _CAN_TAKE] > 0, True)

    def index_of(self, action: Action, state: SharingState, mask: NDArray[np.bool_], spec: PolicySpec) -> int:
        """The place, or the last action, to hold the request."""
        if action is None or (isinstance(action, (int, np.integer)) and not mask[action]):
            return len(mask) - 1
        return int(super().index_of(action, state, mask, spec))

    def candidates(
        self, observation: Observation, state: SharingState, mask: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The places that can take the request."""
        return np.flatnonzero(mask[:-1])

    def check_setting(
        self, name: str, observation: spaces.Dict, action: ActionSpace, spec: PolicySpec
    ) -> None:
        """Refuses a setting without shared nodes."""
        _ = spec.shared

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> SharingCounterfactuals:
        """Episodes side by side, forked once for each of a few places."""
        return SharingCounterfactuals(config, task, rng)

    def score_network(self, observation: spaces.Dict, hidden: int) -> SetNetwork:
        """Scores of places."""
        context_size = sum((observation[key].shape or (0,))[0] for key in _CONTEXT)
        return SetNetwork(context_size, len(PLACE_FEATURES), hidden, (hidden,), self.present)

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: ActionSpace, name: str
    ) -> NetworkPolicy:
        """Greedy in such a network; it never holds a request that some place can take."""
        assert isinstance(network, SetNetwork)
        scores = place_scores(network.export(), _CONTEXT)
        return SharingNetworkPolicy(scores, self, name, observation, action)
