"""Base class of the adapters of environments that place one request per decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.environments.adapter import Adapter, Observation
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.networks.set_network import SetNetwork
from serving_gym.agents.policies.network_policy import NetworkPolicy, place_scores
from serving_gym.baselines.policy import Action, Policy
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.simulator.kernel.place_scores import VERDICTS
from serving_gym.envs.workload.registry import WorkloadSource

_CONTEXT = ("request", "admission", "cluster")  # those of them that an environment shows


ADMISSION = "admission"


def context_of(observation: Iterable[str]) -> tuple[str, ...]:
    """The parts of an observation, or of its space, that are of no place, in the order in which networks see them."""
    return tuple(key for key in _CONTEXT if key in set(observation))


class PlaceAdapter(Adapter):
    """Places, one a row and an action each, and a last action: to hold the request.

    Attributes:
        features: Names of the columns of the rows.
        plain: An untuned score of places.
        direct: Whether networks add a weighted sum of features to their scores, so that they may begin as such a score.
        network_policy: What decides by a network's scores.
    """

    rows = "places"
    features: ClassVar[tuple[str, ...]]
    plain: Policy
    direct: ClassVar[bool] = False
    network_policy: ClassVar[type[NetworkPolicy]]

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The mean time between two arrivals."""
        return 1.0 / WorkloadSource(arguments["workload"]).rate_rps

    def plain_action(self, observation: Observation, state: object) -> Action:
        """The action of an untuned score."""
        return self.plain.act(observation, state)

    def index_of(self, action: Action, state: object, mask: NDArray[np.bool_], spec: PolicySpec) -> int:
        """The replica or slot of a request, or the last action, which holds it."""
        if action is None or (isinstance(action, (int, np.integer)) and not mask[action]):
            return len(mask) - 1
        return int(super().index_of(action, state, mask, spec))

    def candidates(
        self, observation: Observation, state: object, mask: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The actions that can take the request."""
        return np.flatnonzero(mask[:-1])

    def score_network(self, observation: spaces.Dict, config: APIConfig) -> SetNetwork:
        """Scores of places, and where admission is a decision of what else can be done (`VERDICTS`)."""
        context_size = sum((observation[key].shape or (0,))[0] for key in context_of(observation))
        return SetNetwork(
            context_size,
            len(self.features) + (len(VERDICTS) if ADMISSION in observation.spaces else 0),
            config.hidden,
            (config.hidden,),
            self.present,
            direct=self.direct,
        )

    def score_policy(
        self,
        network: nn.Module,
        observation: spaces.Dict,
        action: ActionSpace,
        config: APIConfig,
        name: str,
        **named: Any,
    ) -> NetworkPolicy:
        """Greedy in such a network; it never holds a request that some place can take. `named` is for the policy."""
        assert isinstance(network, SetNetwork)
        scorer = network.export()
        scores, in_kernel = place_scores(scorer, context_of(observation)), scorer.in_kernel()
        return self.network_policy(scores, self, name, observation, action, in_kernel=in_kernel, **named)
