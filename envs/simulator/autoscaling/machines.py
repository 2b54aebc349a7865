"""Machines of a fleet that is scaled: how many there are, what holds them at the start, how long instances take."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.interface.fleet import ReplicaSpec
from serving_gym.envs.interface.scaling import Held, MachineSpec
from serving_gym.envs.simulator.autoscaling.inventory import Inventory, Layout
from serving_gym.envs.simulator.autoscaling.sizing import machines_there
from serving_gym.envs.simulator.fleet.build import Fleet, model_of, profile_of


class Machines:
    """What does not change of the machines of a fleet.

    Attributes:
        layout: Places by endpoint and kind of machine.
        owned: (R, G) machines of each kind in each region.

    Args:
        fleet: The fleet.
        spec: Machines, and how long instances take to come.

    Raises:
        ValueError: A name is unknown, or there are fewer machines than hold instances at the start.
    """

    def __init__(self, fleet: Fleet, spec: MachineSpec) -> None:
        self.fleet, self.spec = fleet, spec
        self.layout = Layout.of(fleet)
        self.owned = machines_there(fleet, self.layout, spec)

    def new_inventory(self) -> Inventory:
        """Machines at the start: what instances and spot instances leave is vacant."""
        layout, vacant = self.layout, self.owned.copy()
        spot = np.zeros((layout.num_endpoints, len(layout.kinds)), np.int64)
        for endpoint in range(layout.num_endpoints):
            places = layout.places(endpoint)
            spot[endpoint, layout.kind_of[places[0]]] = self.spec.spot
        held = spot.copy()
        for place in self.fleet.running:
            held[layout.endpoint_of[place], layout.kind_of[place]] += 1
        np.subtract.at(vacant, layout.region_of, held)
        return Inventory(vacant, spot, np.zeros((*spot.shape, len(Held)), np.int64))

    def start_s(self, replica: ReplicaSpec) -> float:
        """Seconds that a start from the region's storage takes."""
        given_s = self.given_start_s(replica)
        if given_s is not None:
            return given_s
        fleet = self.fleet.spec
        return model_of(replica).weight_bytes / fleet.storage_bytes_per_s + fleet.start_fixed_s

    def given_start_s(self, replica: ReplicaSpec) -> float | None:
        """The same where it is given or measured, whatever the weights; None: it is not."""
        if self.spec.start_s is not None:
            return self.spec.start_s
        return profile_of(replica).transitions.get("start_s")

    def weights_local(self, endpoint: int) -> bool:
        """Whether the region's storage holds the model's weights."""
        model, region = self.fleet.endpoints[endpoint]
        return f"{model}@{region}" not in self.spec.without_weights
