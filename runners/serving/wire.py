"""The wire form of each environment: its typed state and its decisions as plain values.

A state is an object with the fields of the environment's state dataclass (`RoutingState`, `AutoscalingState`,
`ClusterState`, `DeploymentState`, `SharingState`), a decision one of its command classes: an object whose `kind` is the
class's name (`dispatch`, `scale_change`, `set_layout`, ...) with the class's fields, or null: leave all as it is. The
forms follow from the classes' type hints and the dtypes here. Fields that are left out have neutral values where these
mean "nothing" (nothing is held, cached or on its way) or follow from others; the rest is needed. null stands for
infinite or unknown times. The future (`coming`) never travels.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.autoscaling import state as scaling
from serving_gym.envs.deployment.state import Deploy, DeploymentState
from serving_gym.envs.interface import sharing
from serving_gym.envs.interface.commands import Redeploy, SetLayout
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Pool, Release, ScaleChange
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import (
    ENGINE_STATE_DTYPE,
    IN_FLIGHT_DTYPE,
    TOTALS,
    ClusterState,
    EngineStatus,
)
from serving_gym.envs.machines.cluster import Cluster
from serving_gym.envs.routing.state import Defer, Dispatch, Reject, RoutingState
from serving_gym.envs.sharing.state import Share, SharingState
from serving_gym.runners.serving.forms import (
    Choice,
    Context,
    Default,
    Flag,
    Form,
    Listed,
    Maybe,
    Named,
    Number,
    Record,
    Text,
    Variants,
    snake,
)
from serving_gym.runners.serving.tables import Array, Limits, Table

VERSION = 1

_F8, _I8, _I4, _B1 = (np.dtype(code) for code in ("f8", "i8", "i4", "b1"))
_ANY = Limits(low=None)
_FROM_MINUS_ONE = Limits(low=-1)


def _in_flight(**limits: Limits) -> Table:
    return Table(
        IN_FLIGHT_DTYPE,
        limits={
            "arrival_s": _ANY,
            "first_token_s": _FROM_MINUS_ONE,
            "priority": _ANY,
            "class_id": Limits(high="classes"),
            **limits,
        },
        defaults={"first_token_s": -1.0},
    )


def _engines(length: str | None, **limits: Limits) -> Table:
    return Table(
        ENGINE_STATE_DTYPE,
        length,
        limits=limits,
        defaults={"status": EngineStatus.ACTIVE},
        allowed={"status": EngineStatus},
    )


_TOTALS = Array(_F8, ("classes", len(TOTALS)))

# Forms that type hints do not tell, by class and field.
_FORMS: dict[tuple[str, str], Form] = {
    ("RoutingState", "engines"): _engines("places"),
    ("RoutingState", "in_flight"): _in_flight(place=Limits(high="places")),
    ("RoutingState", "can_take"): Array(_B1, ("places",)),
    ("RoutingState", "gpu_seconds"): Array(_F8, ("places",)),
    ("RoutingState", "totals"): _TOTALS,
    ("RoutingState", "held_of_class"): Array(_I8, (None,)),
    ("RoutingState", "sent_of_class"): Array(_I8, (None,)),
    ("RoutedRequest", "class_id"): Number(True, 0, "classes"),
    ("RoutedRequest", "input_tokens"): Number(True, 1, 2**31 - 1),
    ("RoutedRequest", "network_s"): Array(_F8, ("places",), Limits(missing=np.inf)),
    ("RoutedRequest", "hash_ids"): Array(_I4, (None,), _ANY),
    ("RoutedRequest", "hash_block_tokens"): Number(True, 1),
    ("RoutedRequest", "cached_tokens"): Array(_I8, ("places",)),
    # a group that is not part of the layout lacks the blocks of paused requests of its members
    ("ClusterState", "engines"): _engines("slots", kv_capacity_blocks=_ANY, kv_capacity_tokens=_ANY),
    ("ClusterState", "totals"): _TOTALS,
    ("WaitingRequest", "class_id"): Number(True, 0, "classes"),
    ("AutoscalingState", "endpoints"): Listed(Text(), "endpoints"),  # replaced below: its items are records
    ("AutoscalingState", "vacant"): Named(Array(_I8, ("gpus",)), "regions"),
    ("AutoscalingState", "in_flight"): _in_flight(),
    ("EndpointState", "instances"): Table(
        scaling.INSTANCE_DTYPE,
        limits={
            "gpu": Limits(high="gpus"),
            "since_s": _ANY,
            "due_s": Limits(low=None, missing=np.nan),
        },
        defaults={"status": scaling.InstanceStatus.RUNNING, "due_s": np.nan},
        allowed={"status": scaling.InstanceStatus, "pool": Pool},
    ),
    ("EndpointState", "spot"): Array(_I8, ("gpus",)),
    ("EndpointState", "release_level"): Number(True, 0, "levels"),
    ("Traffic", "rows"): Table(TRAFFIC_DTYPE),
    ("Traffic", "bin_s"): Number(False, 1e-3),
    ("DeploymentState", "engines"): _engines(None),
    ("DeploymentState", "shares"): Array(_F8, (None, "types")),
    ("DeploymentState", "history"): Array(_F8, (None, "types")),
    ("DeploymentState", "forecast"): Array(_F8, ("types",)),
    ("DeploymentState", "totals"): _TOTALS,
    ("Deploy", "shares"): Maybe(Array(_F8, (None, "types"))),
    ("SharingState", "nodes"): Table(
        sharing.NODE_DTYPE,
        "nodes",
        limits={
            "kind": Limits(high="kinds"),
            "at_work": Limits(-1, "slots"),
            "prefilling": _FROM_MINUS_ONE,
        },
        defaults={"at_work": -1, "prefilling": -1},
    ),
    ("SharingState", "instances"): Table(
        sharing.INSTANCE_DTYPE,
        "slots",
        limits={"model": Limits(-1, "models"), "node": Limits(-1, "nodes")},
        defaults={"model": -1, "node": -1},
        allowed={"status": sharing.InstanceStatus},
    ),
    ("SharingState", "requests"): Table(
        sharing.REQUEST_DTYPE,
        limits={
            "model": Limits(high="models"),
            "instance": Limits(-1, "slots"),
            "arrival_s": _ANY,
            "first_token_s": _FROM_MINUS_ONE,
        },
        defaults={"instance": -1, "first_token_s": -1.0},
        allowed={"phase": sharing.RequestPhase},
    ),
    ("SharingState", "finished"): Table(
        sharing.FINISHED_DTYPE,
        limits={"model": Limits(high="models"), "instance": Limits(-1, "slots")},
    ),
    ("SharingState", "runnable"): Array(_B1, ("slots",)),
    ("SharingState", "totals"): _TOTALS,
    ("SharingState", "offered"): Number(True, -1),
    ("SharingState", "node"): Number(True, -1, "nodes"),
    ("SharingState", "instance"): Number(True, -1, "slots"),
}

# Fields of other names whose numbers may be negative: times on a clock, and priorities.
_SIGNED = ("arrival_s", "deadline_s", "started_s", "due_s", "end_s", "gauges_s", "priority")

# Fields that do not travel, and what they are.
_HIDDEN: dict[tuple[str, str], Default] = {
    ("Deployment", "cluster"): lambda known, context: _cluster(context),
    ("DeploymentState", "coming"): lambda known, context: np.zeros((0, context.sizes["types"])),
    ("SharingState", "coming_s"): lambda known, context: _unknown_future,
}


def _cluster(context: Context) -> Cluster:
    cluster: Cluster = context.spec.setting.cluster
    return cluster


def _unknown_future() -> NDArray[np.float64]:
    raise ValueError("the future is not known here: a clairvoyant policy cannot be served")


def _zeros(name: str, dtype: np.dtype[Any] = _F8) -> Default:
    return lambda known, context: np.zeros(context.sizes[name], dtype)


def _const(value: Any) -> Default:
    return lambda known, context: value


def _totals(known: dict[str, Any], context: Context) -> NDArray[np.float64]:
    return np.zeros((context.sizes["classes"], len(TOTALS)))


def _in_service(known: dict[str, Any], context: Context) -> NDArray[np.bool_]:
    return np.isin(known["engines"]["status"], (EngineStatus.ACTIVE, EngineStatus.SPECULATIVE))


def _unsent(known: dict[str, Any], context: Context) -> int:
    request = known["request"]
    return int(known["held_tokens"] + (0 if request is None else request.input_tokens))


def _of_field(name: str, otherwise: Any = None) -> Default:
    return lambda known, context: known.get(name, otherwise)


# What fields that are left out are, by class, in the order in which they are worked out.
_DEFAULTS: dict[str, dict[str, Default]] = {
    "RoutingState": {
        "gauges_s": _of_field("now_s"),
        "can_take": _in_service,
        "num_held": _const(0),
        "held_tokens": _const(0),
        "unsent_tokens": _unsent,
        "gpu_seconds": _zeros("places"),
        "operations": _const(()),
        "totals": _totals,
        "arrived_predicted_tokens": _const(0),
        "held_of_class": lambda known, context: _by_class(context),
        "sent_of_class": lambda known, context: _by_class(context),
    },
    "RoutedRequest": {
        "predicted_tokens": _of_field("max_output_tokens", 1),
        "max_output_tokens": _of_field("predicted_tokens", 1),
        "priority": _const(0),
        "class_id": _const(0),
        "deadline_s": lambda known, context: known["arrival_s"] + context.spec.slos[known["class_id"]].ttft_s,
        "region": _const(""),
        "network_s": _zeros("places"),
        "hash_ids": _const(np.zeros(0, np.int32)),
        "hash_block_tokens": _const(1),
        "cached_tokens": _zeros("places", _I8),
        "held_before": _const(False),
        "deferred": _const(False),
    },
    "ClusterState": {
        "target_layout": _of_field("layout"),
        "transitions": _const(()),
        "num_pooled": _const(0),
        "pooled_tokens": _const(0),
        "totals": _totals,
        "waiting": _const(()),
        "stale": _const(()),
    },
    "AutoscalingState": {"in_flight": _const(np.zeros(0, IN_FLIGHT_DTYPE)), "coming": _const(())},
    "EndpointState": {
        "spot": _zeros("gpus", _I8),
        "num_held": _const(0),
        "niw_queued": _const(0),
        "niw_queued_tokens": _const(0),
        "niw_oldest_s": _const(0.0),
        "weights_local": _const(True),
        "release_level": _const(0),
    },
    "DeploymentState": {
        "switch": _const(None),
        "num_pooled": _const(0),
        "pooled_tokens": _const(0),
        "totals": _totals,
    },
    "SharingState": {
        "offered": _const(-1),
        "node": _const(-1),
        "instance": _const(-1),
        "finished": _const(np.zeros(0, sharing.FINISHED_DTYPE)),
        "runnable": _zeros("slots", _B1),
        "num_held": _const(0),
        "num_ooms": _const(0),
        "totals": _totals,
    },
}


def _by_class(context: Context) -> NDArray[np.int64]:
    return np.zeros(context.sizes["classes"] if context.spec.admission else 0, np.int64)


_LEFT_OUT = {("AutoscalingState", "coming"), *_HIDDEN}  # of the wire


def record_of(kind: type[Any], tag: str = "") -> Record:
    """The form of a dataclass or named tuple.

    Args:
        kind: The class.
        tag: Value of `kind` that tells it from others; empty: none.
    """
    hints = get_type_hints(kind)
    own = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    names = [item.name for item in own if item.init] or list(getattr(kind, "_fields", ()))
    fields = {
        name: _FORMS.get((kind.__name__, name)) or _form_of(hints[name], name)
        for name in names
        if (kind.__name__, name) not in _LEFT_OUT
    }
    if kind is scaling.AutoscalingState:
        fields["endpoints"] = Listed(record_of(scaling.EndpointState), "endpoints")
    defaults = dict(_DEFAULTS.get(kind.__name__, {}))
    for item in own:
        if item.default is not dataclasses.MISSING:
            defaults.setdefault(item.name, _const(item.default))
    defaults |= {field: value for (owner, field), value in _HIDDEN.items() if owner == kind.__name__}
    return Record(kind, fields, defaults, tag)


def _form_of(hint: Any, name: str) -> Form:
    """The form that a type hint tells."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _of_union(arguments, name)
    if origin is tuple:
        return Listed(_form_of(arguments[0], name))
    if not isinstance(hint, type):
        raise TypeError(f"field {name} has no form: {hint}")
    if hint is bool:
        return Flag()
    if issubclass(hint, Enum):
        return Choice(hint)
    if hint in (int, float):
        return Number(hint is int, None if name in _SIGNED else 0)
    return Text() if hint is str else record_of(hint)


def _of_union(arguments: tuple[Any, ...], name: str) -> Form:
    """Of what may be None, one of several classes, or a number."""
    others = [kind for kind in arguments if kind is not type(None)]
    classes = [kind for kind in others if kind is not int]
    inner: Form
    if len(others) == 1:
        inner = _form_of(others[0], name)
    else:
        index = Number(True) if int in others else None
        inner = Variants(tuple(record_of(kind, snake(kind)) for kind in classes), index)
    return Maybe(inner) if type(None) in arguments else inner


# State class and forms of decisions of each environment.
_STATES: dict[str, type[Any]] = {
    "routing": RoutingState,
    "autoscaling": scaling.AutoscalingState,
    "dp_tp": ClusterState,
    "deployment": DeploymentState,
    "sharing": SharingState,
}


@cache
def state_form(env: str) -> Record:
    """Form of an environment's state."""
    return record_of(_STATES[env])


@cache
def action_form(env: str) -> Form:
    """Form of an environment's decisions."""
    match env:
        case "routing":
            return _variants(Dispatch, Reject, Defer)
        case "autoscaling":
            return Listed(_variants(ScaleChange, Release))
        case "dp_tp":
            return Maybe(_variants(SetLayout, Redeploy))
        case "deployment":
            return Maybe(_variants(Deploy))
        case _:
            return Maybe(_variants(Share))


def _variants(*kinds: type[Any]) -> Variants:
    return Variants(tuple(record_of(kind, snake(kind)) for kind in kinds))


class Wire:
    """Reads and writes states and decisions of one setting.

    Args:
        env: Name of the environment.
        spec: The policy specification.
        sizes: Sizes by name, as forms name them.
        max_rows: Most rows of a table.
    """

    def __init__(self, env: str, spec: Any, sizes: Mapping[str, int], max_rows: int = 20_000) -> None:
        self.env, self.context = env, Context(sizes, spec, max_rows)
        self.state, self.action = state_form(env), action_form(env)

    def read_state(self, value: Any) -> Any:
        """The state of a plain value.

        Raises:
            ValueError: It is none.
        """
        state = self.state.read(value, "state", self.context)
        self.check(state)
        return state

    def check(self, state: Any) -> None:
        """Checks what fields must have in common.

        Raises:
            ValueError: They contradict each other.
        """
        if self.env == "deployment":
            replicas = len(state.deployment.replicas)
            for name in ("engines", "shares"):
                if len(getattr(state, name)) != replicas:
                    raise ValueError(
                        f"state.{name} must have a row for each of {replicas} replicas, got {len(getattr(state, name))}"
                    )
        if self.env == "dp_tp":
            for name in ("layout", "target_layout"):
                if sum(getattr(state, name)) != self.context.sizes["base engines"]:
                    raise ValueError(
                        f"state.{name} must cover {self.context.sizes['base engines']} base engines"
                    )
        if self.env == "sharing" and state.offered >= len(state.requests):
            raise ValueError(f"state.offered must be below {len(state.requests)}, the rows of state.requests")
        if self.env == "autoscaling":
            said = tuple(own.endpoint for own in state.endpoints)
            if said != self.context.spec.setting.endpoints:
                raise ValueError("state.endpoints must be in the order of the setting, each once")

    def write_state(self, state: Any) -> dict[str, Any]:
        """A state as a plain value."""
        return self.state.write(state)

    def read_action(self, value: Any, where: str = "action") -> Any:
        """The decision of a plain value.

        Raises:
            ValueError: It is none.
        """
        return self.action.read(value, where, self.context)

    def write_action(self, decision: Any) -> Any:
        """A decision as a plain value."""
        return self.action.write(decision)


def state_from_json(values: Any, num_places: int, slos: Sequence[SLO]) -> RoutingState:
    """A state of the routing environment without admission.

    Args:
        values: The plain value.
        num_places: Replica slots of the fleet.
        slos: SLO of each class.

    Raises:
        ValueError: A required value is missing, or a value is unknown or invalid.
    """
    wire = Wire("routing", _Known(tuple(slos)), {"places": num_places, "classes": len(slos)})
    state: RoutingState = wire.read_state(values)
    return state


@dataclasses.dataclass(frozen=True)
class _Known:
    """What reading a routing state needs of a policy specification."""

    slos: tuple[SLO, ...]
    admission: bool = False


def schema_of(env: str) -> dict[str, Any]:
    """The JSON schema of an environment's exchange over HTTP: states, decisions, requests and answers."""
    answer = {
        "action": {"anyOf": [{"$ref": "#/$defs/action"}, {"type": "null"}]},
        "applies": {"type": "boolean"},
        "by": {"enum": ["policy", "fallback", "none"]},
        "error": {"type": "string"},
        "us": {"type": "number", "minimum": 0},
        "place": {"type": ["integer", "null"]},
        "priority": {"type": ["integer", "null"]},
    }
    needed = ["action", "applies", "by", "error", "us"]
    decide = {"state": {"$ref": "#/$defs/state"}, "chosen": {"$ref": "#/$defs/chosen"}}
    chosen: list[dict[str, Any]] = [{"$ref": "#/$defs/action"}, {"type": "null"}]
    if env == "routing":
        chosen.append({"type": "integer", "minimum": 0})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"serving_gym/policy/v{VERSION}/{env}.json",
        "title": f"serving_gym.policy.v{VERSION}, env={env}",
        "$defs": {
            "state": state_form(env).schema(),
            "action": action_form(env).schema(),
            "chosen": {"anyOf": chosen},
            "decide": _closed(decide, ["state"]),
            "batch": _closed(
                {"decisions": {"type": "array", "items": {"$ref": "#/$defs/decide"}}}, ["decisions"]
            ),
            "answer": _closed(answer, needed),
        },
        "$ref": "#/$defs/decide",
    }


def _closed(properties: dict[str, Any], needed: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
