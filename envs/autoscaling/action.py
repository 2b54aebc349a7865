"""From the vector of the action space to changes, and which entries are possible now.

Every endpoint has three levers: by how many instances it changes, where they come from or go to, and how freely
non-interactive requests are released to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from envs.autoscaling.config import AutoscalingConfig
from envs.backend import EngineStatus
from envs.scaling import Endpoint, Operation, Release, ScaleChange
from envs.simulator.autoscaling.simulator import AutoscalingSimulator

LEVERS = 3
SPOT, MACHINE = range(2)  # spot instances first, or vacant machines first; donate, or stop


class Levers:
    """The action space of a configuration.

    Attributes:
        nvec: (3 P,) entries of each lever: changes from -max_change to max_change, spot or machine, release levels.

    Args:
        config: What the environment is made of.
        simulator: Its fleet.
    """

    def __init__(self, config: AutoscalingConfig, simulator: AutoscalingSimulator) -> None:
        self.config = config
        self.num_endpoints = simulator.layout.num_endpoints
        own = (2 * config.max_change + 1, 2, len(config.queue.levels))
        self.nvec = np.array(own * self.num_endpoints, np.int64)

    def nothing(self, simulator: AutoscalingSimulator) -> NDArray[np.int64]:
        """(3 P,), the vector that leaves all as it is."""
        rows = np.zeros((self.num_endpoints, LEVERS), np.int64)
        rows[:, 0] = self.config.max_change
        rows[:, 2] = simulator.release_level[: self.num_endpoints]
        return rows.ravel()

    def mask(self, simulator: AutoscalingSimulator) -> NDArray[np.bool_]:
        """(sum of nvec,), which entries are possible, for each endpoint as if the others left all as it is."""
        most = self.config.max_change
        changes = np.arange(-most, most + 1)
        masks = []
        for endpoint in range(self.num_endpoints):
            down, up = self.room(simulator, endpoint)
            masks.append((changes >= -down) & (changes <= up))
            masks.append(np.ones(2, bool))
            masks.append(np.ones(len(self.config.queue.levels), bool))
        return np.concatenate(masks)

    def room(self, simulator: AutoscalingSimulator, endpoint: int) -> tuple[int, int]:
        """Most instances that can go from an endpoint, and come to it."""
        layout, inventory = simulator.layout, simulator.plane.inventory
        places = layout.places(endpoint)
        status = simulator.world.engines["status"][places]
        present = int(np.isin(status, (EngineStatus.ACTIVE, EngineStatus.DOWN)).sum())
        empty = np.bincount(
            layout.kind_of[places[status == EngineStatus.INACTIVE]], minlength=len(layout.kinds)
        )
        region = layout.region_of[endpoint]
        sources = inventory.vacant[region] + inventory.spot[layout.region_of == region].sum(axis=0)
        return max(0, present - self.config.min_instances), int(np.minimum(empty, sources).sum())

    def changes(
        self, simulator: AutoscalingSimulator, action: NDArray[np.int64], refused: list[str]
    ) -> Iterator[ScaleChange | Release]:
        """What a vector says, endpoint by endpoint; each is to be carried out before the next is asked for.

        Args:
            simulator: The fleet.
            action: (3 P,)
            refused: Gets a sentence for each endpoint that would be left with too few instances.

        Raises:
            ValueError: It is not a vector of the action space.
        """
        vector = np.asarray(action)
        if vector.shape != self.nvec.shape or (vector < 0).any() or (vector >= self.nvec).any():
            raise ValueError(f"action must be numbers from 0 to below {self.nvec.tolist()}, got {action}")
        for number, (change, lever, level) in enumerate(vector.reshape(-1, LEVERS).tolist()):
            endpoint = Endpoint(*simulator.fleet.endpoints[number])
            if level != simulator.release_level[number]:
                yield Release(endpoint, level)
            wanted = change - self.config.max_change
            if wanted > 0:
                yield from _coming(simulator, number, wanted, lever)
            elif wanted < 0:
                down, _ = self.room(simulator, number)
                if -wanted > down:
                    refused.append(
                        f"{down} of {-wanted}: {endpoint.model} in {endpoint.region} keeps {self.config.min_instances} "
                        "instances"
                    )
                yield from _going(simulator, number, min(-wanted, down), lever)


def _coming(simulator: AutoscalingSimulator, number: int, count: int, lever: int) -> Iterator[ScaleChange]:
    """Instances from the sources there are, the preferred first; what none can give is asked of vacant machines."""
    layout, inventory = simulator.layout, simulator.plane.inventory
    endpoint = Endpoint(*simulator.fleet.endpoints[number])
    places = layout.places(number)
    kinds = list(dict.fromkeys(layout.kind_of[places].tolist()))
    empty = {
        kind: int(
            (simulator.world.engines["status"][layout.places(number, kind)] == EngineStatus.INACTIVE).sum()
        )
        for kind in kinds
    }
    own = [(Operation.RECLAIM, kind, "", int(inventory.spot[number, kind])) for kind in kinds]
    others = [
        (Operation.REDEPLOY, kind, simulator.fleet.endpoints[donor][0], int(inventory.spot[donor, kind]))
        for kind in kinds
        for donor in np.flatnonzero(layout.region_of == layout.region_of[number]).tolist()
        if donor != number
    ]
    vacant = [
        (Operation.START, kind, "", int(inventory.vacant[layout.region_of[number], kind])) for kind in kinds
    ]
    for operation, kind, donor, there in (
        (*own, *others, *vacant) if lever == SPOT else (*vacant, *own, *others)
    ):
        taken = min(count, there, empty[kind])
        if taken:
            count -= taken
            empty[kind] -= taken
            yield ScaleChange(endpoint, operation, taken, donor=donor, gpu=kind)
    if count:
        yield ScaleChange(endpoint, Operation.START, count, gpu=kinds[0])


def _going(simulator: AutoscalingSimulator, number: int, count: int, lever: int) -> Iterator[ScaleChange]:
    """Instances that go; where they are to be donated, those that are only starting are stopped instead, at last."""
    endpoint = Endpoint(*simulator.fleet.endpoints[number])
    places = simulator.layout.places(number)
    running = int((simulator.world.engines["status"][places] == EngineStatus.ACTIVE).sum())
    donated = min(count, running) if lever == SPOT else 0
    if donated:
        yield ScaleChange(endpoint, Operation.DONATE, donated)
    if count > donated:
        yield ScaleChange(endpoint, Operation.STOP, count - donated)
