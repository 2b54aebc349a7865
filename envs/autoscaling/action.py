"""From the vector of the action space to changes, and which entries are possible now.

Every endpoint has three levers: by how many instances it changes, where they come from or go to, and how freely
non-interactive requests are released to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from gymnasium.spaces import MultiDiscrete
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState
from serving_gym.envs.base.validation import check_action
from serving_gym.envs.interface.scaling import Endpoint, Operation, Release, ScaleChange
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.autoscaling.simulator import AutoscalingSimulator

Action = NDArray[np.int64] | Iterable[ScaleChange | Release] | None
LEVERS = 3
SPOT, MACHINE = range(2)  # spot instances first, or vacant machines first; donate, or stop
MACHINE_OPERATIONS = (Operation.START, Operation.STOP)


def mask_from_state(spec: AutoscalingSpec, state: AutoscalingState) -> NDArray[np.bool_]:
    """(sum of entries,), which entries of the action space are possible, from what a policy knows: as `Levers.mask`."""
    changes = np.arange(-spec.max_change, spec.max_change + 1)
    masks = []
    for number, own in enumerate(state.endpoints):
        taken = np.bincount(own.instances["gpu"], minlength=len(spec.gpus))
        most = spec.max_instances if spec.places is None else spec.places[number]
        region = [other.spot for other in state.endpoints if other.endpoint.region == own.endpoint.region]
        sources = state.vacant[own.endpoint.region] + np.sum(region, axis=0)
        up = int(np.minimum(most - taken, sources).sum())
        masks.append((changes >= spec.min_instances - len(own.present)) & (changes <= up) | (changes == 0))
        masks.append(np.ones(2 + spec.num_levels, bool))
    return np.concatenate(masks)


def vector_from_changes(
    spec: AutoscalingSpec, state: AutoscalingState, changes: Iterable[ScaleChange | Release]
) -> NDArray[np.int64]:
    """(3 P,), the possible vector of the action space that is nearest to what an autoscaler says.

    Changes of an endpoint are added up and cut to what is possible; its machines go the way of most of them.

    Args:
        spec: The setting.
        state: At the decision.
        changes: What it says.
    """
    said = tuple(changes)
    widths = (2 * spec.max_change + 1, 2, spec.num_levels)
    possible = mask_from_state(spec, state).reshape(len(state.endpoints), -1)[:, : widths[0]]
    rows = []
    for own, mask in zip(state.endpoints, possible, strict=True):
        mine = [change for change in said if change.endpoint == own.endpoint]
        scaled = [change for change in mine if isinstance(change, ScaleChange)]
        levels = [change.level for change in mine if isinstance(change, Release)]
        wanted = sum(change.signed for change in scaled)
        entries = np.flatnonzero(mask)
        entry = entries[np.argmin(np.abs(entries - spec.max_change - wanted))]
        way = sum(change.count * (1 if change.operation in MACHINE_OPERATIONS else -1) for change in scaled)
        rows.append((entry, MACHINE if way > 0 else SPOT, levels[-1] if levels else own.release_level))
    return np.array(rows, np.int64).ravel()


def changes_from_vector(
    spec: AutoscalingSpec, state: AutoscalingState, vector: NDArray[np.integer]
) -> Iterator[ScaleChange | Release]:
    """Changes of a vector of the action space, from what a policy knows: as `Levers.changes`, which has the simulator.

    Each endpoint's changes are found as if those before it had been carried out.

    Args:
        spec: The setting.
        state: At the decision.
        vector: (3 E,)

    Raises:
        ValueError: It is not a vector of the action space.
    """
    widths = (2 * spec.max_change + 1, 2, spec.num_levels)
    vector = check_action(vector, MultiDiscrete(np.array(widths * len(spec.endpoints))))
    vacant = {region: counts.copy() for region, counts in state.vacant.items()}
    spot = np.array([own.spot for own in state.endpoints])
    for number, (change, lever, level) in enumerate(vector.reshape(-1, LEVERS).tolist()):
        endpoint, shown = spec.endpoints[number], state.endpoints[number]
        if level != shown.release_level:
            yield Release(endpoint, level)
        wanted = change - spec.max_change
        if wanted > 0:
            yield from _coming_by_state(spec, state, number, wanted, lever, spot, vacant[endpoint.region])
        room = max(len(shown.present) - spec.min_instances, 0)
        if (going := min(-wanted, room)) > 0:
            donated = min(going, len(shown.running)) if lever == SPOT else 0
            if donated:
                yield ScaleChange(endpoint, Operation.DONATE, donated)
            if going > donated:
                yield ScaleChange(endpoint, Operation.STOP, going - donated)


def _coming_by_state(
    spec: AutoscalingSpec,
    state: AutoscalingState,
    number: int,
    count: int,
    lever: int,
    spot: NDArray[np.int64],
    vacant: NDArray[np.int64],
) -> Iterator[ScaleChange]:
    """As `_coming`; what is taken is taken from `spot` (E, G) and `vacant` (G,)."""
    endpoint, shown = spec.endpoints[number], state.endpoints[number]
    taken = np.bincount(shown.instances["gpu"], minlength=len(spec.gpus))
    most = np.full(len(spec.gpus), spec.max_instances) if spec.places is None else spec.places[number]
    empty = most - taken
    kinds = np.flatnonzero(most > 0).tolist()
    others = [e for e, at in enumerate(spec.endpoints) if at.region == endpoint.region and e != number]
    own = [(Operation.RECLAIM, kind, "", spot[number]) for kind in kinds]
    given = [(Operation.REDEPLOY, kind, spec.endpoints[e].model, spot[e]) for kind in kinds for e in others]
    fresh = [(Operation.START, kind, "", vacant) for kind in kinds]
    for operation, kind, donor, there in (*own, *given, *fresh) if lever == SPOT else (*fresh, *own, *given):
        some = min(count, int(there[kind]), int(empty[kind]))
        if some > 0:
            count -= some
            there[kind] -= some
            empty[kind] -= some
            yield ScaleChange(endpoint, operation, some, donor=donor, gpu=kind)
    if count:
        yield ScaleChange(endpoint, Operation.START, count, gpu=kinds[0])


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
        down, up = self.room(simulator)
        rows = np.ones((self.num_endpoints, len(changes) + 2 + len(self.config.queue.levels)), bool)
        rows[:, : len(changes)] = (changes >= -down[:, None]) & (changes <= up[:, None])
        return rows.ravel()

    def room(self, simulator: AutoscalingSimulator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(P,) most instances that can go from each endpoint, and (P,) come to it."""
        layout, inventory = simulator.layout, simulator.plane.inventory
        status = simulator.world.engines["status"]
        stays = (status == EngineStatus.ACTIVE) | (status == EngineStatus.DOWN)
        present = np.bincount(layout.endpoint_of[stays], minlength=self.num_endpoints)
        empty = layout.count(status == EngineStatus.INACTIVE)
        sources = inventory.vacant.copy()
        np.add.at(sources, layout.region_of, inventory.spot)
        down = np.maximum(present - self.config.min_instances, 0)
        return down, np.minimum(empty, sources[layout.region_of]).sum(axis=1)

    def changes(
        self, simulator: AutoscalingSimulator, action: NDArray[np.int64], refused: list[str]
    ) -> Iterator[ScaleChange | Release]:
        """Commands of a vector, endpoint by endpoint; each must be executed before the next is read.

        Args:
            simulator: The fleet.
            action: (3 P,)
            refused: Gets a sentence for each endpoint that would be left with too few instances.

        Raises:
            ValueError: It is not a vector of the action space.
        """
        vector = check_action(action, MultiDiscrete(self.nvec))
        down = self.room(simulator)[0].tolist()
        for number, (change, lever, level) in enumerate(vector.reshape(-1, LEVERS).tolist()):
            endpoint = Endpoint(*simulator.fleet.endpoints[number])
            if level != simulator.release_level[number]:
                yield Release(endpoint, level)
            wanted = change - self.config.max_change
            if wanted > 0:
                yield from _coming(simulator, number, wanted, lever)
            elif wanted < 0:
                if -wanted > down[number]:
                    kept = (
                        f"{endpoint.model} in {endpoint.region} keeps {self.config.min_instances} instances"
                    )
                    refused.append(f"{down[number]} of {-wanted}: {kept}")
                yield from _going(simulator, number, min(-wanted, down[number]), lever)


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


def is_changes(action: object) -> bool:
    """Whether an action is a sequence of changes, and not a vector."""
    return isinstance(action, (tuple, list)) and all(
        isinstance(item, (ScaleChange, Release)) for item in action
    )
