"""A fleet of running vLLM servers behind one router, as a routing policy meets it."""

from __future__ import annotations

import queue
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.episode import last_arrival_s
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE
from serving_gym.envs.live.endpoints import check_endpoints
from serving_gym.envs.live.observation import in_flight_rows
from serving_gym.envs.live.run import LiveRun
from serving_gym.envs.live.session import LiveSession
from serving_gym.envs.live.settings import LiveSettings, lower_limit
from serving_gym.envs.routing.live.desk import LiveDesk, Override
from serving_gym.envs.routing.state import RoutedRequest, RoutingState
from serving_gym.envs.workload.schema import Workload

_STEP_S = 0.2


@dataclass(frozen=True, slots=True)
class Offer:
    """What is to be decided about.

    Attributes:
        state: What the router knows.
        latency_cost: Sum over requests of TTFT / SLO + TPOT / SLO, accrued so far.
    """

    state: RoutingState
    latency_cost: float


class LiveFleet(LiveRun):
    """Servers, one a place of the fleet and in its order. Use it in a `with` block.

    Args:
        spec: The fleet.
        slos: SLO of each request class.
        settings: Servers and how to deal with them.

    Raises:
        ValueError: an address is wrong or does not answer, the number of servers is not that of replicas, or the fleet
            has what attached servers cannot have.
    """

    def __init__(self, spec: FleetConfig, slos: tuple[SLO, ...], settings: LiveSettings) -> None:
        urls = check_endpoints(settings.endpoints, settings.allow_remote)
        self.places = places_of(spec)
        check_fleet(spec, len(urls))
        self.spec, self.slos = spec, slos
        self._offered: queue.SimpleQueue[Offer] = queue.SimpleQueue()
        self._awaited = False  # whether somebody waits for an offer
        self._desk: LiveDesk | None = None
        limits = [group.replica.max_num_seqs for group in self.places]
        session = LiveSession(settings, limits, spec.order, None, self._on_arrival, self._on_arrival)
        session.longest = self._longest
        session.request_timeout_s = spec.request_timeout_s
        session.serves = lambda row: self._serves[int(self.workload.model_id[row])]
        session.decisions = self._count_decisions
        self._model_len = [spec.limited(group.replica).max_model_len for group in self.places]
        super().__init__(session)
        try:
            self._loop.run(self._session.attach(urls))
        except BaseException:
            self.close()
            raise

    def prepare(
        self,
        workload: Workload,
        predicted: NDArray[np.int32],
        retry_s: float,
        capacity: int,
        drain_limit_s: float,
        seed: int,
    ) -> None:
        """Drops what is in flight, waits until the servers are empty, and prepares to serve a workload.

        Args:
            workload: Requests.
            predicted: (N,) predicted output lengths.
            retry_s: Time after which held requests are offered again, s.
            capacity: Requests that may be held.
            drain_limit_s: How long after the last arrival the run may go on, s.
            seed: Of the choices that are taken for a late policy.

        Raises:
            ValueError: a row's model or region is not in the fleet, or a server does not become empty.
        """
        self.workload = (
            workload if self.settings.speed == 1 else workload.with_rate_scale(self.settings.speed)
        )
        self.predicted = predicted
        self.deadline_s = last_arrival_s(self.workload, self.slos) + drain_limit_s
        self._serves = serving(self.places, self.workload)
        if self._desk is not None:
            self._loop.call(self._desk.close)
        if self._launched is not None:
            self._launched.await_all()
        self._loop.run(self._session.prepare(self.workload, self.slos))

        self._desk = LiveDesk(
            self.workload,
            self._session.replay,
            self._session.candidates,
            lambda row: self._serves[int(self.workload.model_id[row])],
            retry_s,
            capacity,
            np.inf if self.settings.decide_within_s is None else self.settings.decide_within_s,
            seed,
            self._on_change,
        )

    def _count_decisions(self) -> tuple[int, int]:
        """Decisions that were taken out of the policy's hands, and all: one for each request at least."""
        taken = len(self.desk.overrides)
        return taken, max(self._session.ledger.arrived, taken)

    def _longest(self, row: int) -> int:
        """Longest request of a row, tokens: what a server of its model takes, within what cluster and backend say."""
        there = self._serves[int(self.workload.model_id[row])]
        most = max(self.servers[place].most_tokens for place in there)
        return min(
            most, lower_limit(self.settings.max_model_len, *(self._model_len[p] for p in there)) or most
        )

    def pretend(self) -> RoutingState:
        """What the router will know when the first request has come; nothing happens."""

        def write_down() -> RoutingState:
            self.desk.row = 0
            try:
                return self._state()
            finally:
                self.desk.row = -1

        return self._loop.call(write_down)

    def begin(self) -> None:
        """Starts the clock and the arrivals."""
        self._loop.call(self._session.begin)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def wait(self) -> Offer:
        """Waits for the next decision, or the end of the run: then the state has no request.

        What there is to decide about is written down in the loop's thread as soon as it comes: a turn between the two
        threads costs a good part of the time that a policy has.

        Raises:
            BaseException: what ended the run before its time.
        """
        offer = self._loop.call(self._ask)
        while offer is None:
            try:
                return self._offered.get(timeout=_STEP_S)
            except queue.Empty:
                if self._session.trouble is not None:
                    raise self._session.trouble from None
                offer = self._loop.call(self._ask)
        return offer

    def decide(self, row: int, place: int | None, priority: int | None = None) -> tuple[int | None, str]:
        """Sends the request that is offered, or holds it; returns where it went and why not as decided."""
        return self._loop.call(lambda: self.desk.decide(row, place, priority))

    def reject(self, row: int) -> tuple[int | None, str]:
        """Refuses the request that is offered; returns what `decide` does."""
        return self._loop.call(lambda: self.desk.reject(row))

    def defer(self, row: int) -> tuple[int | None, str]:
        """Defers the request that is offered; returns what `decide` does."""
        return self._loop.call(lambda: self.desk.defer(row))

    def take_over(self, row: int, reason: str) -> tuple[int | None, str]:
        """Decides about the request that is offered, since the policy cannot; returns what `decide` does."""
        return self._loop.call(lambda: self.desk.take_over(row, reason))

    @property
    def desk(self) -> LiveDesk:
        """The router's desk of the present run."""
        assert self._desk is not None
        return self._desk

    @property
    def overrides(self) -> list[Override]:
        """Decisions that were taken out of the policy's hands."""
        return list(self.desk.overrides)

    @property
    def impossible(self) -> int:
        """Actions that were no place which could take the request."""
        return self.desk.impossible

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def gpu_seconds(self) -> NDArray[np.float64]:
        """(P,), GPU-seconds that each place has been kept for."""
        return np.array([group.replica.num_gpus for group in self.places]) * self.now_s

    # -- called in the loop's thread -----------------------------------------------------------------------------------

    def _on_arrival(self, row: int) -> None:
        self.desk.arrive(row)

    def _ask(self) -> Offer | None:
        """The next offer, if there is one; else it is put into the queue when it comes."""
        while not self._offered.empty():  # it is on the desk still
            self._offered.get_nowait()
        offer = self._next_offer()
        self._awaited = offer is None
        return offer

    def _on_change(self) -> None:
        """There may be something to decide."""
        if self._awaited and (offer := self._next_offer()) is not None:
            self._awaited = False
            self._offered.put(offer)

    def _next_offer(self) -> Offer | None:
        if self.desk.next_offer():
            return self._written_down()
        if self._session.replay.idle or self.now_s >= self.deadline_s:
            offer = self._written_down()
            self.desk.close()
            return offer
        return None

    def _written_down(self) -> Offer:
        return Offer(self._state(), self._session.ledger.latency_cost(self.now_s))

    def _state(self) -> RoutingState:
        session, desk, now_s = self._session, self.desk, self.now_s
        ledger, inputs = session.ledger, self.workload.input_tokens
        engines = np.zeros(len(self.places), ENGINE_STATE_DTYPE)
        engines["width"] = [group.replica.num_gpus for group in self.places]
        session.fill_rows(engines, now_s)
        can_take = np.zeros(len(self.places), bool)
        if desk.row >= 0:
            can_take[desk.able(desk.row)] = True
        held = [row for row in desk.held if row != desk.row]
        return RoutingState(
            now_s=now_s,
            gauges_s=session.gauges_s(),
            engines=engines,
            in_flight=in_flight_rows(ledger, self.predicted),
            request=self._request(desk.row) if desk.row >= 0 else None,
            can_take=can_take,
            num_held=len(held),
            held_tokens=int(inputs[held].sum()),
            unsent_tokens=int(inputs[list(session.replay.pool)].sum()),
            gpu_seconds=self.gpu_seconds,
            operations=(),
            totals=ledger.totals.copy(),
            arrived_predicted_tokens=int(self.predicted[ledger.here].sum(dtype=np.int64)),
            held_of_class=np.bincount(self.workload.class_id[held], minlength=len(desk.sent)),
            sent_of_class=desk.sent.copy(),
        )

    def _request(self, row: int) -> RoutedRequest:
        workload = self.workload
        network_s = np.full(len(self.places), np.inf)
        network_s[self._serves[int(workload.model_id[row])]] = 0.0
        ids = np.zeros(0, np.int32)
        if workload.hash_ids is not None and workload.hash_offsets is not None:
            ids = workload.hash_ids[workload.hash_offsets[row] : workload.hash_offsets[row + 1]]
        arrival_s, class_id = float(self._session.ledger.arrival_s[row]), int(workload.class_id[row])
        return RoutedRequest(
            index=row,
            arrival_s=arrival_s,
            input_tokens=int(workload.input_tokens[row]),
            predicted_tokens=int(self.predicted[row]),
            max_output_tokens=int(self._session.ledger.max_output_tokens[row]),
            priority=int(workload.priority[row]),
            class_id=class_id,
            deadline_s=arrival_s + self.slos[class_id].ttft_s,
            region=self.places[0].region,
            network_s=network_s,
            hash_ids=ids,
            hash_block_tokens=workload.hash_block_tokens,
            cached_tokens=np.zeros(len(self.places), np.int64),  # servers tell nobody what they have cached
            held_before=self.desk.held_before,
            deferred=row in self.desk.deferred,
        )


def places_of(spec: FleetConfig) -> list[GroupSpec]:
    """The group of each place, in the simulator's order: endpoint by endpoint."""
    endpoints = dict.fromkeys((group.replica.model, group.region) for group in spec.groups)
    return [
        group
        for endpoint in endpoints
        for group in spec.groups
        if (group.replica.model, group.region) == endpoint
        for _ in range(group.num_places)
    ]


def check_fleet(spec: FleetConfig, num_servers: int) -> None:
    """Refuses what running servers cannot be.

    Raises:
        ValueError: there are not as many servers as places, some places are empty or have a role, regions are apart,
            faults are to be injected, or the queue order is not vLLM's.
    """
    if num_servers != spec.num_places:
        raise ValueError(
            f"backend.endpoints names {num_servers} servers, but cluster.groups has {spec.num_places} places"
        )
    for group in spec.groups:
        if group.count != group.num_places:
            raise ValueError("cluster.groups: on live servers every place must be taken; drop places")
        if group.replica.role != "mixed":
            raise ValueError(
                "cluster.groups: live servers serve a request from end to end; role must be mixed"
            )
    if len({group.region for group in spec.groups}) > 1:
        raise ValueError("cluster.groups: live servers lie in one region")
    if spec.faults:
        raise ValueError("cluster.crashes and cluster.slow_nodes cannot be injected into live servers")
    if spec.order not in ("fcfs", "priority"):
        raise ValueError(f"cluster.order must be fcfs or priority on servers of vLLM, got {spec.order!r}")


def serving(places: list[GroupSpec], workload: Workload) -> dict[int, list[int]]:
    """Places of each of a workload's models; a workload without names is for the only one there is.

    Raises:
        ValueError: a model has no place.
    """
    known = {group.replica.model for group in places}
    found: dict[int, list[int]] = {}
    for number in np.unique(workload.model_id).tolist():
        model = workload.models[number]
        if model not in known and not (model == "" and len(known) == 1):
            raise ValueError(
                f"workload {workload.name!r} asks for model {model!r}; the fleet serves: {', '.join(sorted(known))}"
            )
        found[number] = [p for p, group in enumerate(places) if model in ("", group.replica.model)]
    return found
