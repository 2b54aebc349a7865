"""Sia as a router: goodput learned from history, assignments by integer linear programming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, in_flight_counts, in_flight_sum, lowest
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.baselines.sia.assignment import assign
from serving_gym.baselines.sia.goodput import GoodputModel, Load
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class SiaConfig(Constants):
    """Constants of `SiaPolicy`.

    Attributes:
        fairness_power: p, power of a request's goodput over the least it may get. Source: Sia's text.
        no_place_cost: lambda, cost of leaving a request in the queue. Source: Sia's public artifact.
        round_s: Time for which requests are gathered before they are assigned together, seconds; 0: at each decision
            those that wait at that time. Source: ours; Sia's minute is for jobs of hours.
        max_requests: Most requests that are assigned together, the earliest. Source: ours.
        sample_s: Least time between the polls that make an observation, seconds. Source: ours.
        window: Observations that are remembered of each kind of engine. Source: ours.
        prior_weight: Observations that the calibrated profile counts for. Source: ours.
    """

    fairness_power: float = tunable(-0.5, -4.0, -0.05)
    no_place_cost: float = 1.1
    round_s: float = tunable(0.0, 0.0, 1.0)
    max_requests: int = 16
    sample_s: float = 1.0
    window: int = 256
    prior_weight: float = tunable(1.0, 0.1, 1000.0, log=True)

    def __post_init__(self) -> None:
        if not self.fairness_power < 0:
            raise ValueError(f"fairness_power must be negative, got {self.fairness_power}")
        if not self.no_place_cost > 1:
            raise ValueError(
                f"no_place_cost must be above 1, the most a place costs, got {self.no_place_cost}"
            )
        check_not_negative(self, "round_s", "sample_s")
        check_at_least(self, 1, "max_requests", "window")
        check_positive(self, "prior_weight")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request in the router's queue."""

    request: RoutedRequest
    can_take: NDArray[np.bool_]  # (P,)
    offered_s: float


class SiaPolicy(Router, Configured[SiaConfig]):
    """Assigns the requests that wait to instances so that their normalised goodputs are best together.

    A request's goodput on an instance is the speed at which it would be answered there, over the least that it may
    get; its cost is this to the power of p < 0, at most 1, and lambda > 1 if it stays in the queue (Sia's objective).
    Source of the rest: ours.

    * One request costs each instance's batch something, unlike a job that has its GPUs to itself: the k-th further
      request on an instance has a slot of its own, with k - 1 average ones before it.
    * An instance takes what its batch and its free KV hold by what is in flight now; an idle one takes any request.
      What nobody takes is held.
    * Mostly one request waits, and the program is an arg min. Requests that are held are assigned together: at the
      end of each round, and with the next that arrives.
    """

    name = "sia"

    def begin(self) -> None:
        """No history but the profile, and nobody waits."""
        config = self.config
        self.model = GoodputModel(self.spec.fleet, config.sample_s, config.window, config.prior_weight)
        self._waiting: dict[int, _Waiting] = {}
        self._round_began_s = 0.0
        self._plan_s = -np.inf
        self._plan: dict[int, int | None] = {}

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Where the plan sends it; None: nowhere yet."""
        self.model.observe(state.gauges_s, state.engines)
        self._enqueue(state, request)
        if state.now_s < self._round_began_s + self.config.round_s:
            return None
        if self._plan_s != state.now_s or request.index not in self._plan:
            self._plan_s, self._plan = state.now_s, self._assign(state, request)
        place = self._plan[request.index]
        if place is None or not state.can_take[place]:
            return None
        del self._waiting[request.index], self._plan[request.index]
        return place

    def _enqueue(self, state: RoutingState, request: RoutedRequest) -> None:
        """Notes who waits; one that is offered no more was refused."""
        stale_s = state.now_s - 2.0 * self.spec.decision_interval_s
        self._waiting = {i: row for i, row in self._waiting.items() if row.offered_s >= stale_s}
        if not self._waiting:
            self._round_began_s = state.now_s
        self._waiting[request.index] = _Waiting(request, state.can_take, state.now_s)

    def _assign(self, state: RoutingState, request: RoutedRequest) -> dict[int, int | None]:
        """Places of the requests that wait, by row of the workload; the one asked for is among them."""
        load = _load(state)
        free_tokens = np.maximum(self.spec.fleet.kv_capacity_tokens - load.context_tokens, 0).astype(np.int64)
        free_seqs = self.spec.fleet.max_num_seqs - load.requests
        queue = sorted(self._waiting.values(), key=lambda row: (row.request.arrival_s, row.request.index))
        queue = queue[: self.config.max_requests]
        if all(row.request.index != request.index for row in queue):
            return {request.index: None}
        tokens = np.array([row.request.input_tokens for row in queue], np.int64)
        room = np.where(load.requests == 0, np.maximum(free_tokens, tokens.max()), free_tokens)
        costs = self._costs(queue, load, tokens, room, free_seqs)
        if len(queue) == 1:
            alone = costs[0, :, 0]
            place = lowest(alone, np.isfinite(alone)) if np.isfinite(alone).any() else None
            return {request.index: place}
        places = assign(costs, self.config.no_place_cost, tokens, room)
        return {row.request.index: place for row, place in zip(queue, places, strict=True)}

    def _costs(
        self,
        queue: list[_Waiting],
        load: Load,
        tokens: NDArray[np.int64],
        room: NDArray[np.int64],
        free_seqs: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Costs of requests by instance and slot, (R, P, R); infinite where the request may not go."""
        num_slots = len(queue)
        goodput = np.empty((len(queue), len(room), num_slots))
        average = float(tokens.mean())
        for r, row in enumerate(queue):
            prompt, response = float(row.request.input_tokens), float(max(row.request.predicted_tokens, 1))
            for k in range(num_slots):
                allowed = row.can_take & (tokens[r] <= room) & (k < free_seqs)
                speed = self.model.goodput(load, prompt, response, k, average)
                goodput[r, :, k] = np.where(allowed, speed, np.nan)
        least = np.where(np.isnan(goodput), np.inf, goodput).min(axis=(1, 2))
        costs = (goodput / least[:, None, None]) ** self.config.fairness_power
        return np.where(np.isnan(costs), np.inf, costs)


def _load(state: RoutingState) -> Load:
    """What the instances have to do, by the requests in flight."""
    flying = state.in_flight
    queued = np.where(flying["first_token_s"] < 0.0, flying["input_tokens"], 0)
    return Load(
        in_flight_counts(state),
        in_flight_sum(state, flying["input_tokens"] + flying["generated_tokens"]),
        in_flight_sum(state, queued),
    )
