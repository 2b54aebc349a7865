"""What serving needs of each environment: its wire form, observations from typed states, and decisions of actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.autoscaling.action import changes_from_vector, is_changes
from serving_gym.envs.autoscaling.observation import StateEncoder as AutoscalingEncoder
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState
from serving_gym.envs.base.validation import check_action
from serving_gym.envs.deployment.action import assign_forecast
from serving_gym.envs.deployment.action import decode_action as decode_candidate
from serving_gym.envs.deployment.candidates import Candidate, choices_of, find_candidates, plan_of
from serving_gym.envs.deployment.observation import SpanFigures
from serving_gym.envs.deployment.state import Deploy, DeploymentSetting, DeploymentState
from serving_gym.envs.deployment.switch_cost import switch_cost
from serving_gym.envs.dp_tp.action import decode_action as decode_layout
from serving_gym.envs.interface.commands import Command, Redeploy, SetLayout
from serving_gym.envs.interface.layout import all_groups
from serving_gym.envs.interface.scaling import Release, ScaleChange
from serving_gym.envs.interface.sharing import Event, NewInstance, SharingSetting
from serving_gym.envs.interface.state import TOTALS, ClusterState
from serving_gym.envs.machines.cluster import Deployment
from serving_gym.envs.machines.placement import place
from serving_gym.envs.routing.action import check_admission, decode_action
from serving_gym.envs.routing.observation import StateEncoder as RoutingEncoder
from serving_gym.envs.routing.state import Defer, Dispatch, RoutingState, Verdict
from serving_gym.envs.sharing.action import decode_action as decode_place
from serving_gym.envs.sharing.state import Share, SharingState
from serving_gym.runners.serving.sharing_view import SharingView
from serving_gym.runners.serving.wire import Wire

Observation = dict[str, NDArray[np.float32]]


class ServedEnvironment(ABC):
    """An environment whose policies are served.

    Attributes:
        name: Name of the environment.
        fallback: Policy whose decisions replace those that are late or missing, if none is named; empty: leave all as
            it is.
        deadline_s: Longest time of a decision, if none is given, seconds.
        body_bytes: Longest body of a request, if none is given.
        env: The environment of the setting, simulated.
        spec: What policies know before an episode.
        wire: The wire form.

    Args:
        env: The environment.
        max_rows: Most rows of a table in a state.
    """

    name: ClassVar[str]
    fallback: ClassVar[str] = ""
    deadline_s: ClassVar[float] = 0.1
    body_bytes: ClassVar[int] = 2**20

    def __init__(self, env: Any, max_rows: int = 20_000) -> None:
        self.env, self.spec = env, env.policy_spec
        sizes = {"classes": len(self.spec.classes), **self.sizes()}
        self.wire = Wire(self.name, self.spec, sizes, max_rows)

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Sizes of the setting that the wire form names."""

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

    def check(self, state: Any) -> None:  # noqa: B027 -- mostly there is something to decide
        """Raises ValueError where nothing is to be decided in a state."""

    def key(self, state: Any) -> str:
        """What is decided about, so that a canary follows the same share of it always."""
        return repr(state.now_s)

    def first_state(self) -> Any:
        """A state to rehearse with: the first one of a simulated episode."""
        self.env.reset(seed=0)
        return self.env.state


class ServedRouting(ServedEnvironment):
    """Routing: a place, or to hold the request; with admission, to refuse or to defer it."""

    name = "routing"
    fallback = "least_request"

    def __init__(self, env: Any, max_rows: int = 20_000) -> None:
        super().__init__(env, max_rows)
        self.num_rows, self.admission = int(env.config.num_rows), bool(env.config.admission)
        self.encoder = RoutingEncoder(
            self.spec.fleet, self.spec.slos, env.config.scales, self.num_rows, self.admission
        )

    def sizes(self) -> dict[str, int]:
        """Places."""
        return {"places": len(self.spec.fleet)}

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
        if action is not None and not isinstance(action, Verdict):
            action = check_action(action, self.env.action_space)
        verdict = decode_action(action, self.num_rows)
        check_admission(verdict, self.admission)
        if isinstance(verdict, Defer) and state.request is not None and state.request.deferred:
            raise ValueError("the request has been deferred already")
        if isinstance(verdict, Dispatch) and verdict.place is not None:
            chosen = verdict.place
            if not 0 <= chosen < len(state.engines) or not state.can_take[chosen]:
                raise ValueError(f"place {chosen} cannot take the request")
        return verdict

    def check(self, state: RoutingState) -> None:
        """Raises ValueError where no request is to be decided on."""
        if state.request is None:
            raise ValueError("state.request is null: there is nothing to decide")

    def key(self, state: RoutingState) -> str:
        """Number of the request."""
        return "" if state.request is None else str(state.request.index)


class ServedAutoscaling(ServedEnvironment):
    """Autoscaling: changes of the number of instances, and release levels."""

    name = "autoscaling"
    deadline_s = 30.0
    body_bytes = 2**24

    def __init__(self, env: Any, max_rows: int = 20_000) -> None:
        super().__init__(env, max_rows)
        self.encoder = AutoscalingEncoder(env.config, self.setting, self.spec.fleet)

    @property
    def setting(self) -> AutoscalingSpec:
        """What is known of the fleet."""
        setting: AutoscalingSpec = self.spec.setting_of(AutoscalingSpec)
        return setting

    def sizes(self) -> dict[str, int]:
        """Endpoints, kinds of GPU, release levels."""
        setting = self.setting
        return {
            "endpoints": len(setting.endpoints),
            "gpus": len(setting.gpus),
            "levels": setting.num_levels,
        }

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
        for change in action:
            if change.endpoint not in self.setting.endpoints:
                raise ValueError(f"there is no endpoint {'@'.join(change.endpoint)}")
        return tuple(action)


class ServedDPTP(ServedEnvironment):
    """DP/TP: a layout and how to get there."""

    name = "dp_tp"
    deadline_s = 1.0

    def sizes(self) -> dict[str, int]:
        """Base engines, and slots of all groups."""
        node = self.spec.node
        return {"base engines": node.num_base, "slots": len(all_groups(node.num_base, node.max_group))}

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
        command: Command
        if isinstance(action, SetLayout | Redeploy):
            command = action
        else:
            command = decode_layout(check_action(action, self.env.action_space), num_base)
        if sum(command.layout) != num_base:
            raise ValueError(f"layout {command.layout} must cover {num_base} base engines")
        return command


class ServedDeployment(ServedEnvironment):
    """Deployment: replicas in their places, and where requests of each type go.

    A state does not tell the tail latency of the last span, nor how busy replicas were that came in it; these features
    are 0, as where nothing has ended.
    """

    name = "deployment"
    deadline_s = 30.0
    body_bytes = 2**24

    def __init__(self, env: Any, max_rows: int = 20_000) -> None:
        super().__init__(env, max_rows)
        self.reset()

    @property
    def setting(self) -> DeploymentSetting:
        """What is known of the cluster."""
        setting: DeploymentSetting = self.spec.setting_of(DeploymentSetting)
        return setting

    def sizes(self) -> dict[str, int]:
        """Workload types."""
        return {"types": self.setting.num_types}

    def reset(self) -> None:
        """Forgets the past."""
        self._before: DeploymentState | None = None
        self._switched_s = 0.0
        self._found: tuple[DeploymentState, list[Candidate]] | None = None

    def observe(self, state: DeploymentState) -> Observation:
        """The observation of a state."""
        candidates = self._candidates(state)
        cluster = self.env.config.cluster
        costs = [
            switch_cost(cluster, state.deployment, self._placed(candidate, state), state.engines)
            for candidate in candidates
        ]
        slots = np.arange(len(state.engines))
        observation: Observation = self.env.core.encoder.encode(
            state, candidates, costs, self._span(state), slots
        )
        return observation

    def decision(self, action: Any, state: DeploymentState) -> Deploy | None:
        """The command; None: all stays as it is.

        Raises:
            ValueError: There is no such candidate.
        """
        if action is None or isinstance(action, Deploy):
            return action
        number = check_action(action, self.env.action_space)
        candidate, reason = decode_candidate(number, self._candidates(state))
        if candidate is None:
            raise ValueError(reason)
        deployment = self._placed(candidate, state)
        return Deploy(deployment, assign_forecast(self.setting, deployment, state.forecast, candidate.apart))

    def _candidates(self, state: DeploymentState) -> list[Candidate]:
        """Candidates in the order of actions."""
        if self._found is None or self._found[0] is not state:
            setting, present = self.setting, state.deployment.kinds
            evaluator, divisions = setting.evaluator(state.forecast), setting.divisions(state.forecast)
            if state.switch is not None:
                found = choices_of(plan_of(evaluator, present, divisions), stay=True)
            else:
                found = find_candidates(evaluator, present, self.env.config.num_candidates, divisions)
            self._found = state, found
        return self._found[1]

    def _placed(self, candidate: Candidate, state: DeploymentState) -> Deployment:
        if candidate.stay:
            return state.deployment
        return place(self.setting.cluster, candidate.plan.kinds, state.deployment)

    def _span(self, state: DeploymentState) -> SpanFigures:
        """What came since the last state."""
        before, self._before = self._before, state
        if state.switch is not None:
            self._switched_s = state.switch.started_s
        elif before is not None and before.deployment != state.deployment:
            self._switched_s = before.now_s
        since_s = max(state.now_s - self._switched_s, 0.0)
        busy_s = np.zeros(len(state.engines))
        if before is None or before.now_s >= state.now_s:
            return SpanFigures(0.0, np.zeros((len(self.spec.classes), len(TOTALS))), 0.0, busy_s, since_s)
        then_s = dict(zip(before.deployment.replicas, before.engines["busy_s"].tolist(), strict=True))
        for row, replica in enumerate(state.deployment.replicas):
            now_s = float(state.engines["busy_s"][row])
            busy_s[row] = max(now_s - then_s.get(replica, now_s), 0.0)
        return SpanFigures(state.now_s - before.now_s, state.totals - before.totals, 0.0, busy_s, since_s)


class ServedSharing(ServedEnvironment):
    """Sharing: where a request goes, and commands to instances."""

    name = "sharing"
    fallback = "first_fit"

    def __init__(self, env: Any, max_rows: int = 20_000) -> None:
        super().__init__(env, max_rows)
        self.view = SharingView(env, self.setting)

    @property
    def setting(self) -> SharingSetting:
        """What is known of the nodes."""
        setting: SharingSetting = self.spec.setting_of(SharingSetting)
        return setting

    def sizes(self) -> dict[str, int]:
        """Nodes, slots, models, kinds of node."""
        setting = self.setting
        return {
            "nodes": setting.num_nodes,
            "slots": setting.num_slots,
            "models": len(setting.models),
            "kinds": len(setting.kinds),
        }

    def reset(self) -> None:
        """Forgets the past."""
        self.view.reset()

    def observe(self, state: SharingState) -> Observation:
        """The observation of a state."""
        return self.view.observe(state)

    def decision(self, action: Any, state: SharingState) -> Share | None:
        """The decision; None: the request is held, or all stays as it is.

        Raises:
            ValueError: The node has no room for a new instance.
        """
        if action is None or isinstance(action, Share):
            return action
        slot, node = decode_place(check_action(action, self.env.action_space), self.setting)
        if node is None:
            return None if slot is None else Share(slot)
        kv_bytes = self.view.new_pool(state, node) if state.offered >= 0 else -1
        if kv_bytes < 0:
            raise ValueError(f"node {node} has no room for a new instance")
        return Share(NewInstance(node, kv_bytes))

    def key(self, state: SharingState) -> str:
        """Number of the request, or the time."""
        placing = state.event is Event.PLACEMENT and state.offered >= 0
        return str(state.requests["index"][state.offered]) if placing else repr(state.now_s)


SERVED: dict[str, type[ServedEnvironment]] = {
    kind.name: kind
    for kind in (ServedRouting, ServedAutoscaling, ServedDPTP, ServedDeployment, ServedSharing)
}


def served_environment(name: str, env: Any, max_rows: int = 20_000) -> ServedEnvironment:
    """What serving needs of an environment.

    Args:
        name: Its name.
        env: The environment of the setting.
        max_rows: Most rows of a table in a state.

    Raises:
        ValueError: Its policies are not served.
    """
    check_choice("env to serve", name, SERVED)
    return SERVED[name](env, max_rows)
