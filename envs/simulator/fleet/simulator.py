"""A simulated fleet of replicas behind `Backend`'s verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.power import power_of
from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.fleet import ROLES, FleetCommand, FleetFault, SlowNode, Underway
from serving_gym.envs.interface.randomise import NOMINAL, EpisodeFactors
from serving_gym.envs.interface.state import TOTALS, WaitingRequest
from serving_gym.envs.interface.usage import Usage
from serving_gym.envs.simulator.fleet.build import build_fleet, host_blocks
from serving_gym.envs.simulator.fleet.commands import obey
from serving_gym.envs.simulator.fleet.places import Places
from serving_gym.envs.simulator.fleet.plane import FleetPlane
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.envs.simulator.metering import usage, work_j

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload


@dataclass(frozen=True, slots=True)
class FleetState:
    """What a policy may know of a fleet at a decision."""

    now_s: float
    engines: NDArray[np.void]  # (places,) ENGINE_STATE_DTYPE; first_gpu and width count within the place
    gpu_seconds: NDArray[np.float64]  # (places,) for which a replica has been kept there
    operations: tuple[Underway, ...]  # starts, stops, resizes and migrations that are not done
    num_pooled: int  # requests that no engine could take yet
    pooled_tokens: int  # their tokens to prefill
    totals: NDArray[np.float64]  # (num_classes, len(TOTALS))
    waiting: tuple[WaitingRequest, ...]  # requests whose arrival triggered this decision, oldest first


class FleetSimulator(Places):
    """A simulated fleet.

    Other attributes, arguments and errors are those of `Places`.

    Attributes:
        levels: Factors on iteration times that episodes may draw.
    """

    levels: tuple[float, ...] = ()

    @property
    def clockwork(self) -> FleetPlane:
        """The control plane."""
        return self.plane

    def reset(
        self,
        workload: Workload,
        faults: tuple[FleetFault, ...] = (),
        priorities: Sequence[int] = (),
        factors: EpisodeFactors = NOMINAL,
    ) -> FleetState:
        """Empties the fleet and prepares to serve `workload` from time zero.

        Args:
            workload: Requests.
            faults: What will go wrong.
            priorities: Priorities of requests that may be appended.
            factors: What was drawn for the episode; those on iteration times are of `levels`.

        Raises:
            ValueError: the workload asks for a model that the fleet has no place for within reach, or a fault names a
                place that does not exist.
        """
        self.check_faults(faults)
        self.factors = factors
        self.fleet = build_fleet(self.spec, self.slos, self._levels_with(faults))
        self.tables = self.fleet.tables
        self.endpoints = (*self.fleet.endpoints, *self._elsewhere(workload))
        endpoint = self.endpoints_of(workload)
        self.begin(
            workload,
            len(self.fleet.places),
            endpoint,
            len(self.endpoints),
            priorities,
            self.fleet.disaggregated,
            self.spec.host_kv_gib > 0,
        )
        self._fill_world()
        self.plane = self.make_plane()
        self.plane.start(faults)
        return self.observe()

    def _levels_with(self, faults: tuple[FleetFault, ...]) -> tuple[float, ...]:
        """Factors on iteration times that replicas may have in an episode."""
        slow = dict.fromkeys(fault.factor for fault in faults if isinstance(fault, SlowNode))
        return (*self.levels, *(level * factor for factor in slow for level in self.levels or (1.0,)))

    def make_plane(self) -> FleetPlane:
        """A control plane for a new episode."""
        return FleetPlane(self)

    def _elsewhere(self, workload: Workload) -> list[tuple[str, str]]:
        """Models and regions of a workload that the fleet has no places for, except in other regions within reach."""
        models = list(dict.fromkeys(model for model, _ in self.fleet.endpoints))
        return [
            (model, region)
            for model in models
            for region in workload.regions
            if region
            and {"", model} & set(workload.models)
            and (model, region) not in self.fleet.endpoints
            and self.within_reach(model, region)
        ]

    def _fill_world(self) -> None:
        world, fleet = self.world, self.fleet
        world.engines["kind"] = [self.kind_of(place) for place in range(len(fleet.places))]
        world.engines["role"] = [ROLES.index(group.replica.role) for group in fleet.places]
        world.engines["width"] = [group.replica.num_gpus for group in fleet.places]
        world.engines["host_blocks"] = [
            host_blocks(group.replica, self.spec.host_kv_gib) for group in fleet.places
        ]
        world.engines["total_blocks"] = world.engines["capacity_blocks"] = fleet.blocks
        for number in range(len(fleet.endpoints)):
            endpoint = world.endpoints[number]
            endpoint["first"], endpoint["last_decode"] = fleet.first_place[number : number + 2]
            endpoint["last"] = endpoint["first_decode"] = fleet.decodes_from(number)
            self.set_request_limits(number)

    def check_faults(self, faults: tuple[FleetFault, ...]) -> None:
        """Raises ValueError where a fault names a place that does not exist."""
        for fault in faults:
            if not 0 <= fault.place < self.spec.num_places:
                raise ValueError(
                    f"{type(fault).__name__} at {fault.time_s:g} s: place must be 0 to {self.spec.num_places - 1}, "
                    f"got {fault.place}"
                )

    def observe(self) -> FleetState:
        """What the fleet shows now."""
        world = self.world
        return FleetState(
            now_s=float(world.cluster["now_ps"][0]) / PS_PER_S,
            engines=self.shown(),
            gpu_seconds=self.gpu_seconds(),
            operations=self.plane.underway(),
            num_pooled=int(world.cluster["num_pooled"][0]),
            pooled_tokens=int(world.cluster["pooled_tokens"][0]),
            totals=world.stats[:, : len(TOTALS)].copy(),
            waiting=self.arrived_now(),
        )

    def gpu_seconds(self) -> NDArray[np.float64]:
        """GPU-seconds that replicas have been kept, (places,): from the command that starts one until it is gone."""
        kept_ps = self.plane.meter.kept_ps(self.now_ps)
        return np.asarray(kept_ps / PS_PER_S * self.world.engines["width"], np.float64)

    @property
    def migrations_done(self) -> int:
        """Requests that have been moved."""
        return self.plane.migrations_done

    @property
    def migrations_aborted(self) -> int:
        """Moves that were begun and broken off, so that the request went on where it was, or ended there."""
        return self.plane.migrations_aborted

    def usage(self) -> Usage:
        """What each place has used up: idle power while a replica is kept, more in iterations."""
        replicas = [group.replica for group in self.fleet.places]
        powers = [power_of(replica.gpu, replica.tp_size) for replica in replicas]
        return usage(
            gpus=[replica.gpu for replica in replicas],
            gpu_s=self.gpu_seconds(),
            idle_w=np.array([power.idle_w for power in powers]),
            work=work_j(self.world, powers),
        )

    def apply(self, command: FleetCommand) -> Receipt:
        """Begins to carry out a command, or refuses it with a reason."""
        self.stale = True
        reason = obey(self.plane, command)
        if reason:
            self.refused_commands += 1
        return Receipt(not reason, reason)

    def fork(self) -> FleetSimulator:
        """A copy that continues to the same numbers and shares nothing that changes."""
        copy = self._fork_body()
        copy.spec, copy.fleet, copy.endpoints = self.spec, self.fleet, self.endpoints
        copy.levels = self.levels
        copy.plane = self.plane.fork(copy)
        return copy
