"""Where starting replicas get their weights from, and how long that takes when they share a link."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.calibration.models import get_model
from serving_gym.envs.interface.fleet import Crash, FleetFault, FleetSpec, GroupSpec, ReplicaSpec, Start, Stop
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(1.0, 0.1),)
REPLICA = ReplicaSpec("llama-3.1-8b", "H100")
SIZE = round(get_model("llama-3.1-8b").weight_bytes)
LINK, STORAGE, FIXED_S = 20e9, 2e9, 1.0
EMPTY = Workload(np.array([1000.0]), np.array([10]), np.array([1]))


def fleet(count: int, source: str = "peer", faults: tuple[FleetFault, ...] = ()) -> FleetSimulator:
    """Four places, `count` of them taken."""
    spec = FleetSpec(
        (GroupSpec(REPLICA, count, 4),),
        weight_source=source,
        link_bytes_per_s=LINK,
        storage_bytes_per_s=STORAGE,
        start_fixed_s=FIXED_S,
        engine="",
    )
    simulator = FleetSimulator(spec, SLOS)
    simulator.reset(EMPTY, faults)
    return simulator


def ready_s(simulator: FleetSimulator, *starts: tuple[float, int]) -> dict[int, float]:
    """When each place serves, seconds."""
    for time_s, place in starts:
        simulator.advance(time_s)
        assert simulator.apply(Start(place)).accepted
    ready: dict[int, float] = {}
    while operations := [o for o in simulator.observe().operations if o.kind == "starting"]:
        first = min(operations, key=lambda operation: operation.due_s)
        simulator.advance(first.due_s)
        left = {o.place for o in simulator.observe().operations}
        ready |= {o.place: simulator.now_s for o in operations if o.place not in left}
    return ready


def test_from_storage_nobody_waits_for_anybody() -> None:
    ready = ready_s(fleet(1, "storage"), (0.0, 1), (0.0, 2))
    assert ready == pytest.approx({1: SIZE / STORAGE + FIXED_S, 2: SIZE / STORAGE + FIXED_S})


def test_without_a_peer_weights_come_from_storage() -> None:
    assert ready_s(fleet(0), (0.0, 1)) == pytest.approx({1: SIZE / STORAGE + FIXED_S})


def test_one_source_is_shared_and_two_are_not() -> None:
    shared = ready_s(fleet(1), (0.0, 1), (0.0, 2))
    assert shared == pytest.approx({1: 2 * SIZE / LINK + FIXED_S, 2: 2 * SIZE / LINK + FIXED_S})
    apart = ready_s(fleet(2), (0.0, 2), (0.0, 3))
    assert apart == pytest.approx({2: SIZE / LINK + FIXED_S, 3: SIZE / LINK + FIXED_S})


def test_a_transfer_that_comes_later_slows_the_first_one_down() -> None:
    """Alone until t, then half of the link each: (size - t x link) x 2 / link later the first has all."""
    later = 0.3
    ready = ready_s(fleet(1), (0.0, 1), (later, 2))
    first = later + 2 * (SIZE - later * LINK) / LINK
    assert ready[1] == pytest.approx(first + FIXED_S)
    assert ready[2] == pytest.approx(2 * SIZE / LINK + FIXED_S), "the link is never idle until both are done"


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_a_transfer_goes_on_from_elsewhere_when_its_source_is_gone(how: str) -> None:
    gone = 0.3
    shared = LINK / 2 if how == "crash" else LINK  # the crashed one fetches from the other as well
    for count, rate in ((1, STORAGE), (2, shared)):
        simulator = fleet(count, faults=(Crash(gone, 0),) if how == "crash" else ())
        simulator.apply(Start(3))
        simulator.advance(gone)
        if how == "stop":
            simulator.apply(Stop(0))
        ready = ready_s(simulator)
        assert ready[3] == pytest.approx(gone + (SIZE - gone * LINK) / rate + FIXED_S)
