"""From a simulated cluster whose nodes are shared to what a policy may know of it."""

from __future__ import annotations

from functools import partial

import numpy as np

from serving_gym.envs.interface.sharing import Event
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.sharing.state import SharingState
from serving_gym.envs.simulator.sharing.simulator import SharingSimulator


def state_of(simulator: SharingSimulator) -> SharingState:
    """What a policy may know now."""
    clock, shown = simulator.world.clock[0], simulator.shown()
    event = Event(int(clock["event"]))
    offered = int(clock["event_request"]) if event == Event.PLACEMENT else -1
    return SharingState(
        now_s=simulator.now_s,
        event=event,
        offered=int(np.searchsorted(shown.requests["index"], offered)) if offered >= 0 else -1,
        node=int(clock["event_node"]),
        instance=int(clock["event_instance"]),
        nodes=shown.nodes,
        instances=shown.instances,
        requests=shown.requests,
        finished=simulator.finished(),
        runnable=shown.runnable,
        num_held=int(clock["num_held"]),
        num_ooms=int(clock["num_ooms"]),
        totals=simulator.world.stats[:, : len(TOTALS)].copy(),
        coming_s=partial(simulator.coming_s, int(clock["next_arrival"])),
    )
