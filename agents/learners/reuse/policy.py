"""The learned policy: who goes for a newcomer is who is worth least."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.spaces import check_observation
from serving_gym.agents.learners.reuse.moments import DEMAND
from serving_gym.agents.learners.reuse.network import ReuseScorer
from serving_gym.baselines.common.keep_warm import KeepWarmConfig, KeepWarmPolicy
from serving_gym.baselines.policy import Action
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.sharing import InstanceStatus
from serving_gym.envs.sharing.state import SharingState
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES

_REPLACES = PLACE_FEATURES.index("replaces")
_LONGER_IDLE = (
    1e-9  # of the worth, a second: of instances worth the same the one that has been idle the longest goes
)


class ReusePolicy(KeepWarmPolicy):
    """Places as `KeepWarmPolicy` does; of idle instances those whose going costs least go.

    What an instance is worth is what loading it again would take, times the hits for a second of keeping that the
    network promises. One of a model that has another instance is worth nothing. Where others of its node go as well,
    those are lost too.

    Args:
        scorer: Says who is asked for again.
        name: Its name in results.
        observation: What there was to see in training.
        fill: As `KeepWarmConfig.fill`.
    """

    def __init__(self, scorer: ReuseScorer, name: str, observation: spaces.Dict, fill: float) -> None:
        super().__init__(KeepWarmConfig(fill=fill))
        self.scorer, self.name, self.observation = scorer, name, observation

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Checks the setting.

        Raises:
            ValueError: it has no shared nodes.
        """
        super().reset(spec, seed)
        self._checked = False

    def act(self, observation: Any, state: SharingState) -> Action:
        """Places the offered request; it is held where no place can take it.

        Raises:
            ValueError: the observation is of another shape than in training.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation, rows_of="places")
            self._checked = True
        return super().act(observation, state)

    def lost(
        self, rows: NDArray[np.float32], state: SharingState, slots: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """What loading who goes would take, times how soon it would be, (K,).

        Args:
            rows: (S + N, features), the places of the observation.
            state: The state.
            slots: (K,), the instances.
        """
        worth, models = self._worths(rows, state), state.instances["model"]
        copies = np.bincount(models[models >= 0], minlength=len(self._sizes))
        lost = np.where(copies[models[slots]] > 1, 0.0, worth[slots])
        for k in np.flatnonzero(rows[slots, _REPLACES] > 1):
            companions = self._companions(state, int(slots[k]), int(rows[slots[k], _REPLACES]) - 1)
            going = np.append(companions, slots[k])
            gone, first, number = np.unique(models[going], return_index=True, return_counts=True)
            lost[k] = worth[going[first]][number == copies[gone]].sum()
        longer: NDArray[np.float64] = lost - _LONGER_IDLE * state.instances["idle_s"][slots]
        return longer

    def _companions(self, state: SharingState, slot: int, number: int) -> NDArray[np.intp]:
        """Who goes with an instance: of the idle ones of its node those that have been so the longest."""
        instances = state.instances
        node = instances["node"][slot]
        idle = (instances["status"] == InstanceStatus.SERVING) & (instances["node"] == node)
        idle &= (instances["num_running"] == 0) & (instances["num_waiting"] == 0)
        idle &= instances["model"] != state.requests["model"][state.offered]
        idle[slot] = False
        if (at_work := state.nodes["at_work"][node]) >= 0:
            idle[at_work] = False
        others = np.flatnonzero(idle)
        longest: NDArray[np.intp] = others[np.argsort(-instances["idle_s"][others], kind="stable")]
        return longest[:number]

    def _worths(self, rows: NDArray[np.float32], state: SharingState) -> NDArray[np.float64]:
        """(S,), of every instance if its model has no other; 0 where there is none."""
        there = np.flatnonzero(state.instances["model"] >= 0)
        instances = state.instances[there]
        kinds, sizes = self.setting.node_kinds[instances["node"]], self._sizes[instances["model"]]
        worth = np.zeros(len(state.instances))
        worth[there] = self.setting.load_s[kinds, sizes] * self.scorer.worth(rows[there, DEMAND])
        return worth
