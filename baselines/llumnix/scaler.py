"""Llumnix's auto-scaling (section 4.4.3): as many instances as keep the average freeness within a range.

Out when it stays below the range for a period, in when it stays above; the instance with the fewest running requests
goes. The numbers are those of the authors' public implementation: freeness between 10 and 60 iterations, by sums over
all instances; whether one can go is reckoned without it; nothing is done before all instances have reported; one comes
at a time, as an empty one is taken for boundless there.

Freeness of all instances together is (M - use - demand of what waits) / batch, in tokens, by the engines' gauges: those
show no requests, so that headroom for priorities, of which PreServe's comparison has none, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.autoscaler import Autoscaler, bounded, to_count
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint, Operation, ScaleChange


@dataclass(frozen=True)
class LlumnixScalingConfig(Constants):
    """Constants of `LlumnixScalingPolicy`.

    Attributes:
        out_below: Average freeness below which an instance is added, iterations. Source: the public implementation.
        in_above: ... above which one is taken away. Source: the public implementation.
        period_s: How long it must stay there. Source: section 4.4.3 has "for a period"; here one interval.
        interval_s: Between two looks, seconds; None: as often as the environment asks. Source: the public
            implementation (`llumnix/config/default.py`, SCALING_INTERVAL, 10).
    """

    out_below: float = tunable(10.0, 1.0, 50.0, log=True)
    in_above: float = tunable(60.0, 51.0, 500.0, log=True)
    period_s: float = tunable(10.0, 1.0, 300.0, log=True)
    interval_s: float | None = 10.0

    def __post_init__(self) -> None:
        if not self.out_below < self.in_above:
            raise ValueError(f"out_below must be below in_above ({self.in_above}), got {self.out_below}")
        check_not_negative(self, "period_s")
        check_positive(self, "interval_s")


def average_freeness(rows: NDArray[np.void], without: int = 0) -> float:
    """Freeness of instances together, iterations; infinite where no request is there.

    Args:
        rows: (I,) INSTANCE_DTYPE, those that run.
        without: How many of them are reckoned to be gone, with their requests on the others: those with the least KV.
    """
    capacity = np.sort(rows["kv_capacity_tokens"])[without:].sum()
    batch = int((rows["num_running"] + rows["num_waiting"]).sum())
    free = float(capacity - rows["kv_used_tokens"].sum() - rows["waiting_tokens"].sum())
    return free / batch if batch else float("inf")


class LlumnixScalingPolicy(Autoscaler, Configured[LlumnixScalingConfig]):
    """Scales every endpoint by its average freeness."""

    name = "llumnix_scaling"

    @property
    def period_s(self) -> float | None:
        """Time between decisions."""
        return self.config.interval_s

    def begin(self) -> None:
        """Forgets since when freeness is out of its range."""
        self._since: dict[Endpoint, tuple[int, float]] = {}

    def decide(self, state: AutoscalingState) -> Iterable[ScaleChange]:
        """One instance more or fewer where freeness has been out of its range for the period."""
        for endpoint in state.endpoints:
            side = self._side(endpoint)
            last, since_s = self._since.get(endpoint.endpoint, (0, state.now_s))
            if side != last:
                since_s = state.now_s
            self._since[endpoint.endpoint] = (side, since_s)
            present = len(endpoint.present)
            if present < self.spec.min_instances:
                yield from to_count(self.spec, endpoint, self.spec.min_instances)
            elif side and state.now_s - since_s >= self.config.period_s:
                yield from self._change(endpoint, side)
                self._since[endpoint.endpoint] = (side, state.now_s)

    def _side(self, endpoint: EndpointState) -> int:
        """1: too little is free; -1: enough would be with one instance fewer; 0: neither."""
        rows = endpoint.running
        if not len(rows) or len(endpoint.starting):
            return 0
        if average_freeness(rows) < self.config.out_below:
            return 1
        return -1 if average_freeness(rows, without=1) > self.config.in_above else 0

    def _change(self, endpoint: EndpointState, side: int) -> Iterable[ScaleChange]:
        present = len(endpoint.present)
        if side > 0:
            yield from to_count(self.spec, endpoint, present + 1)
        elif bounded(self.spec, present - 1) < present:
            rows = endpoint.running
            goes = rows[np.lexsort((rows["place"], rows["num_running"]))[0]]
            yield ScaleChange(endpoint.endpoint, Operation.STOP, 1, (int(goes["place"]),))
