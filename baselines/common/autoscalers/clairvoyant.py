"""A clairvoyant reference: as many instances as the load to come needs, begun as early as they take to start.

It is told the expected rates of the rest of the episode. An instance is there from when it is needed until it is not
needed for longer than another start would take: going and coming back costs a start-up during which the machine is
paid for and serves nothing. It is a reference, not an optimum: rates are expectations, and what an instance serves is
the benchmarked capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler, default_gpu
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Traffic

_ROUNDING = 1e-9  # of a load that is a whole number of instances


@dataclass(frozen=True)
class ClairvoyantScalingConfig(Constants):
    """Constants of `ClairvoyantScalingPolicy`.

    Attributes:
        load_ratio: Share of the benchmarked capacity that instances are given. Source: ours.
        niw_ratio: Share of the non-interactive load to come, spread evenly over the rest of the episode, that is
            provided for. Source: ours.
        hold_starts: For how many times a start-up an instance is kept that is not needed. Source: ours, one: then going
            and coming back costs as much as staying.
    """

    load_ratio: float = tunable(0.7, 0.2, 2.0, log=True)
    niw_ratio: float = tunable(1.0, 0.0, 2.0)
    hold_starts: float = tunable(1.0, 0.0, 6.0)

    def __post_init__(self) -> None:
        check_positive(self, "load_ratio")
        check_not_negative(self, "niw_ratio", "hold_starts")


class ClairvoyantScalingPolicy(EndpointAutoscaler, Configured[ClairvoyantScalingConfig]):
    """Scales by the load to come."""

    name = "clairvoyant_scaling"
    clairvoyant = True

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """The most instances that are needed until one that starts at the next decision would serve.

        Raises:
            ValueError: The state does not show what is to come.
        """
        if not state.coming:
            raise ValueError("clairvoyant_scaling needs a state that shows the load to come")
        number = [own.endpoint for own in state.endpoints].index(endpoint.endpoint)
        model = self.spec.models.index(endpoint.endpoint.model)
        gpu = default_gpu(self.spec, endpoint.endpoint.model)
        start_s = float(self.spec.start_s[model, gpu])
        ahead_s = max(start_s, self.config.hold_starts * start_s) + self.spec.decision_interval_s
        return self.needed(state.coming[number], ahead_s, float(self.spec.capacity_tps[model, gpu]))

    def needed(self, coming: Traffic, ahead_s: float, capacity_tps: float) -> int:
        """Most instances that the next bins need.

        Args:
            coming: Load by bin, from now on.
            ahead_s: How far is looked.
            capacity_tps: Of an instance, prompt tokens/s.
        """
        if not len(coming):
            return 0
        bins = max(1, math.ceil(ahead_s / coming.bin_s - _ROUNDING))
        interactive = coming.rows["input_tokens"][:bins] / coming.bin_s
        niw = float(coming.rows["niw_input_tokens"].mean()) / coming.bin_s
        load = float(np.max(interactive)) + self.config.niw_ratio * niw
        return math.ceil(load / (self.config.load_ratio * capacity_tps) - _ROUNDING)
