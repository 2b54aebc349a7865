"""A timetable, as KEDA's cron scaler has it: so many instances between two times of day, otherwise the fewest.

KEDA hands each trigger to a Horizontal Pod Autoscaler, of whose recommendations the largest counts and whose scaling in
waits for its stabilisation window; so it is here, and a trigger on waiting requests can stand beside the timetable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler, bounded
from serving_gym.baselines.common.autoscalers.horizontal import (
    CombinedHorizontal,
    HorizontalConfig,
    replicas_for_external,
)
from serving_gym.baselines.policy import Configured, Constants
from serving_gym.calibration.fields import check_not_negative, check_positive, check_within
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint

_DAY_S = 86_400.0
_WORKDAYS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class CronWindow:
    """A time of day with a number of instances.

    Attributes:
        start_h: When it begins, hours of the day.
        end_h: When it ends; where that is not later than the beginning, on the next day.
        instances: How many there are at least.
        days: Days of the week on which it begins, Monday being 0.
    """

    start_h: float
    end_h: float
    instances: int
    days: Sequence[int] = _WORKDAYS

    def __post_init__(self) -> None:
        check_within(self, "[0, 24]", "start_h", "end_h")
        check_not_negative(self, "instances")
        if not all(0 <= day <= 6 for day in self.days):
            raise ValueError(f"days must be numbers from 0 (Monday) to 6, got {list(self.days)}")

    def holds(self, clock_s: float) -> bool:
        """Whether it is that time.

        Args:
            clock_s: Seconds since a Monday, 0:00.
        """
        day, hour = math.floor(clock_s / _DAY_S), (clock_s % _DAY_S) / 3600.0
        if self.start_h < self.end_h:
            return self.start_h <= hour < self.end_h and day % 7 in self.days
        if hour >= self.start_h:
            return day % 7 in self.days
        return hour < self.end_h and (day - 1) % 7 in self.days


@dataclass(frozen=True)
class CronConfig(Constants):
    """Constants of `CronPolicy`.

    Attributes:
        windows: The timetable. Source of the default: ours, working hours.
        waiting_target: Waiting requests an instance of a second trigger; None: there is none.
        poll_s: Between two looks. Source: KEDA (30 s).
        behavior: Of the Horizontal Pod Autoscaler.
    """

    windows: Sequence[CronWindow] = (CronWindow(8.0, 20.0, 8),)
    waiting_target: float | None = None
    poll_s: float = 30.0
    behavior: HorizontalConfig = field(default_factory=HorizontalConfig)

    def __post_init__(self) -> None:
        check_positive(self, "waiting_target", "poll_s")


class CronPolicy(EndpointAutoscaler, Configured[CronConfig]):
    """A timetable of instances."""

    name = "cron"

    @property
    def period_s(self) -> float:
        """Time between decisions."""
        return self.config.poll_s

    def begin(self) -> None:
        """Forgets recommendations."""
        self._scalers: dict[Endpoint, CombinedHorizontal] = {}
        self._polled_s: dict[Endpoint, float] = {}

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """What the timetable says, or the queue if that is more."""
        present = len(endpoint.present)
        if state.now_s - self._polled_s.get(endpoint.endpoint, -math.inf) < self.config.poll_s:
            return present
        self._polled_s[endpoint.endpoint] = state.now_s
        due = [window.instances for window in self.config.windows if window.holds(state.clock_s)]
        wanted = [max(due, default=self.spec.min_instances)]
        if self.config.waiting_target is not None:
            waiting = float(endpoint.instances["num_waiting"].sum()) + endpoint.num_held
            wanted.append(
                replicas_for_external(
                    waiting, self.config.waiting_target, present, self.config.behavior.tolerance
                )
            )
        scaler = self._scalers.setdefault(endpoint.endpoint, CombinedHorizontal(self.config.behavior))
        return scaler.apply(state.now_s, present, [bounded(self.spec, count) for count in wanted])
