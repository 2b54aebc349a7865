"""How long a launched server takes to start, to stop, to start anew, and where it can, to sleep and to wake."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.live.switching.client import SwitchingClient
from serving_gym.envs.live.transitions import Slot, SlotState

_LOOK_EVERY_S = 0.02
_AT_REST = (SlotState.READY, SlotState.STOPPED, SlotState.ASLEEP)
SLEEP_LEVELS = (1, 2)
SWITCHES = 10  # each way
_SWITCH_WITHIN_S = 30.0


def settled(slot: Slot, state: SlotState) -> None:
    """Waits until a slot is in a state.

    Raises:
        ValueError: it failed, or came to rest in another state.
    """
    while slot.state != state:
        if slot.state is SlotState.FAILED or (slot.state in _AT_REST and slot.idle):
            note = slot.steps[-1].note if slot.steps else ""
            raise ValueError(f"the launched server is {slot.state} where it should be {state}: {note}")
        time.sleep(_LOOK_EVERY_S)


def measure_transitions(slot: Slot) -> dict[str, float]:
    """Runs an idle server through its transitions, and leaves it stopped; seconds by transition.

    `start_s`, `wake_s` and `relaunch_s` end with the answer to a request; `sleep_levelN_s` and `wake_levelN_s` are
    measured where the server was started with sleep mode.

    Args:
        slot: A slot that is ready and has been started in it.

    Raises:
        ValueError: a transition failed.
    """
    found = {"start_s": sum(slot.took_s(SlotState.STARTING, SlotState.CANARY))}
    if slot.server.settings.sleep_mode:
        for level in SLEEP_LEVELS:
            found[f"sleep_level{level}_s"] = _timed(slot, partial(slot.sleep, level), SlotState.ASLEEP)
            found[f"wake_level{level}_s"] = _timed(slot, slot.wake, SlotState.READY)
    settings = slot.server.settings
    found["relaunch_s"] = _timed(slot, partial(slot.relaunch, settings), SlotState.READY)
    found["stop_s"] = _timed(slot, slot.stop, SlotState.STOPPED)
    return {name: float(f"{seconds:.4g}") for name, seconds in found.items()}


def _timed(slot: Slot, order: Callable[[], str], until: SlotState) -> float:
    begun_s = time.monotonic()
    refused = order()
    if refused:
        raise ValueError(refused)
    settled(slot, until)
    return time.monotonic() - begun_s


def measure_switch(client: SwitchingClient, ranks: int) -> float:
    """Median cut-over of a server between serving apart and as one, nobody being served, s.

    Args:
        client: The server, with the plugin.
        ranks: Its ranks.

    Raises:
        ValueError: it refuses, or does not get there in time.
    """
    apart, merged = (1,) * ranks, (ranks,)
    before = len(client.status()["done"])
    for layout in (merged, apart) * SWITCHES:
        refused = client.set_layout(layout, SwitchMode.SEQUENTIAL)
        deadline_s = time.monotonic() + _SWITCH_WITHIN_S
        while not refused and (status := client.status())["open"]:
            if time.monotonic() > deadline_s:
                refused = f"no switch within {_SWITCH_WITHIN_S:g} s"
            time.sleep(_LOOK_EVERY_S)
        if refused or tuple(status["layout"]) != layout:
            raise ValueError(f"the launched server does not come to layout {layout}: {refused}")
    cut_overs = [switch["cut_over_s"] for switch in client.status()["done"][before:]]
    return float(f"{np.median(cut_overs):.4g}")
