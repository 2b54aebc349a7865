"""What autoscalers have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.state import (
    AutoscalingSpec,
    AutoscalingState,
    EndpointState,
    InstanceStatus,
)
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.scaling import Operation, Pool, ScaleChange

Changes = tuple[ScaleChange, ...]


class Autoscaler:
    """A policy that says how many instances there are.

    A subclass has a `name` and `decide`, and `begin` where it remembers something.
    """

    name: str
    clairvoyant = False
    spec: AutoscalingSpec
    rng: np.random.Generator

    def reset(self, spec: PolicySpec | AutoscalingSpec, seed: int) -> None:
        """Forgets everything and prepares for an episode in this setting.

        Raises:
            ValueError: The environment decides about something else.
        """
        self.spec = spec if isinstance(spec, AutoscalingSpec) else spec.setting_of(AutoscalingSpec)
        self.rng = np.random.default_rng(seed)
        self.begin()

    def begin(self) -> None:
        """Prepares for an episode; `spec` and `rng` are set."""

    def act(self, observation: Any, state: AutoscalingState) -> Changes:
        """Decides: changes of the number of instances, in the order in which they are to be begun."""
        return tuple(self.decide(state))

    def decide(self, state: AutoscalingState) -> Iterable[ScaleChange]:
        """The decision."""
        raise NotImplementedError


class EndpointAutoscaler(Autoscaler):
    """One that decides about each endpoint on its own: a subclass has `desired`, the number that it wants there.

    Instances come from nothing and go to nothing, as replicas of a Kubernetes deployment do, on GPUs of the first kind
    that the model runs on.
    """

    def decide(self, state: AutoscalingState) -> Iterable[ScaleChange]:
        """What leads from what there is to what is wanted."""
        for endpoint in state.endpoints:
            yield from to_count(self.spec, endpoint, self.desired(state, endpoint))

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """Instances that are wanted at an endpoint, starting ones included."""
        raise NotImplementedError


def bounded(spec: AutoscalingSpec, count: int) -> int:
    """A number of instances, within what the setting allows."""
    return min(max(count, spec.min_instances), spec.max_instances)


def default_gpu(spec: AutoscalingSpec, model: str) -> int:
    """The first kind of GPU that a model runs on.

    Raises:
        ValueError: There is none.
    """
    runs = np.flatnonzero(spec.capacity_tps[spec.models.index(model)] > 0)
    if not len(runs):
        raise ValueError(f"capacity_tps: {model} runs on none of {', '.join(spec.gpus)}")
    return int(runs[0])


def victims(endpoint: EndpointState, count: int, rows: NDArray[np.void] | None = None) -> tuple[int, ...]:
    """Instances that go first: those that are not ready yet, the youngest before others; then those with least to do.

    So Kubernetes ranks pods of a deployment (not ready before ready), save that it does not know what they have to do.

    Args:
        endpoint: The endpoint.
        count: How many.
        rows: Rows to choose from; None: all that are present.
    """
    choice = endpoint.present if rows is None else rows
    ready = choice["status"] == InstanceStatus.RUNNING
    load = choice["num_running"] + choice["num_waiting"]
    order = np.lexsort((choice["place"], -choice["since_s"], load, ready))
    return tuple(int(place) for place in choice["place"][order[:count]])


def to_count(
    spec: AutoscalingSpec, endpoint: EndpointState, wanted: int, pool: Pool = Pool.MIXED
) -> Iterable[ScaleChange]:
    """Starts or stops what leads to a number of instances, within what the setting allows.

    Args:
        spec: The setting.
        endpoint: The endpoint.
        wanted: Instances that serve or are about to.
        pool: What those that come are for.
    """
    change = bounded(spec, wanted) - len(endpoint.present)
    if change > 0:
        gpu = default_gpu(spec, endpoint.endpoint.model)
        yield ScaleChange(endpoint.endpoint, Operation.START, change, gpu=gpu, pool=pool)
    elif change < 0:
        yield ScaleChange(endpoint.endpoint, Operation.STOP, -change, victims(endpoint, -change))
