"""Instances in proportion to the requests that are there: Ray Serve's rule, without its smoothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState


@dataclass(frozen=True)
class QueueProportionalConfig(Constants):
    """Constants of `QueueProportionalPolicy`.

    Attributes:
        requests_per_instance: Requests, running or waiting, for which an instance is kept. Source: ours.
    """

    requests_per_instance: float = tunable(32.0, 1.0, 512.0, log=True)

    def __post_init__(self) -> None:
        check_positive(self, "requests_per_instance")


class QueueProportionalPolicy(EndpointAutoscaler, Configured[QueueProportionalConfig]):
    """ceil(requests running, waiting or held / requests an instance is kept for)."""

    name = "queue_proportional"

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """Instances for the requests that are there."""
        return math.ceil(requests_there(endpoint) / self.config.requests_per_instance)


def requests_there(endpoint: EndpointState) -> int:
    """Interactive requests of an endpoint: running, waiting at instances, or held at the gateway."""
    rows = endpoint.instances
    return int((rows["num_running"] + rows["num_waiting"]).sum()) + endpoint.num_held
