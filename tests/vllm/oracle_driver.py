"""Scenarios through the plain-Python oracle."""

from __future__ import annotations

import json
import zlib

from tests.simulator import oracle
from tests.simulator.twins import build_oracle
from tests.vllm.replay import Step, case_of, replay
from tests.vllm.scenarios import Scenario


class OracleEngine:
    """The oracle's engine, told what to do step by step."""

    def __init__(self, scenario: Scenario) -> None:
        cluster = build_oracle(case_of(scenario))
        self.engine, self.requests = cluster.engines[0], cluster.arrivals

    @property
    def empty(self) -> bool:
        return self.engine.empty

    def add(self, number: int) -> None:
        self.engine.add(self.requests[number])

    def abort(self, number: int) -> None:
        if self.requests[number].fate == "in flight":
            self.engine.abort(self.requests[number], 0)

    def begin(self, step: int) -> Step:
        before = [request.preemptions for request in self.requests]
        evictions = self.engine.pool.evictions
        self.engine.begin(step)
        return {
            "scheduled": [
                [request.index, request.computed - tokens, tokens]
                for request, tokens in self.engine.scheduled.items()
            ],
            "preempted": [
                [request.index, request.preemptions - old]
                for request, old in zip(self.requests, before, strict=True)
                if request.preemptions > old
            ],
            "evictions": self.engine.pool.evictions - evictions,
            "begun": self._state(),
        }

    def end(self, step: int) -> Step:
        done: list[oracle.Request] = self.engine.end(step)
        return {"finished": sorted(request.index for request in done), "ended": self._state()}

    def _state(self) -> Step:
        # vLLM's numbers begin with the null block.
        tables = [[block.number + 1 for block in request.blocks] for request in self.engine.running]
        return {
            "running": [request.index for request in self.engine.running],
            "waiting": [request.index for request in self.engine.waiting],
            "free_blocks": self.engine.capacity_blocks - self.engine.used_blocks,
            "cached_hashes": len(self.engine.pool.cached),
            "block_tables": zlib.crc32(json.dumps(tables).encode()),
        }


def trace(scenario: Scenario) -> list[Step]:
    """What the oracle does with a scenario."""
    return replay(scenario, OracleEngine(scenario))
