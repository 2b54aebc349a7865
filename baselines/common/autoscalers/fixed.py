"""A number of instances that stays: what a fleet without an autoscaler has."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler
from serving_gym.baselines.policy import Configured, Constants
from serving_gym.calibration.fields import check_not_negative
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint


@dataclass(frozen=True)
class FixedInstancesConfig(Constants):
    """Constants of `FixedInstancesPolicy`.

    Attributes:
        instances: Of each endpoint; None: as many as there are at the first decision.
    """

    instances: int | None = None

    def __post_init__(self) -> None:
        check_not_negative(self, "instances")


class FixedInstancesPolicy(EndpointAutoscaler, Configured[FixedInstancesConfig]):
    """Keeps the number of instances."""

    name = "fixed_instances"

    def begin(self) -> None:
        """Forgets how many there were."""
        self._first: dict[Endpoint, int] = {}

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """The number."""
        first = self._first.setdefault(endpoint.endpoint, len(endpoint.present))
        return first if self.config.instances is None else self.config.instances
