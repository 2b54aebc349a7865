"""Random decisions: what every other policy has to beat."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.baselines.common.autoscaler import victims
from serving_gym.baselines.policy import Action, PolicySpec
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState
from serving_gym.envs.deployment.state import DeploymentState
from serving_gym.envs.interface.commands import SetLayout, SwitchMode
from serving_gym.envs.interface.layout import all_layouts
from serving_gym.envs.interface.scaling import Operation, ScaleChange
from serving_gym.envs.interface.state import ClusterState
from serving_gym.envs.routing.state import RoutingState
from serving_gym.envs.sharing.state import SharingState


class RandomPolicy:
    """Draws uniformly.

    On a node a layout and a way to get there, in a fleet a place that can take the request, of a deployment one of its
    candidates, of instances one more, one less or as many of each endpoint, as far as machines and the setting allow,
    on shared nodes an instance or a new one.

    Args:
        switch_probability: Probability that a decision draws; otherwise all stays as it is, a request in the queue.

    Raises:
        ValueError: the probability is not between 0 and 1.
    """

    name = "random"
    clairvoyant = False

    def __init__(self, switch_probability: float = 1.0) -> None:
        if not 0.0 <= switch_probability <= 1.0:
            raise ValueError(f"switch_probability must lie between 0 and 1, got {switch_probability}")
        self.switch_probability = switch_probability

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Begins the stream of draws that the seed stands for."""
        on_node = spec.engines is None and spec.setting is None
        self._spec = spec
        self._layouts = all_layouts(spec.num_base) if on_node else ()
        self._rng = np.random.default_rng(seed)

    def act(
        self,
        observation: Any,
        state: ClusterState | RoutingState | DeploymentState | SharingState | AutoscalingState,
    ) -> Action:
        """Draws."""
        if self._rng.random() >= self.switch_probability:
            return None
        if isinstance(state, RoutingState):
            return self._place(state)
        if isinstance(state, DeploymentState):
            return int(self._rng.choice(np.flatnonzero(observation["candidates"][:, 0])))
        if isinstance(state, SharingState):
            able = np.flatnonzero(observation["places"][:, 0])
            return int(self._rng.choice(able)) if len(able) else None
        if isinstance(state, AutoscalingState):
            return self._scale(state)
        layout = self._layouts[self._rng.integers(len(self._layouts))]
        return SetLayout(layout, SwitchMode(int(self._rng.integers(len(SwitchMode)))))

    def _place(self, state: RoutingState) -> int | None:
        able = np.flatnonzero(state.can_take)
        if state.request is None or not len(able):
            return None
        return int(able[self._rng.integers(len(able))])

    def _scale(self, state: AutoscalingState) -> tuple[ScaleChange, ...]:
        spec = self._spec.setting_of(AutoscalingSpec)
        vacant = {region: counts.copy() for region, counts in state.vacant.items()}
        changes = []
        for own in state.endpoints:
            change = int(self._rng.integers(-1, 2))
            runs = spec.capacity_tps[spec.models.index(own.endpoint.model)] > 0
            free = np.flatnonzero(runs & (vacant[own.endpoint.region] > 0))
            if change > 0 and len(free) and len(own.instances) < spec.max_instances:
                vacant[own.endpoint.region][free[0]] -= 1
                changes.append(ScaleChange(own.endpoint, Operation.START, 1, gpu=int(free[0])))
            elif change < 0 and len(own.present) > spec.min_instances:
                changes.append(ScaleChange(own.endpoint, Operation.STOP, 1, victims(own, 1)))
        return tuple(changes)
