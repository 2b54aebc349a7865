"""The observation of `envs.autoscaling.observation`, from the typed state alone: for fleets that are not simulated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.observation import (
    HIGH,
    Constants,
    FloatArray,
    Observation,
    log_of,
    observation_of,
    shapes_of,
)
from serving_gym.envs.autoscaling.state import (
    AutoscalingSpec,
    AutoscalingState,
    EndpointState,
    InstanceStatus,
)
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE

_COLUMNS = len(TRAFFIC_DTYPE.names or ())


class StateEncoder:
    """Encodes states.

    Args:
        config: What the environment is made of.
        spec: What policies are told beforehand.
        engines: What is known of the fleet's places beforehand.
    """

    def __init__(self, config: AutoscalingConfig, spec: AutoscalingSpec, engines: NominalEngines) -> None:
        if spec.places is None:
            raise ValueError("spec.places must say how many instances each endpoint may have")
        self.config, self.spec, self.scales = config, spec, config.scales
        self.engines = engines
        self.shapes = shapes_of(spec)
        self._most = spec.places.sum(axis=1)
        self._kinds = np.argmax(spec.places > 0, axis=1)

    def encode(self, state: AutoscalingState, left: float) -> Observation:
        """The observation of a state.

        Args:
            state: What is known.
            left: Share of the episode that is left.
        """
        local = np.array([own.weights_local for own in state.endpoints])
        constants = Constants(self.config, self.spec, self._kinds, local, self.engines)
        known = np.stack([own.history.rows.view(np.float64).reshape(-1, _COLUMNS) for own in state.endpoints])
        features = {
            **self._machines(state),
            **self._requests(state),
            **constants.traffic(known),
            **constants.fixed(),
        }
        return observation_of(features, state.clock_s, left)

    def _machines(self, state: AutoscalingState) -> dict[str, FloatArray]:
        scale = self.scales.instances

        def count(status: InstanceStatus) -> FloatArray:
            return np.array([float(len(own.with_status(status))) for own in state.endpoints])

        spot = np.array([float(own.spot.sum()) for own in state.endpoints])
        regions = [own.endpoint.region for own in state.endpoints]
        of_region = np.array([sum(spot[np.array(regions) == region]) for region in regions])
        vacant = np.array([float(state.vacant[region].sum()) for region in regions])
        taken = np.array([float(len(own.instances)) for own in state.endpoints])
        running = count(InstanceStatus.RUNNING)
        return {
            "running": log_of(running, scale),
            "starting": log_of(count(InstanceStatus.STARTING), scale),
            "draining": log_of(count(InstanceStatus.DRAINING), scale),
            "spot": log_of(spot, scale),
            "spot_of_others": log_of(of_region - spot, scale),
            "vacant": log_of(vacant, scale),
            "next_ready": log_of(
                np.array([_next_ready_s(own, state.now_s) for own in state.endpoints]), self.scales.seconds
            ),
            "no_instance": (running == 0).astype(np.float64),
            "places_left": 1.0 - taken / self._most,
        }

    def _requests(self, state: AutoscalingState) -> dict[str, FloatArray]:
        scales, due_s = self.scales, max(self.config.queue.deadline_s, 1e-9)
        levels = max(len(self.config.queue.levels) - 1, 1)

        def each(value: Callable[[EndpointState], float]) -> FloatArray:
            return np.array([float(value(own)) for own in state.endpoints])

        return {
            "kv_usage": each(lambda own: own.utilization() if len(own.running) else 0.0),
            "running_requests": log_of(each(lambda own: own.instances["num_running"].sum()), scales.requests),
            "waiting_requests": log_of(each(lambda own: own.instances["num_waiting"].sum()), scales.requests),
            "waiting_tokens": log_of(each(lambda own: own.instances["waiting_tokens"].sum()), scales.tokens),
            "held_requests": log_of(each(lambda own: own.num_held), scales.requests),
            "niw_queued": log_of(each(lambda own: own.niw_queued), scales.requests),
            "niw_queued_tokens": log_of(each(lambda own: own.niw_queued_tokens), scales.tokens),
            "niw_oldest": np.minimum(each(lambda own: own.niw_oldest_s) / due_s, HIGH),
            "release_level": each(lambda own: own.release_level) / levels,
        }


def _next_ready_s(own: EndpointState, now_s: float) -> float:
    """Seconds until the first of the instances that come serves; 0 where none comes or nobody knows when."""
    left = np.maximum(own.starting["due_s"] - now_s, 0.0)
    known = left[np.isfinite(left)]
    return float(known.min()) if known.size else 0.0
