"""Llumnix's global scheduler: dispatch by freeness, migration by pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving_gym.baselines.common.router import Router, lowest
from serving_gym.baselines.llumnix.migration import pairs, request_to_move
from serving_gym.baselines.llumnix.virtual_usage import freeness, queue_order, usage_of
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_not_negative
from serving_gym.envs.interface.fleet import FleetSpec, Migrate
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.routing.state import Dispatch, RoutingState


@dataclass(frozen=True)
class LlumnixConfig(Constants):
    """Constants of `LlumnixPolicy`. "Release": the authors' public implementation.

    Attributes:
        migrate: Whether running requests are moved; without it only new ones are placed. Source: section 4.
        period_s: Least time between two rounds of pairing, seconds. Source: release (polling interval 0.05 s, a
            round at each).
        migrate_out_iterations: Freeness below which an instance gives requests away, iterations. Source: release (3
            blocks a request, of 16 tokens).
        migrate_in_iterations: Freeness above which an instance receives them, iterations. Source: release, which has
            one threshold for both.
        priority_classes: Names of the request classes of high priority. Source: ours.
        priority_target_tokens: Load that an instance with high-priority requests is to keep to, KV tokens. Source:
            section 6.4.
    """

    migrate: bool = True
    period_s: float = tunable(0.05, 0.01, 10.0, log=True)
    migrate_out_iterations: float = tunable(48.0, 0.0, 48.0)
    migrate_in_iterations: float = tunable(48.0, 48.0, 2000.0, log=True)
    priority_classes: Sequence[str] = ("priority",)
    priority_target_tokens: float = tunable(1600.0, 200.0, 20000.0, log=True)

    def __post_init__(self) -> None:
        check_not_negative(self, "period_s")
        if not self.migrate_in_iterations >= self.migrate_out_iterations:
            raise ValueError(
                "migrate_in_iterations must be at least migrate_out_iterations "
                f"({self.migrate_out_iterations}), got {self.migrate_in_iterations}"
            )
        check_not_negative(self, "priority_target_tokens")


class LlumnixPolicy(Router, Configured[LlumnixConfig]):
    """Sends a request to the freest instance, and moves running ones from the least free to the freest.

    * Freeness is that of algorithm 1, from the requests that the router has in flight.
    * A router acts when a request waits for its decision: rounds of pairing come with arrivals, so the period is the
      least time between them.
    * A llumlet moves requests one after another until its instance is paired no longer. Here a pair moves one at each
      round, and none while its last one is on the way.
    * The text lets the destination refuse a migration that it has no blocks for: one that does not fit is not begun.
    * The release also takes instances that have preempted a request as sources; the text does not.
    * Scheduling priority, the order of an engine's queue, is the engines' own (`order=priority`).
    """

    name = "llumnix"

    def begin(self) -> None:
        """Looks up the fleet; no request is on the way."""
        fleet = self.spec.fleet
        names = list(zip(fleet.models, fleet.regions, strict=True))
        self._endpoints = np.array([names.index(name) for name in names], np.int64)
        cluster = self.spec.cluster
        self._by_priority = isinstance(cluster, FleetSpec) and cluster.order == "priority"
        self._high_priority = np.array([name in self.config.priority_classes for name in self.spec.classes])
        self._last_round_s = -np.inf
        self._moving: dict[int, int] = {}  # row of the workload: instance that it leaves

    def act(self, observation: Any, state: RoutingState) -> Action:
        """Decides: the freest instance that can take the request, and migrations once a period."""
        if state.request is None:
            return None
        config, fleet = self.config, self.spec.fleet
        usage = usage_of(
            state.in_flight,
            queue_order(state.in_flight, self._by_priority),
            self._high_priority,
            fleet.kv_capacity_tokens,
            fleet.block_size,
            fleet.max_num_seqs,
        )
        terminating = state.engines["status"] == EngineStatus.DRAINING
        free = freeness(usage, fleet.kv_capacity_tokens, config.priority_target_tokens, terminating)
        place = lowest(-free, state.can_take) if state.can_take.any() else None
        if not config.migrate or state.now_s < self._last_round_s + config.period_s:
            return place
        self._last_round_s = state.now_s
        self._forget_those_that_arrived(state)
        serving = state.engines["status"] == EngineStatus.ACTIVE
        sources = (serving | terminating) & (free < config.migrate_out_iterations)
        destinations = serving & (free > config.migrate_in_iterations)
        room = (fleet.kv_capacity_tokens - usage.physical_tokens) // fleet.block_size * fleet.block_size
        commands = []
        for source, destination in pairs(free, sources, destinations, self._endpoints):
            if source in self._moving.values():
                continue
            row = request_to_move(
                state.in_flight, source, int(room[destination]), self._high_priority, self._moving
            )
            if row is not None:
                self._moving[row] = source
                commands.append(Migrate(row, destination))
        return Dispatch(place, commands=tuple(commands)) if commands else place

    def _forget_those_that_arrived(self, state: RoutingState) -> None:
        """Keeps the requests on the way: still where they were, while migrations are under way."""
        if not self._moving:
            return
        underway = any(operation.kind == "migrating" for operation in state.operations)
        where = dict(zip(state.in_flight["index"].tolist(), state.in_flight["place"].tolist(), strict=True))
        self._moving = {
            row: origin for row, origin in self._moving.items() if underway and where.get(row) == origin
        }
