"""Between the DP/TP environment and the learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.config import AgentConfig, NetworkConfig, SB3Config
from serving_gym.agents.environments.adapter import Adapter, Observation
from serving_gym.agents.environments.dp_tp.candidates import (
    action_size,
    encode_actions,
    nearest_action,
    shortlist,
    state_size,
)
from serving_gym.agents.environments.dp_tp.counterfactuals import DPTPCounterfactuals
from serving_gym.agents.environments.dp_tp.ladder_network import LadderNetwork
from serving_gym.agents.environments.dp_tp.layout_network import LayoutNetwork, layout_ranks
from serving_gym.agents.environments.dp_tp.memory import memory_size
from serving_gym.agents.environments.dp_tp.score_policy import ScorePolicy
from serving_gym.agents.environments.dp_tp.setting import check_setting
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.learner import Task
from serving_gym.agents.networks.networks import DecisionNetwork
from serving_gym.agents.networks.score_network import Committee, TrainableNetwork
from serving_gym.baselines.policy import Action
from serving_gym.envs.dp_tp.action import action_mask, num_actions
from serving_gym.envs.dp_tp.observation import CLASS_FEATURES, CLUSTER_FEATURES, ENGINE_FEATURES
from serving_gym.envs.interface.layout import all_layouts
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.state import ClusterState

_TARGET_WIDTH = ENGINE_FEATURES.index("target_width")


class DPTPAdapter(Adapter):
    """Layouts of a node; decisions at equal intervals."""

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The environment's decision interval."""
        return float(arguments.get("decision_interval_s", 1.0))

    def training_arguments(self, config: AgentConfig, task: Task) -> dict[str, Any]:
        """Decisions of Stable-Baselines3's learners are `config.training_stride` intervals apart."""
        if not isinstance(config, SB3Config):
            return task.training_arguments
        stride_s = config.training_stride * self.interval_s(task.arguments)
        return {**task.training_arguments, "decision_interval_s": stride_s}

    def mask(self, observation: Observation, state: ClusterState, spec: PolicySpec) -> NDArray[np.bool_]:
        """Which switches are possible."""
        return action_mask(state, spec.num_base, spec.node.weights == "whole")

    def index_of(self, action: Action, state: ClusterState, mask: NDArray[np.bool_], spec: PolicySpec) -> int:
        """The switch, in another mode where its own is not offered; else to keep the layout.

        What is deployed anew at first is switched to.
        """
        index = nearest_action(action, state.target_layout, mask)
        return super().index_of(action, state, mask, spec) if index is None else index

    def candidates(
        self, observation: Observation, state: ClusterState, mask: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Of layouts alike but for a permutation, the one that changes least."""
        return shortlist(state.target_layout, mask.tobytes())

    def action_rows(self, observation: Observation) -> NDArray[np.float32]:
        """(N, actions, F), what each switch would do."""
        num_base = observation["engines"].shape[1]
        layouts, ranks = all_layouts(num_base), layout_ranks(num_base)
        scaled = ranks / max(int(ranks.max()), 1)
        actions = np.arange(num_actions(num_base))
        rows = np.empty((len(observation["engines"]), len(actions), action_size(num_base)), np.float32)
        for i, engines in enumerate(observation["engines"]):
            here = int(np.abs(engines[:, _TARGET_WIDTH] - scaled).max(axis=1).argmin())
            rows[i] = encode_actions(engines, layouts[here], actions)
        return rows

    def summary(self, observation: Observation) -> NDArray[np.float32]:
        """The same, of classes of requests as well: of however many there are, those that have come."""
        cluster = observation["cluster"]
        number, each = len(CLUSTER_FEATURES), len(CLASS_FEATURES)
        classes = cluster[number:].reshape(-1, each)
        come = classes.any(axis=1)
        classes = classes[come] if come.any() else classes[:1]
        return super().summary(
            {"engines": observation["engines"], "cluster": cluster[:number], "classes": classes}
        )

    def check_setting(
        self, name: str, observation: spaces.Dict, action: ActionSpace, spec: PolicySpec
    ) -> None:
        """Refuses a node of another size."""
        check_setting(name, observation, action, spec)

    def network(
        self,
        observation: spaces.Dict,
        action: ActionSpace,
        config: NetworkConfig,
        outputs: int = 1,
        memory_size: int = 0,
    ) -> DecisionNetwork:
        """One that knows what a layout is, where a score is one number."""
        if outputs > 1:
            return super().network(observation, action, config, outputs, memory_size)
        return LayoutNetwork(observation, config, memory_size)

    def search_network(
        self, observation: spaces.Dict, action: ActionSpace, config: NetworkConfig
    ) -> LadderNetwork:
        """A ladder of layouts; it has no widths of its own to configure."""
        return LadderNetwork(observation)

    def counterfactuals(self, config: APIConfig, task: Task, rng: np.random.Generator) -> DPTPCounterfactuals:
        """One episode, forked once for each of a few layouts."""
        return DPTPCounterfactuals(config, task, rng)

    def score_network(self, observation: spaces.Dict, config: APIConfig) -> TrainableNetwork:
        """Scores of candidate layouts."""
        num_base, _ = observation["engines"].shape or (0, 0)
        started = config.start is not None
        sizes = state_size(num_base) + memory_size(len(config.memory_s)), action_size(num_base, started)
        return TrainableNetwork(*sizes, config.hidden, started)

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: ActionSpace, config: APIConfig, name: str
    ) -> ScorePolicy:
        """Greedy in such a network."""
        assert isinstance(network, TrainableNetwork | Committee)
        return ScorePolicy(network.export(), config, name, observation, action)
