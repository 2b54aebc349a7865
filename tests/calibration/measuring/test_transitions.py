"""Transitions of a stand-in server and of a node that says it switches."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from serving_gym.envs.live.launcher import LocalServer
from serving_gym.envs.live.transitions import Slot, SlotState
from serving_gym.runners.measuring.transitions import SWITCHES, measure_switch, measure_transitions, settled
from tests.live.test_launcher import stand_in


@pytest.fixture
def slot(tmp_path):
    """A slot with a stand-in for vLLM, stopped at the end."""
    slot = Slot(
        LocalServer(stand_in(tmp_path), tmp_path / "run"), lambda: 0, canary=lambda url, within_s: None
    )
    yield slot
    slot.close()


def test_a_launched_server_goes_through_them_and_ends_stopped(slot):
    slot.start()
    settled(slot, SlotState.READY)
    found = measure_transitions(slot)
    assert list(found) == ["start_s", "relaunch_s", "stop_s"]
    assert all(0 < seconds < 20 for seconds in found.values())
    assert slot.state is SlotState.STOPPED
    visited = [str(step.state) for step in slot.steps]
    assert visited.count("starting") == 2
    assert found["relaunch_s"] > found["stop_s"] / 2


def test_one_that_cannot_start_says_so(tmp_path):
    slot = Slot(LocalServer(stand_in(tmp_path, "sys.exit('no memory')"), tmp_path / "run"), lambda: 0)
    slot.start()
    with pytest.raises(ValueError, match=r"failed where it should be ready: ValueError: .*no memory"):
        settled(slot, SlotState.READY)
    slot.close()


def test_one_that_rests_elsewhere_is_not_waited_for(slot):
    with pytest.raises(ValueError, match="stopped where it should be ready"):
        settled(slot, SlotState.READY)


@dataclass
class Node:
    """Switches at the second look; the cut-overs take 1, 2, 3, ... ms."""

    refuses: str = ""
    layout: tuple[int, ...] = (1, 1)
    wanted: tuple[int, ...] = (1, 1)
    looks: int = 0
    done: list[dict[str, float]] = field(default_factory=lambda: [{"cut_over_s": 9.0}])

    def set_layout(self, layout: tuple[int, ...], mode: Any) -> str:
        self.wanted, self.looks = layout, 0
        return self.refuses

    def status(self) -> dict[str, Any]:
        self.looks += 1
        open_ = self.wanted != self.layout
        if open_ and self.looks == 2:
            self.layout, open_ = self.wanted, False
            self.done.append({"cut_over_s": 0.001 * len(self.done)})
        return {"open": [1] if open_ else [], "layout": list(self.layout), "done": list(self.done)}


def test_the_median_of_its_switches_counts_and_not_those_before():
    begun_s = time.monotonic()
    assert measure_switch(Node(), 2) == pytest.approx(0.001 * (2 * SWITCHES + 1) / 2, rel=1e-3)  # type: ignore[arg-type]
    assert time.monotonic() - begun_s < 10


def test_a_refusal_is_said():
    with pytest.raises(ValueError, match=r"does not come to layout \(2,\): it is busy"):
        measure_switch(Node(refuses="it is busy"), 2)  # type: ignore[arg-type]
