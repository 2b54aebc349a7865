"""One routing episode: a simulated fleet, its router's desk, and what a policy may see of both."""

from __future__ import annotations

import dataclasses
from typing import Self

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.episode import BaseEpisode
from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.fleet import FleetCommand, Route
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE, TOTALS
from serving_gym.envs.routing.config import EXACT, RoutingConfig
from serving_gym.envs.routing.faults import draw_faults
from serving_gym.envs.routing.state import DEFERRED_PRIORITY, RoutedRequest, RoutingState
from serving_gym.envs.simulator.fleet.nominal import nominal_engines
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.desk import DUE, FAR, Desk, fork_desk, new_desk, urgency_of
from serving_gym.envs.simulator.kernel.router_view import cached_tokens, in_flight_rows, reprioritise
from serving_gym.envs.simulator.kernel.state import NOTIFIED, PS_PER_S
from serving_gym.envs.simulator.scheduling import to_ps
from serving_gym.envs.workload.predictions import predict_lengths
from serving_gym.envs.workload.schema import Workload

DISPATCH_PRIORITIES = (0, 1)  # that a router may give beside those of the workload
_NO_LEVELS = np.zeros(0, np.int32)


class RoutingEpisode(BaseEpisode[RoutingConfig]):
    """Runs episodes of one configuration; the kernel's `decide_many` moves them on.

    Args:
        config: What the environment is made of.

    Raises:
        ValueError: Something in it is unknown or impossible.
    """

    simulator: FleetSimulator

    def __init__(self, config: RoutingConfig) -> None:
        super().__init__(config)
        spec = dataclasses.replace(config.cluster, router="hold")
        self.simulator = FleetSimulator(spec, self.slos, tuple(range(len(self.classes))))
        self.simulator.levels = config.randomise.levels
        self._check_front_end(len(self.simulator.tables.fronts) > 0)
        self.num_places = spec.num_places
        self.engines = nominal_engines(self.simulator)
        self._scales = np.array(
            [getattr(config.scales, item.name) for item in dataclasses.fields(config.scales)]
        )
        self.desk: Desk = self._new_desk(np.zeros(1, np.int32))

    def _new_desk(
        self, predicted: NDArray[np.int32], deadline_ps: int = 0, levels: NDArray[np.int32] = _NO_LEVELS
    ) -> Desk:
        fleet, spec = self.simulator.fleet, self.simulator.spec
        trips = [
            [
                spec.round_trip_s(origin, group.region)
                if group.replica.model == model and group.replica.role != "decode"
                else None
                for group in fleet.places
            ]
            for model, origin in self.simulator.endpoints
        ]
        network_s = np.array(trips, float)  # not a number where there is no way
        return new_desk(
            num_places=self.num_places,
            max_running=int(self.simulator.tables.kinds["max_num_seqs"].max()),
            index_nodes=self._index_nodes(),
            index_ttl_ps=to_ps(self.config.prefix_index_ttl_s),
            num_classes=len(self.classes),
            serves=~np.isnan(network_s),
            network_s=np.nan_to_num(network_s),
            kinds=np.array([fleet.kind(place) for place in range(self.num_places)], np.int32),
            predicted=predicted,
            scales=self._scales,
            retry_interval_ps=to_ps(self.config.retry_s),
            gauge_interval_ps=to_ps(self.config.gauge_interval_s + self.simulator.factors.gauge_age_s),
            deadline_ps=deadline_ps,
            capacity=self.config.queue_capacity,
            deferred_level=len(levels) - 1 if self.config.admission and len(levels) else -1,
            urgency=urgency_of(levels) if len(levels) else None,
        )

    @property
    def term_weights(self) -> dict[str, float]:
        """As of every environment, and where admission is a decision those of requests refused."""
        refused = self.config.objective.refusal_weights(self.classes) if self.config.admission else {}
        return super().term_weights | refused

    @property
    def _deferred_level(self) -> int:
        """Priority level of deferred requests; -1: admission is no decision."""
        return int(self.desk.desk["deferred_level"][0])

    def _index_nodes(self) -> int:
        """Nodes of the router's own index; 0 where it knows what engines have cached."""
        if self.config.prefix_index == EXACT or not hasattr(self.simulator, "world"):
            return 0
        return int(self.simulator.world.node_extents.shape[1])

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode of a seed: its arrivals, lengths, predictions, failures and factors.

        Args:
            seed: Which episode.
            split: Where it is drawn from; None: the configuration's split.
        """
        workload = self._sample(seed, split)
        drawn = draw_faults(self.config.faults, self.num_places, workload.duration_s, seed)
        others = (*DISPATCH_PRIORITIES, *([DEFERRED_PRIORITY] if self.config.admission else ()))
        factors = self.config.randomise.draw(seed, len(self.config.cluster.groups))
        self.simulator.reset(workload, (*self.config.cluster.faults, *drawn), others, factors)
        predictor = self.config.prediction.with_errors(factors.prediction)
        predicted = predict_lengths(predictor, workload, seed)
        self.desk = self._new_desk(predicted, self.deadline_ps, self.simulator.priorities)
        self._state: tuple[int, RoutingState] | None = None  # and the number of the decision it is for

    @property
    def workload(self) -> Workload:
        """Requests of the episode."""
        return self.simulator.workload

    @property
    def next_due_ps(self) -> int:
        """When the control plane is next due."""
        return self.simulator.clockwork.next_due_ps()

    def attend(self, status: int, action: int) -> None:
        """Does what the kernel cannot do itself and stopped for."""
        simulator = self.simulator
        if simulator.grow(status):
            return
        if status == FAR:
            request = simulator.world.requests[self.desk.desk["slot"][0]]
            receipt = simulator.apply(Route(int(request["index"]), action))
            if not receipt.accepted:
                raise RuntimeError(f"the simulator refused what the router may do: {receipt.reason}")
            self.desk.desk["slot"] = -1
            return
        assert status in (DUE, NOTIFIED)
        simulator.stale = simulator.clockwork.catch_up(status == NOTIFIED)

    # -- the state ----------------------------------------------------------------------------------------------------

    @property
    def refused_actions(self) -> int:
        """Actions that were no place that could take the request."""
        return int(self.desk.desk["refused_actions"][0])

    @property
    def state(self) -> RoutingState:
        """State of the router at this decision; built on first access."""
        decisions = int(self.desk.desk["decisions"][0])
        if self._state is None or self._state[0] != decisions:
            self._state = (decisions, self._observe())
        return self._state[1]

    def _observe(self) -> RoutingState:
        simulator, desk = self.simulator, self.desk
        world = simulator.world
        engines = desk.gauges.copy()
        engines["status"] = world.engines["status"]
        slot = int(desk.desk["slot"][0])
        return RoutingState(
            now_s=simulator.now_s,
            gauges_s=float(desk.desk["gauges_ps"][0]) / PS_PER_S,
            engines=engines,
            in_flight=self._in_flight(),
            request=self._request(slot) if slot >= 0 else None,
            can_take=desk.places["can_take"].astype(bool),
            num_held=int(desk.desk["held"][0]),
            held_tokens=int(desk.desk["held_tokens"][0]),
            unsent_tokens=int(world.cluster["pooled_tokens"][0]),
            gpu_seconds=simulator.gpu_seconds(),
            operations=simulator.plane.underway(),
            totals=world.stats[:, : len(TOTALS)].copy(),
            arrived_predicted_tokens=int(desk.predicted[simulator.arrived_rows()].sum()),
            **self._admitted(),
        )

    def _admitted(self) -> dict[str, NDArray[np.int64]]:
        """What the router has let in and holds, class by class; nothing where admission is no decision."""
        if not self.config.admission:
            return {}
        admitted = self.desk.admitted
        return {"held_of_class": admitted["held"].copy(), "sent_of_class": admitted["sent"].copy()}

    def _in_flight(self) -> NDArray[np.void]:
        world = self.simulator.world
        rows = np.empty(int(world.cluster["num_in_flight"][0]), IN_FLIGHT_DTYPE)
        count = in_flight_rows(world, self.simulator.priorities, rows)
        return rows[:count]

    def _request(self, slot: int) -> RoutedRequest:
        world, workload = self.simulator.world, self.workload
        request = world.requests[slot]
        row = int(request["index"])
        ids = np.zeros(0, np.int32)
        if workload.hash_ids is not None and workload.hash_offsets is not None:
            ids = workload.hash_ids[workload.hash_offsets[row] : workload.hash_offsets[row + 1]]
        cached = np.zeros(self.num_places, np.int64)
        if world.cluster["prefix_caching"][0]:
            cached_tokens(world, self.simulator.tables, self.desk, slot, cached)
        arrival_s = float(workload.arrival_s[row])
        if workload.has_sessions:
            arrival_s = float(request["arrival_ps"]) / PS_PER_S
        return RoutedRequest(
            index=row,
            arrival_s=arrival_s,
            input_tokens=int(workload.input_tokens[row]),
            predicted_tokens=int(request["predicted"]),
            max_output_tokens=int(request["max_output"]),
            priority=int(workload.priority[row]),
            class_id=int(workload.class_id[row]),
            deadline_s=float(request["deadline_ps"]) / PS_PER_S,
            region=self.simulator.endpoints[request["endpoint"]][1],
            network_s=np.where(
                self.desk.serves[request["endpoint"]], self.desk.network_s[request["endpoint"]], np.inf
            ),
            hash_ids=ids,
            hash_block_tokens=workload.hash_block_tokens,
            cached_tokens=cached,
            held_before=bool(self.desk.desk["held_before"][0]),
            deferred=int(request["level"]) == self._deferred_level,
        )

    # -- commands -----------------------------------------------------------------------------------------------------

    def command(self, command: FleetCommand) -> Receipt:
        """Tells the fleet something, before the request on the desk is sent."""
        if isinstance(command, Route):
            return Receipt(False, "a request is sent by the action itself, not by a Route beside it")
        self._state = None
        return self.simulator.apply(command)

    def give_priority(self, priority: int) -> None:
        """Gives the request on the desk another priority.

        Raises:
            ValueError: it is neither one of the workload's nor 0 or 1.
        """
        levels = self.simulator.priorities[: self._deferred_level if self.config.admission else None]
        if priority not in levels:
            raise ValueError(f"dispatch.priority must be one of {levels.tolist()}, got {priority}")
        slot = int(self.desk.desk["slot"][0])
        if slot >= 0:
            reprioritise(self.simulator.world, slot, int(np.searchsorted(levels, priority)))

    @property
    def policy_spec(self) -> PolicySpec:
        """What a policy knows before an episode."""
        return self._make_policy_spec(
            self.config.retry_s,
            engines=self.engines,
            queue_capacity=self.config.queue_capacity,
            admission=self.config.admission,
        )

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that replicas have been kept."""
        return float(self.simulator.gpu_seconds().sum())

    def fork(self) -> Self:
        """A copy of the episode that continues to the same numbers."""
        copy = self._copy()
        copy.desk = fork_desk(self.desk)
        return copy
