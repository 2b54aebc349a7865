"""Magnus as a router: requests of similar predicted lengths to the same instance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, lowest
from serving_gym.baselines.magnus.batcher import batches_with
from serving_gym.baselines.magnus.serving_time import ServingTimeEstimator
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class MagnusConfig(Constants):
    """Constants of `MagnusPolicy`.

    Attributes:
        waste_limit_tokens: Phi, wasted memory access from which on a request does not join a batch, tokens read.
            Source: ours.
        memory_share: Theta, share of an instance's KV capacity that its batch may come to. Source: ours; the text
            has the memory that the engine leaves for KV.
        memory: What a batch comes to: "present", its requests' tokens so far, or "final", their whole predicted
            responses. Source: ours; the text reserves what a static batch has at its end, an engine that batches
            continuously pages memory and lets requests leave one by one.
    """

    waste_limit_tokens: float = tunable(50_000.0, 1e3, 1e7, log=True)
    memory_share: float = tunable(1.0, 0.3, 2.0, log=True)
    memory: str = "present"

    def __post_init__(self) -> None:
        check_positive(self, "waste_limit_tokens", "memory_share")
        check_choice("memory", self.memory, ("present", "final"))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request in the router's queue."""

    request: RoutedRequest
    can_take: NDArray[np.bool_]  # (P,)
    serving_s: float
    offered_s: float


class MagnusPolicy(Router, Configured[MagnusConfig]):
    """Joins the batch in which least memory is accessed in vain; where none has room, the best response ratio is next.

    A request joins the batch of least waste among the instances that have one and room for the request, if that waste
    is below Phi. Otherwise it opens a batch on an idle instance. So far Magnus; what follows is for engines that batch
    continuously, which the text does not know:

    * Where no instance is idle, the request joins the batch of least waste all the same: it need not wait for a
      batch to end.
    * Padding costs no memory there: a batch comes to the sum of its requests' prompts and responses so far (`memory`:
      or as predicted), in place of size x (L(B) + G(B)). On an idle instance any request fits.
    * A request that has no room anywhere is held. Of all that wait the one of the highest response ratio is next:
      another is placed only where those before it leave room, and nowhere while one of them waits for that instance.
    * The serving time is counted until the first decision at which a request is known to have ended. Until enough
      have ended, it is that of the calibrated profile.
    * The waste of a batch is the most of any of its requests.
    """

    name = "magnus"

    def begin(self) -> None:
        """Nothing has been sent, held or learned."""
        self._limit_tokens = self.config.memory_share * self.spec.fleet.kv_capacity_tokens
        self._estimator = ServingTimeEstimator()
        self._sent: dict[int, tuple[float, tuple[float, ...]]] = {}
        self._held: dict[int, _Waiting] = {}

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The batch to join, or None: there is no room for it, or what there is goes to another one first."""
        self._learn(state)
        place = self._place(state.in_flight, request, state.can_take)
        if place is not None and (self._held.keys() - {request.index}):
            place = self._next(state, request)
        if place is None:
            self._held[request.index] = self._waiting(state, request)
            return None
        self._held.pop(request.index, None)
        batch = int((state.in_flight["place"] == place).sum())
        features = (request.input_tokens, max(request.predicted_tokens, 1), batch)
        self._sent[request.index] = (state.now_s, features)
        return place

    def _place(
        self, in_flight: NDArray[np.void], request: RoutedRequest, can_take: NDArray[np.bool_]
    ) -> int | None:
        """Where a request goes by itself; None: nowhere is room."""
        prompt, response = request.input_tokens, max(request.predicted_tokens, 1)
        final = self.config.memory == "final"
        batches = batches_with(in_flight, len(can_take), prompt, response, final)
        own = prompt + response if final else prompt
        idle = can_take & (batches.size == 0)
        joins = can_take & (batches.size > 0) & (batches.tokens + own <= self._limit_tokens)
        if joins.any():
            best = lowest(batches.waste, joins)
            if batches.waste[best] < self.config.waste_limit_tokens or not idle.any():
                return best
        return int(np.argmax(idle)) if idle.any() else None

    def _next(self, state: RoutingState, request: RoutedRequest) -> int | None:
        """Where a request goes once those of a higher response ratio have been served."""
        now_s = state.now_s
        stale_s = now_s - 2.0 * self.spec.decision_interval_s  # not offered any more: it was refused
        self._held = {index: row for index, row in self._held.items() if row.offered_s >= stale_s}
        asked = self._waiting(state, request)
        queue = {**self._held, request.index: asked}.values()
        in_flight, closed = state.in_flight, np.zeros(len(state.engines), np.bool_)
        for row in sorted(queue, key=lambda row: (-_response_ratio(row, now_s), row.request.index)):
            place = self._place(in_flight, row.request, row.can_take & ~closed)
            if row is asked:
                return place
            if place is None:
                closed |= row.can_take
                if closed[state.can_take].all():
                    return None
            else:
                in_flight = _with(in_flight, row.request, place)
        raise AssertionError("the request asked for is in the queue")

    def _waiting(self, state: RoutingState, request: RoutedRequest) -> _Waiting:
        """The request in the queue; its serving time is estimated once."""
        known = self._held.get(request.index)
        serving_s = known.serving_s if known else self._serving_s(state, request)
        return _Waiting(request, state.can_take, serving_s, state.now_s)

    def _serving_s(self, state: RoutingState, request: RoutedRequest) -> float:
        """Estimated serving time in a batch of mean size, seconds."""
        fleet = self.spec.fleet
        prompt, response = request.input_tokens, max(request.predicted_tokens, 1)
        batch = len(state.in_flight) / len(state.engines)
        estimate = self._estimator.estimate((prompt, response, batch))
        if estimate is not None:
            return max(estimate, 1e-3)
        sizes = np.full(len(fleet), round(batch) + 1)
        iteration_s = fleet.decode_iteration_s(sizes, sizes * (prompt + response // 2))
        alone_s = fleet.prefill_s_per_token * prompt + iteration_s * response
        return float(alone_s[state.can_take].mean())

    def _learn(self, state: RoutingState) -> None:
        """Remembers the serving times of requests that are in flight no longer."""
        if len(state.in_flight) == len(self._sent):
            return
        ended = self._sent.keys() - set(state.in_flight["index"].tolist())
        for index in sorted(ended):
            sent_s, features = self._sent.pop(index)
            self._estimator.add(features, state.now_s - sent_s)


def _response_ratio(row: _Waiting, now_s: float) -> float:
    """Waiting time over serving time."""
    return (now_s - row.request.arrival_s) / row.serving_s


def _with(in_flight: NDArray[np.void], request: RoutedRequest, place: int) -> NDArray[np.void]:
    """The requests in flight and one more."""
    added = np.zeros(1, in_flight.dtype)
    added["index"], added["place"], added["first_token_s"] = request.index, place, -1.0
    added["input_tokens"], added["predicted_tokens"] = request.input_tokens, request.predicted_tokens
    return np.concatenate([in_flight, added])
