"""The learned policy: take the possible action with the highest score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.dp_tp.candidates import (
    MERGING,
    SPLITTING,
    encode_actions,
    encode_state,
    nearest_action,
    shortlist,
    stay_action,
)
from serving_gym.agents.environments.dp_tp.memory import TrafficMemory
from serving_gym.agents.environments.dp_tp.setting import check_setting
from serving_gym.agents.environments.spaces import ActionSpace, check_observation
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.start import Start, flagged, start_of
from serving_gym.agents.networks.score_network import Scores
from serving_gym.baselines.common.layouts import rolling_step
from serving_gym.baselines.policy import Action
from serving_gym.envs.dp_tp.action import NUM_MODES, action_mask, decode_action
from serving_gym.envs.interface.commands import SetLayout
from serving_gym.envs.interface.layout import Layout, all_layouts, changed_regions, groups_of
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.state import ClusterState

FloatArray = NDArray[np.float32]
Observation = Mapping[str, FloatArray]


@dataclass(frozen=True)
class Options:
    """What may be done at a decision.

    Attributes:
        actions: As the environment takes them, (K,); the last is what the policy that was started from says.
        features: (K, action_size).
        stay: Row of the action that keeps the layout.
        wanted: Layout that each leads to, in more than one step, (K,); None: in one.
    """

    actions: tuple[Any, ...]
    features: FloatArray
    stay: int
    wanted: tuple[Layout | None, ...]

    def command(self, row: int, state: ClusterState) -> Any:
        """The command of an option; where it takes more than one step, the first of them.

        Args:
            row: Which.
            state: The cluster.
        """
        wanted = self.wanted[row]
        return self.actions[row] if wanted is None else next_step(state, wanted)


def find_options(
    observation: Observation,
    state: ClusterState,
    mask: NDArray[np.bool_],
    start: Start | None,
    even: bool = False,
    merges: bool = True,
) -> Options:
    """The options at a decision.

    Args:
        observation: The observation.
        state: The state that it encodes.
        mask: (actions,), which are possible.
        start: The policy to start from, which proposes an action; None: there is none.
        even: Whether only layouts of equal engines are considered (`shortlist`), to which groups are merged one after
            another (`rolling_step`).
        merges: Whether layouts of fewer engines are considered; where some groups are merged already, they always are.
    """
    target, engines = state.target_layout, observation["engines"]
    numbers = shortlist(target, mask.tobytes(), even)
    if not merges and len(set(target)) == 1:
        layouts = all_layouts(sum(target))
        numbers = numbers[[len(layouts[number // NUM_MODES]) >= len(target) for number in numbers]]
    features = encode_actions(engines, target, numbers)
    actions: tuple[Any, ...] = tuple(numbers.tolist())
    stay = actions.index(stay_action(target))
    wanted: tuple[Layout | None, ...] = (None,) * len(actions)
    if even:
        wanted = tuple(decode_action(number, sum(target)).layout for number in actions)
    if start is None:
        return Options(actions, features, stay, wanted)
    proposed = start.act(observation, state)
    number = nearest_action(proposed, target, mask)
    if number is None:
        assert isinstance(proposed, (int, np.integer))
        number = int(proposed)
    usual = encode_actions(engines, target, np.array([number]))[0]
    return Options((*actions, proposed), flagged(features, usual), stay, (*wanted, None))


def next_step(state: ClusterState, wanted: Layout) -> SetLayout | None:
    """What to do now on the way to a layout, the gentlest way; None: it is reached, or to be waited for.

    Args:
        state: The cluster.
        wanted: The layout to reach.
    """
    layout = rolling_step(state, wanted)
    changed = changed_regions(groups_of(state.target_layout), groups_of(layout))
    if not changed:
        return None
    merges = any(region in groups_of(layout) for region in changed)
    return SetLayout(layout, (MERGING if merges else SPLITTING)[0])


def known_state(observation: Observation, state: ClusterState, memory: TrafficMemory) -> FloatArray:
    """What is seen and what is remembered, one after the other; once per decision.

    Args:
        observation: The observation.
        state: The state that it encodes.
        memory: Takes note of it.
    """
    seen = encode_state(observation["engines"], observation["cluster"], state.target_layout)
    return np.concatenate([seen, memory.follow(state)])


class ScorePolicy:
    """Greedy in a score network.

    Args:
        network: Scores actions.
        config: What the agent that trained it knows of its actions: where it started from, what it remembers, which
            layouts it considers.
        name: Its name in results.
        observation: Observation space of the training.
        action: Action space of the training.
    """

    clairvoyant = False

    def __init__(
        self,
        network: Scores,
        config: APIConfig,
        name: str,
        observation: spaces.Dict,
        action: ActionSpace,
    ) -> None:
        self.network, self.name, self.even, self.dwell_s = network, name, config.even, config.dwell_s
        self.memory, self.start = TrafficMemory(config.memory_s), start_of(config.start)
        self.observation, self.action = observation, action
        self._checked, self._can_switch = False, True

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Checks the setting.

        Raises:
            ValueError: the setting is of another shape than the one it was trained in.
        """
        check_setting(self.name, self.observation, self.action, spec)
        self._checked = False
        self._can_switch = spec.node.weights == "whole"
        self.memory.reset()
        if self.start is not None:
            self.start.reset(spec, seed)

    def act(self, observation: Observation, state: ClusterState) -> Action:
        """The action with the highest score."""
        if not self._checked:
            check_observation(self.name, self.observation, observation, any_length=("cluster",))
            self._checked = True
        mask = action_mask(state, sum(state.target_layout), self._can_switch)
        known = known_state(observation, state, self.memory)
        merges = self.memory.may_merge(state.now_s, self.dwell_s)
        options = find_options(observation, state, mask, self.start, self.even, merges)
        action: Action = options.command(self.choose(known, options), state)
        return action

    def choose(self, known: FloatArray, options: Options) -> int:
        """Row of the highest score.

        Args:
            known: What is seen and remembered, as `known_state`.
            options: What may be done.
        """
        return int(np.argmax(self.network.scores(known, options.features)))
