"""What serving needs of each environment: observations from typed states, and decisions in the wire form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.autoscaling.action import changes_from_vector, is_changes
from serving_gym.envs.autoscaling.observation import StateEncoder as AutoscalingEncoder
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState
from serving_gym.envs.dp_tp.action import decode_action as decode_layout
from serving_gym.envs.interface.commands import Command, Redeploy, SetLayout
from serving_gym.envs.interface.scaling import Release, ScaleChange
from serving_gym.envs.interface.state import ClusterState
from serving_gym.envs.routing.action import check_admission, decode_action
from serving_gym.envs.routing.observation import StateEncoder as RoutingEncoder
from serving_gym.envs.routing.state import Defer, Dispatch, Reject, RoutingState, Verdict

Observation = dict[str, NDArray[np.float32]]


class ServedEnvironment(ABC):
    """An environment whose policies are served.

    Attributes:
        name: Name of the environment.
        env: The environment of the setting, simulated; no episode of it is run.
        spec: What policies know before an episode.

    Args:
        env: The environment.
    """

    name: ClassVar[str]

    def __init__(self, env: Any) -> None:
        self.env, self.spec = env, env.policy_spec

    def reset(self) -> None:  # noqa: B027 -- most remember nothing
        """Forgets what observations remember of earlier states."""

    @abstractmethod
    def observe(self, state: Any) -> Observation:
        """The observation of a state; called once a decision, in order."""

    @abstractmethod
    def decision(self, action: Any, state: Any) -> Any:
        """The decision that an action of the action space, a command or None stands for.

        Raises:
            ValueError: It is not possible in this state.
        """

    @abstractmethod
    def describe(self, decision: Any) -> Any:
        """A decision in the wire form: plain values for JSON."""

    def key(self, state: Any) -> str:
        """What is decided about, so that a canary follows the same share of it always."""
        return repr(state.now_s)


class ServedRouting(ServedEnvironment):
    """Routing: a place, or to hold the request; with admission, to refuse or to defer it."""

    name = "routing"

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.num_rows, self.admission = int(env.config.num_rows), bool(env.config.admission)
        self.encoder = RoutingEncoder(
            self.spec.fleet, self.spec.slos, env.config.scales, self.num_rows, self.admission
        )

    def reset(self) -> None:
        """Forgets the past."""
        self.encoder.reset()

    def observe(self, state: RoutingState) -> Observation:
        """The observation of a state."""
        return self.encoder.encode(state)[0]

    def decision(self, action: Any, state: RoutingState) -> Verdict:
        """The verdict on the request.

        Raises:
            ValueError: The place cannot take the request, admission is no decision, or it has been deferred before.
        """
        verdict = decode_action(action, self.num_rows)
        check_admission(verdict, self.admission)
        if isinstance(verdict, Defer) and state.request is not None and state.request.deferred:
            raise ValueError("the request has been deferred already")
        if isinstance(verdict, Dispatch) and verdict.place is not None:
            place = verdict.place
            if not 0 <= place < len(state.engines) or not state.can_take[place]:
                raise ValueError(f"place {place} cannot take the request")
        return verdict

    def describe(self, decision: Verdict) -> dict[str, Any]:
        """A verdict in the wire form."""
        if isinstance(decision, Reject):
            return {"kind": "reject"}
        if isinstance(decision, Defer):
            return {"kind": "defer"}
        if decision.place is None:
            return {"kind": "hold"}
        return {"kind": "place", "place": int(decision.place), "priority": decision.priority}

    def key(self, state: RoutingState) -> str:
        """Number of the request."""
        return "" if state.request is None else str(state.request.index)


class ServedAutoscaling(ServedEnvironment):
    """Autoscaling: changes of the number of instances, and release levels."""

    name = "autoscaling"

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.setting: AutoscalingSpec = self.spec.setting_of(AutoscalingSpec)
        self.encoder = AutoscalingEncoder(env.config, self.setting, self.spec.fleet)

    def observe(self, state: AutoscalingState) -> Observation:
        """The observation of a state; a served fleet has no end, so all of the episode is left."""
        return self.encoder.encode(state, 1.0)

    def decision(self, action: Any, state: AutoscalingState) -> tuple[ScaleChange | Release, ...]:
        """The changes.

        Raises:
            ValueError: The vector is not one of the action space, or an endpoint is unknown.
        """
        if action is None:
            return ()
        if not is_changes(action):
            return tuple(changes_from_vector(self.setting, state, np.asarray(action)))
        changes: Iterable[ScaleChange | Release] = action
        for change in changes:
            if change.endpoint not in self.setting.endpoints:
                raise ValueError(f"there is no endpoint {'@'.join(change.endpoint)}")
        return tuple(changes)

    def describe(self, decision: tuple[ScaleChange | Release, ...]) -> list[dict[str, Any]]:
        """Changes in the wire form."""
        return [self._described(change) for change in decision]

    def _described(self, change: ScaleChange | Release) -> dict[str, Any]:
        where = {"model": change.endpoint.model, "region": change.endpoint.region}
        if isinstance(change, Release):
            return {"kind": "release", **where, "level": change.level}
        return {
            "kind": change.operation.value,
            **where,
            "count": change.count,
            "places": list(change.places),
            "donor": change.donor,
            "gpu": change.gpu,
            "pool": change.pool.name.lower(),
        }


class ServedDPTP(ServedEnvironment):
    """DP/TP: a layout and how to get there."""

    name = "dp_tp"

    def reset(self) -> None:
        """Forgets the past."""
        self.env.core.encoder.reset()

    def observe(self, state: ClusterState) -> Observation:
        """The observation of a state."""
        space = self.env.observation_space
        observation = {name: np.zeros(space[name].shape, np.float32) for name in ("engines", "cluster")}
        self.env.core.encoder.encode(state, observation["engines"], observation["cluster"])
        return observation

    def decision(self, action: Any, state: ClusterState) -> Command | None:
        """The command; None: all stays as it is.

        Raises:
            ValueError: The layout is not one of this node.
        """
        if action is None:
            return None
        num_base = self.spec.num_base
        command: Command = (
            action if isinstance(action, SetLayout | Redeploy) else decode_layout(action, num_base)
        )
        if sum(command.layout) != num_base:
            raise ValueError(f"layout {command.layout} must cover {num_base} base engines")
        return command

    def describe(self, decision: Command | None) -> dict[str, Any]:
        """A command in the wire form."""
        if decision is None:
            return {"kind": "stay"}
        if isinstance(decision, SetLayout):
            return {"kind": "layout", "layout": list(decision.layout), "mode": decision.mode.name.lower()}
        return {
            "kind": "redeploy",
            "layout": list(decision.layout),
            "execution": decision.execution,
            "weights": decision.weights,
        }


SERVED: dict[str, type[ServedEnvironment]] = {
    kind.name: kind for kind in (ServedRouting, ServedAutoscaling, ServedDPTP)
}


def served_environment(name: str, env: Any) -> ServedEnvironment:
    """What serving needs of an environment.

    Args:
        name: Its name.
        env: The environment of the setting.

    Raises:
        ValueError: Its policies are not served.
    """
    check_choice("env to serve", name, SERVED)
    return SERVED[name](env)
