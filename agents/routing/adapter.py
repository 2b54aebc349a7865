"""Between the routing environment and the learners."""

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
from agents.routing.counterfactuals import RoutingCounterfactuals
from agents.set_network import SetNetwork
from agents.spaces import ActionSpace
from baselines.common.routers.linear_score import LinearScorePolicy
from baselines.policy import Action
from envs.policy_spec import PolicySpec
from envs.routing.config import RoutingConfig
from envs.routing.state import Dispatch, RoutingState
from envs.simulator.kernel.features import PLACE_FEATURES
from envs.workload.registry import WorkloadSource

_CONTEXT = ("request", "cluster")


class RoutingAdapter(Adapter):
    """Places of a fleet; a decision for every request that arrives."""

    rows = "places"
    present = PLACE_FEATURES.index("in_service")

    def __init__(self, env: str = "routing") -> None:
        super().__init__(env)
        self._plain = LinearScorePolicy()

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The mean time between two arrivals."""
        return 1.0 / WorkloadSource(RoutingConfig(**arguments).workload).rate_rps

    def plain_action(self, observation: Observation, state: RoutingState) -> Action:
        """Where an untuned score sends the request."""
        return self._plain.act(observation, state)

    def mask(self, observation: Observation, state: RoutingState, spec: PolicySpec) -> NDArray[np.bool_]:
        """The places that can take the request, and to hold it."""
        rows = len(observation["places"])
        mask = np.zeros(rows + 1, bool)
        mask[: len(state.can_take)] = state.can_take
        mask[rows] = True
        return mask

    def index_of(self, action: Action, state: RoutingState, mask: NDArray[np.bool_], spec: PolicySpec) -> int:
        """The place that a request is sent to, or the last action, to hold it."""
        place = action.place if isinstance(action, Dispatch) else action
        if place is None or (isinstance(place, (int, np.integer)) and not mask[place]):
            return len(mask) - 1
        return super().index_of(place, state, mask, spec)

    def candidates(
        self, observation: Observation, state: RoutingState, mask: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The places that can take the request."""
        return np.flatnonzero(mask[:-1])

    def check_setting(
        self, name: str, observation: spaces.Dict, action: ActionSpace, spec: PolicySpec
    ) -> None:
        """Refuses a node, whose engines are what is decided."""
        _ = spec.fleet

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> RoutingCounterfactuals:
        """Episodes side by side, forked once for each of a few places."""
        return RoutingCounterfactuals(config, task, rng)

    def score_network(self, observation: spaces.Dict, hidden: int) -> SetNetwork:
        """Scores of places."""
        context_size = sum((observation[key].shape or (0,))[0] for key in _CONTEXT)
        return SetNetwork(context_size, len(PLACE_FEATURES), hidden, (hidden,), self.present)

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: ActionSpace, name: str
    ) -> NetworkPolicy:
        """Greedy in such a network; it never holds a request that some place can take."""
        assert isinstance(network, SetNetwork)
        scorer = network.export()
        scores = place_scores(scorer, _CONTEXT)
        return NetworkPolicy(scores, self, name, observation, action, in_kernel=scorer.in_kernel())
