"""The control plane of a fleet that is scaled: instances come from machines, spot instances and other models, and go.

An instance that comes is a `Starting` with a due time, one that goes a `Stopping`; where its machine goes then is
noted beside it. The time until a spot instance is back is drawn by endpoint and number, so that the n-th one of an
endpoint takes as long whatever else a policy does.
"""

from __future__ import annotations

import math

import numpy as np

from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.autoscaling.inventory import Inventory
from serving_gym.envs.simulator.autoscaling.machines import Machines
from serving_gym.envs.simulator.fleet.operations import Phase, Starting
from serving_gym.envs.simulator.fleet.places import Places
from serving_gym.envs.simulator.fleet.plane import FleetPlane
from serving_gym.envs.simulator.scheduling import to_ps


class AutoscalingPlane(FleetPlane):
    """Instances that come and go.

    Attributes:
        inventory: Machines that no instance runs on.
        to_spot: (E,) whether the machine of the instance that goes becomes a spot instance.
        reclaimed: (P,) spot instances that have been called back.
        since_ps: (E,) when each place took its present status.

    Args:
        simulator: The fleet.
        machines: Its machines.
        seed: Of times until spot instances are back.
    """

    def __init__(self, simulator: Places, machines: Machines, seed: int) -> None:
        super().__init__(simulator)
        self.machines, self.seed = machines, seed
        self.inventory: Inventory = machines.new_inventory()
        self.to_spot = np.zeros(len(simulator.fleet.places), bool)
        self.reclaimed = np.zeros(len(machines.layout.region_of), np.int64)
        self.since_ps = np.zeros(len(simulator.fleet.places), np.int64)

    def fork_for(self, simulator: Places) -> AutoscalingPlane:
        """A copy for another simulator."""
        copy = super().fork(simulator)
        assert isinstance(copy, AutoscalingPlane)
        copy.machines, copy.seed = self.machines, self.seed
        copy.inventory = self.inventory.fork()
        copy.to_spot, copy.reclaimed = self.to_spot.copy(), self.reclaimed.copy()
        copy.since_ps = self.since_ps.copy()
        return copy

    # -- coming --------------------------------------------------------------------------------------------------------

    def bring_up(self, place: int, seconds: float | None) -> None:
        """Begins to bring an instance up.

        Args:
            place: Where.
            seconds: How long it takes; None: as long as a start on a vacant machine.
        """
        self.meter.open(place, self.simulator.now_ps)
        self.to_spot[place] = False
        if seconds is None:
            self.begin_start(place)
        else:
            self._begin_timed(place, seconds)

    def begin_start(self, place: int) -> None:
        """Begins a start from nothing, after a crash as well: from the region's storage where that has the weights."""
        machines = self.machines
        local = machines.weights_local(int(machines.layout.endpoint_of[place]))
        given_s = machines.given_start_s(self.simulator.fleet.places[place].replica)
        seconds = given_s if local else machines.spec.remote_s
        if seconds is None:
            super().begin_start(place)
        else:
            self._begin_timed(place, seconds)

    def _begin_timed(self, place: int, seconds: float) -> None:
        self._set(place, EngineStatus.DOWN)
        now_ps = self.simulator.now_ps
        self.begin(Starting(place, now_ps, now_ps + to_ps(seconds), Phase.BOOT))

    def reclaim_s(self, endpoint: int) -> float:
        """Draws the time until the endpoint's next spot instance is back, seconds.

        The paper gives its median and its longest; that logarithms are spread evenly about the median is ours.
        """
        spec, number = self.machines.spec, int(self.reclaimed[endpoint])
        self.reclaimed[endpoint] += 1
        rng = np.random.default_rng([self.seed, endpoint, number])
        spread = spec.reclaim_max_s / spec.reclaim_median_s
        return float(spec.reclaim_median_s * spread ** (2 * rng.random() - 1))

    # -- going ---------------------------------------------------------------------------------------------------------

    def take_down(self, place: int, to_spot: bool) -> None:
        """Lets an instance finish what it has and go; one that is only starting is gone at once."""
        self.to_spot[place] = to_spot
        starting = self.operation_at(Starting, place)
        if starting is None:
            self.begin_stop(place, drain=True)
            return
        starting.finish()
        self.end_transfer(place)
        self.retire(place)

    def retire(self, place: int) -> None:
        """Leaves a place empty; its machine becomes a spot instance, or vacant."""
        super().retire(place)
        layout, kind = self.machines.layout, self.machines.layout.kind_of[place]
        endpoint = layout.endpoint_of[place]
        if self.to_spot[place]:
            self.inventory.spot[endpoint, kind] += 1
        else:
            self.inventory.vacant[layout.region_of[endpoint], kind] += 1
        self.to_spot[place] = False

    def due_s(self, place: int) -> float:
        """When an instance that comes is expected to serve, as things stand; NaN where none comes."""
        starting = self.operation_at(Starting, place)
        expected = None if starting is None else self._expected_s(starting)
        return math.nan if expected is None else expected

    def _set(self, place: int, status: EngineStatus, hold: int = 0, notify: int = 0) -> None:
        if self.status(place) != status:
            self.since_ps[place] = self.simulator.now_ps
        super()._set(place, status, hold, notify)
