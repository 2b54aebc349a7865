"""Scenarios through the compiled kernel, iteration by iteration."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.simulator.kernel import state
from serving_gym.envs.simulator.kernel.aborts import abort
from serving_gym.envs.simulator.kernel.world import lacks_extents
from tests.simulator.twins import Kernel
from tests.vllm.kernel_entries import add, begin, computed_tokens, end
from tests.vllm.replay import Step, case_of, replay
from tests.vllm.scenarios import Scenario


class KernelEngine:
    """The kernel's one engine, told what to do step by step."""

    def __init__(self, scenario: Scenario) -> None:
        self.kernel = Kernel(case_of(scenario), request_slots=len(scenario.requests) + 1)
        self.slots: dict[int, int] = {}  # of requests in flight, by number
        self.parting: dict[int, int] = {}  # of those who are over and still have their blocks
        self.preemptions = [0] * len(scenario.requests)

    @property
    def empty(self) -> bool:
        engine = self.kernel.world.engines[0]
        return not engine["num_running"] and not engine["num_waiting"]

    def add(self, number: int) -> None:
        kernel = self.kernel
        self.slots[number] = add(kernel.world, kernel.traffic, kernel.tables, np.int64(number))

    def abort(self, number: int) -> None:
        if number in self.slots:
            abort(self.kernel.world, self.kernel.tables, np.int64(self.slots.pop(number)))

    def begin(self, step: int) -> Step:
        self._make_room()
        world = self.kernel.world
        begin(world, self.kernel.tables, np.int64(step))
        return {"scheduled": self._scheduled(), "preempted": self._preempted(), "begun": self._state()}

    def end(self, step: int) -> Step:
        world = self.kernel.world
        if world.engines[0]["step_end_ps"] >= 0:
            end(world, self.kernel.tables, np.int64(step))
            if not self.kernel.case.settings.async_scheduling:
                world.engines[0]["step_end_ps"] = -1
        parting = self._parting()
        done = sorted(
            number
            for number, slot in self.slots.items()
            if slot in parting or world.requests[slot]["phase"] == state.FREE
        )
        self.parting = {number: self.slots.pop(number) for number in done}
        return {"finished": done, "ended": self._state()}

    def _parting(self) -> list[int]:
        """Slots of those who are over and still have their blocks."""
        engine = self.kernel.world.engines[0]
        found, slot = [], int(engine["first_parting"])
        for _ in range(engine["num_parting"]):
            found.append(slot)
            slot = int(self.kernel.world.requests[slot]["next"])
        return found

    def _make_room(self) -> None:
        """As `Simulator` does before a step."""
        while lacks_extents(self.kernel.world, len(self.slots)):
            self.kernel.world = state.with_more_extents(self.kernel.world)

    def _scheduled(self) -> list[list[int]]:
        world, engine = self.kernel.world, self.kernel.world.engines[0]
        if engine["step_end_ps"] < 0:
            return []
        found = []
        for slot in world.running[0, : engine["num_running"]]:
            request = world.requests[slot]
            tokens = int(request["chunk"])
            if request["phase"] == state.DECODE and not engine["walked"]:
                tokens = 1
            if tokens:
                start = int(computed_tokens(world, np.int64(slot))) - tokens
                found.append([int(request["index"]), start, tokens])
        return found

    def _preempted(self) -> list[list[int]]:
        found = []
        for number, slot in sorted((self.slots | self.parting).items()):
            count = int(self.kernel.world.requests[slot]["preemptions"])
            if count > self.preemptions[number]:
                found.append([number, count - self.preemptions[number]])
                self.preemptions[number] = count
        return found

    def _state(self) -> Step:
        engine = self.kernel.world.engines[0]
        shown = self.kernel.engine(0)
        return {
            "running": shown["running"],
            "waiting": shown["waiting"],
            "free_blocks": int(engine["capacity_blocks"]) - int(engine["used_blocks"]),
        }


def trace(scenario: Scenario) -> list[Step]:
    """What the kernel does with a scenario."""
    return replay(scenario, KernelEngine(scenario))
