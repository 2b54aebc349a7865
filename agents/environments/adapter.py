"""Base class of the adapters between environments and learners.

`Adapter` says it of any environment that is observed by a `Dict` of vectors and matrices and decided about by a
`Discrete` or a `MultiDiscrete`; learners run on such a one as it is (DQN, QR-DQN, SAC, TQC on a `Discrete` alone). An
environment that has impossible actions, whose actions are rows of its observation, whose baselines say something else
than a number, or that can be forked for `agent=api`, has a subclass in `agents/environments/ENV/adapter.py` and an
entry in `ADAPTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.spaces import ActionSpace, entries
from serving_gym.agents.networks.networks import DecisionNetwork, PooledNetwork, RowNetwork
from serving_gym.calibration.lookup import load_attribute
from serving_gym.envs.registration import env_names, make_env

if TYPE_CHECKING:
    from torch import nn

    from serving_gym.agents.config import AgentConfig, NetworkConfig
    from serving_gym.agents.learners.api.config import APIConfig
    from serving_gym.agents.learners.api.counterfactuals import Counterfactuals
    from serving_gym.agents.learners.learner import Task
    from serving_gym.baselines.policy import Action, Policy
    from serving_gym.envs.interface.policy_spec import PolicySpec, Setting

Observation = Mapping[str, NDArray[np.float32]]
Describe = Callable[[Any, Observation, Any], NDArray[np.float32]]


class Adapter:
    """Between an environment and the learners.

    Args:
        env: Name of the environment.

    Attributes:
        rows: Part of the observation whose row i is action i, or, of a `MultiDiscrete`, has the i-th levers, as many
            as every other; None: actions are not rows. An action behind the last row (to hold a request) is taken by
            weighted scores only where no row is possible.
        setting: Part of the `PolicySpec` that policies need; None: any will do.
        present: Column of `rows` that is positive in a row that counts.
        goes_on: Whether an episode that is truncated would have gone on, so that learners must reckon with what would
            have followed. Not where the drain limit truncates: what is unfinished then is charged in the last reward.
    """

    rows: str | None = None
    setting: str | type[Setting] | None = None
    present: int = 0
    goes_on: bool = False

    def __init__(self, env: str) -> None:
        self.env = env

    # -- time ----------------------------------------------------------------------------------------------------------

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The decision interval of the discount, seconds.

        Args:
            arguments: Of the environment.
        """
        env: Any = make_env(self.env, **arguments)
        return float(env.policy_spec.decision_interval_s)

    def training_arguments(self, config: AgentConfig, task: Task) -> dict[str, Any]:
        """Keyword arguments of the training environment."""
        return task.training_arguments

    # -- actions -------------------------------------------------------------------------------------------------------

    def plain_action(self, observation: Observation, state: Any) -> Action:
        """A simple decision, which sets the scale of returns."""
        return None

    def mask(self, observation: Observation, state: Any, spec: PolicySpec) -> NDArray[np.bool_] | None:
        """Action mask, (entries,); None: all are possible."""
        return None

    def check_masks(self, masks: NDArray[np.bool_]) -> None:
        """Checks that the environment has an action mask if the agent needs one.

        Args:
            masks: What the environment says is possible.

        Raises:
            ValueError: some action is not, and outside of training nothing would say so.
        """
        if type(self).mask is Adapter.mask and not masks.all():
            raise ValueError(
                f"env {self.env!r} has impossible actions, but its adapter has no `mask` that would say which they are "
                "when the agent is evaluated: write one, or take an agent that is not masked, as agent=ppo"
            )

    def index_of(self, action: Action, state: Any, mask: NDArray[np.bool_], spec: PolicySpec) -> Any:
        """The number (of a `MultiDiscrete`, the numbers) of the possible action nearest to the one of a baseline.

        Args:
            action: Of the baseline.
            state: The state that it was given.
            mask: (entries,), which are possible.
            spec: The setting.

        Raises:
            ValueError: no number stands for it.
        """
        if not isinstance(action, (int, np.integer)):
            raise ValueError(
                f"env {self.env!r} has no numbered action for the action of the baseline, "
                f"{type(action).__name__}: choose one that answers with numbers"
            )
        return int(action) if mask[action] else int(mask.argmax())

    def is_obvious(self, observation: Observation, answers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(N,), obvious decisions, of which an imitation learner needs only a share.

        Args:
            observation: Batch of N.
            answers: (N,) or (N, levers), actions.
        """
        return np.zeros(len(answers), bool)

    def candidates(self, observation: Observation, state: Any, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Indices of the possible actions to compare."""
        return np.flatnonzero(mask)

    def action_rows(self, observation: Observation) -> NDArray[np.float32]:
        """(N, R, F), features of each of the first R actions.

        Raises:
            ValueError: nothing does.
        """
        if self.rows is None:
            raise ValueError(f"env {self.env!r} describes no actions that a score could weigh")
        return observation[self.rows]

    def check_setting(
        self, name: str, observation: spaces.Dict, action: ActionSpace, spec: PolicySpec
    ) -> None:
        """Checks that a policy was trained for a setting.

        Args:
            name: Of the policy.
            observation: Observation space of the training.
            action: Action space of the training.
            spec: The setting.

        Raises:
            ValueError: The environment decides about something else, or what it shows differs.
        """
        if isinstance(self.setting, str):
            getattr(spec, self.setting)  # raises where the environment has no such part
        elif self.setting is not None:
            spec.setting_of(self.setting)

    # -- observations --------------------------------------------------------------------------------------------------

    def summary(self, observation: Observation) -> NDArray[np.float32]:
        """(size,), summary of an observation: mean and maximum over rows, and its vectors."""
        parts = []
        for name in sorted(observation):
            part = np.asarray(observation[name], np.float32)
            parts += [part.mean(axis=0), part.max(axis=0)] if part.ndim > 1 else [part.reshape(-1)]
        return np.concatenate(parts)

    def summary_size(self, observation: spaces.Dict) -> int:
        """Length of `summary`."""
        return len(
            self.summary({name: np.zeros(box.shape or (), np.float32) for name, box in observation.items()})
        )

    def describer(self, spec: PolicySpec) -> Describe:
        """Of what a policy says, an observation and the state: numbers, (described_size,), by which it can be judged.

        Args:
            spec: The setting.
        """
        return lambda proposed, observation, state: np.zeros(0, np.float32)

    def described_size(self, observation: spaces.Dict) -> int:
        """Numbers that describe what a policy says; 0: who says it is all there is."""
        return 0

    # -- networks ------------------------------------------------------------------------------------------------------

    def network(
        self,
        observation: spaces.Dict,
        action: ActionSpace,
        config: NetworkConfig,
        outputs: int = 1,
        memory_size: int = 0,
    ) -> DecisionNetwork:
        """The network that learners train.

        Args:
            observation: Observation space.
            action: Action space, whose entries are scored.
            config: Widths.
            outputs: Numbers that a score consists of.
            memory_size: Numbers that it is given besides.
        """
        number = sum(entries(action))
        if self.rows is None:
            return PooledNetwork(observation, number, config, outputs, memory_size)
        levers = 1
        if isinstance(action, spaces.MultiDiscrete):
            levers = number // (observation[self.rows].shape or (1,))[0]
        return RowNetwork(observation, number, self.rows, self.present, config, outputs, memory_size, levers)

    def search_network(
        self, observation: spaces.Dict, action: ActionSpace, config: NetworkConfig
    ) -> DecisionNetwork:
        """The network of parameter searches (ARS, CMA-ES).

        Args:
            observation: Observation space.
            action: Action space, whose entries are scored.
            config: Widths.
        """
        return self.network(observation, action, config)

    # -- approximate policy iteration ----------------------------------------------------------------------------------

    def counterfactuals(self, config: APIConfig, task: Task, rng: np.random.Generator) -> Counterfactuals:
        """The training episodes and rollouts of approximate policy iteration.

        Raises:
            ValueError: there is none.
        """
        raise ValueError(f"agent=api needs counterfactual rollouts, which env {self.env!r} has none of")

    def score_network(self, observation: spaces.Dict, config: APIConfig) -> nn.Module:
        """The network of approximate policy iteration: scores of actions from features of state and actions."""
        raise NotImplementedError

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: ActionSpace, config: APIConfig, name: str
    ) -> Policy:
        """A policy that takes the action with the highest score.

        Args:
            network: Trained.
            observation: Observation space of the training.
            action: Action space of the training.
            config: Settings of the agent.
            name: Its name.
        """
        raise NotImplementedError


# Environments that have more to say, as "module:class".
ADAPTERS = {
    "autoscaling": "serving_gym.agents.environments.autoscaling.adapter:AutoscalingAdapter",
    "deployment": "serving_gym.agents.environments.deployment.adapter:DeploymentAdapter",
    "dp_tp": "serving_gym.agents.environments.dp_tp.adapter:DPTPAdapter",
    "routing": "serving_gym.agents.environments.routing.adapter:RoutingAdapter",
    "sharing": "serving_gym.agents.environments.sharing.adapter:SharingAdapter",
}


def adapter_of(env: str) -> Adapter:
    """The adapter of an environment.

    Raises:
        ValueError: there is no such environment.
    """
    if env not in ADAPTERS:
        if env not in env_names():
            raise ValueError(f"there is no env {env!r} to learn; known: {', '.join(env_names())}")
        return Adapter(env)
    adapter: Adapter = load_attribute(ADAPTERS[env], package="")(env)
    return adapter
