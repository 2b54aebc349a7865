"""What a router in front of servers knows, kept up to date by what passes through it: the source of `RoutingState`.

Adapters of other routers tell it what they see: which endpoints there are, what requests arrive, where they are sent,
their tokens and ends, and gauges where there are any. What no source tells stays neutral:

* what gauges do not tell is counted from the requests that were sent there (`envs.live.observation`);
* without first tokens a request counts as in prefill until it ends, and its latencies are left out of `totals`;
* without a prediction an answer is as long as the mean of those that have ended, within its limit;
* nobody tells what engines have cached: `cached_tokens` is 0, or what was sent where (`remember_prefixes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.routers.prefix_index import BlockIndex
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, IN_FLIGHT_DTYPE, TOTALS, EngineStatus
from serving_gym.envs.live.gauges import CacheConfig, Gauges
from serving_gym.envs.live.ledger import EngineLoad
from serving_gym.envs.live.observation import Snapshot, fill_row
from serving_gym.envs.live.scraper import Reading
from serving_gym.envs.live.servers import Server
from serving_gym.envs.routing.state import DEFERRED_PRIORITY, RoutedRequest, RoutingState
from serving_gym.runners.serving.openai_requests import DEFAULT_OUTPUT_TOKENS, HASH_BLOCK_TOKENS, Lengths

_COLUMN = {name: number for number, name in enumerate(TOTALS)}
_MEAN_OVER = 100  # answers that the mean output length is taken over
_NO_IDS = np.zeros(0, np.int32)
_UNREAD = Gauges(None, None, None, None, None, None)


@dataclass(slots=True)
class Flight:
    """A request that has arrived and not ended.

    Attributes:
        index: Number of the request.
        arrival_s: On the view's clock, seconds.
        lengths: Its lengths.
        predicted_tokens: Predicted answer, tokens.
        hash_ids: (blocks,) prefix blocks of its prompt.
        model: Model that it names; empty: any.
        place: Where it is; -1: it has not been sent.
        row: In the table of requests in flight; -1: it is not there.
        first_token_s: NaN before it.
        generated: Output tokens so far.
        held_before: Whether it has been offered and held.
        deferred: Whether it has been deferred.
    """

    index: int
    arrival_s: float
    lengths: Lengths
    predicted_tokens: int
    hash_ids: NDArray[np.int32]
    model: str = ""
    place: int = -1
    row: int = -1
    first_token_s: float = float("nan")
    generated: int = 0
    held_before: bool = False
    deferred: bool = False


@dataclass(slots=True)
class _Seat:
    """A place of the fleet.

    Attributes:
        endpoint: Who sits there; None: nobody.
        leaving: Whether it takes no new requests and ends those it has.
        problem: Why it takes nothing now; empty if it does.
        since_s: When it came.
        kept_s: How long earlier endpoints sat there, seconds.
        reading: Last gauges.
        base: First gauges, as offset of counters.
        stale: Whether the gauges are too old.
        server: What the endpoint says that it is; None: what the policy's setting says of the place.
        load: What the router has sent there.
    """

    endpoint: Hashable | None = None
    leaving: bool = False
    problem: str = ""
    since_s: float = 0.0
    kept_s: float = 0.0
    reading: Reading | None = None
    base: Gauges = _UNREAD
    stale: bool = True
    server: Server | None = None
    load: EngineLoad = field(default_factory=EngineLoad)


class FleetView:
    """Book-keeping of one router.

    Args:
        spec: Setting of the policy; each endpoint takes a place of its fleet.
        remember_prefixes: Whether `cached_tokens` is what was sent where; else 0.
        hash_block_tokens: Tokens that a prefix block covers.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        spec: PolicySpec,
        remember_prefixes: bool = False,
        hash_block_tokens: int = HASH_BLOCK_TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec, self.hash_block_tokens = spec, hash_block_tokens
        self._clock, self._begun_s = clock, clock()
        fleet = spec.fleet
        blocks = fleet.kv_capacity_tokens // fleet.block_size
        self._servers = [
            Server("", model, "", "", int(capacity), CacheConfig(int(number), int(size)))
            for model, capacity, number, size in zip(
                fleet.models, fleet.kv_capacity_tokens, blocks, fleet.block_size, strict=True
            )
        ]
        self._seats = [_Seat() for _ in range(len(fleet))]
        self._places: dict[Hashable, int] = {}  # of the endpoints
        self._flights: dict[Hashable, Flight] = {}
        self._unsent: dict[Hashable, Flight] = {}
        self._rows = np.zeros(64, IN_FLIGHT_DTYPE)
        self._names: list[Hashable] = []  # of the rows that are taken
        self._arrived = self._arrived_predicted = 0
        self._totals = np.zeros((len(spec.slos), len(TOTALS)))
        self._sent_of_class = np.zeros(len(spec.slos), np.int64)
        self._mean_output = np.full(len(spec.slos), float(DEFAULT_OUTPUT_TOKENS))
        self._outputs = np.zeros(len(spec.slos), np.int64)
        self._index = BlockIndex(fleet.kv_capacity_tokens // HASH_BLOCK_TOKENS) if remember_prefixes else None

    @property
    def now_s(self) -> float:
        """Seconds since the view began."""
        return self._clock() - self._begun_s

    # -- endpoints -----------------------------------------------------------------------------------------------------

    def seat(self, present: Collection[Hashable]) -> None:
        """Gives every endpoint a place, in order, and the places of those that are gone to others.

        An endpoint that is gone keeps its place while it has requests and nobody else needs it.

        Raises:
            ValueError: there are more endpoints than places.
        """
        if len(present) > len(self._seats):
            raise ValueError(
                f"there are {len(present)} endpoints, but the policy's fleet has {len(self._seats)} places; "
                "name a larger cluster"
            )
        for place, seat in enumerate(self._seats):
            if seat.endpoint is not None:
                seat.leaving = seat.endpoint not in present
                if seat.leaving and not seat.load.in_flight:
                    self._vacate(place)
        for endpoint in present:
            if endpoint not in self._places:
                place = self._free_place()
                self._seats[place].endpoint, self._seats[place].since_s = endpoint, self.now_s
                self._places[endpoint] = place

    def _free_place(self) -> int:
        for place, seat in enumerate(self._seats):
            if seat.endpoint is None:
                return place
        place = next(place for place, seat in enumerate(self._seats) if seat.leaving)
        self._vacate(place)
        return place

    def _vacate(self, place: int) -> None:
        for name in [name for name in self._names if self._flights[name].place == place]:
            self._leave(self._flights.pop(name))
        old = self._seats[place]
        self._places.pop(old.endpoint, None)
        self._seats[place] = _Seat(kept_s=old.kept_s + self.now_s - old.since_s)

    def place_of(self, endpoint: Hashable) -> int | None:
        """The place of an endpoint; None: it has none."""
        return self._places.get(endpoint)

    def endpoint_at(self, place: int) -> Hashable | None:
        """The endpoint at a place; None: there is none."""
        return self._seats[place].endpoint

    def read(
        self, endpoint: Hashable, reading: Reading | None, stale: bool = False, problem: str = ""
    ) -> None:
        """Takes the gauges of an endpoint.

        Args:
            endpoint: Which one.
            reading: The last one, whose time is on the view's monotonic clock; None: there is none.
            stale: Whether it is too old.
            problem: Why the endpoint takes nothing now; empty if it does.
        """
        place = self.place_of(endpoint)
        if place is None:
            return
        seat = self._seats[place]
        if reading is not None and seat.reading is None:
            seat.base = reading.gauges
        seat.reading, seat.stale, seat.problem = reading, stale or reading is None, problem

    def describe(self, endpoint: Hashable, server: Server) -> None:
        """Takes what an endpoint says that it is: its longest request and its KV cache."""
        place = self.place_of(endpoint)
        if place is not None:
            self._seats[place].server = server

    def ready(self) -> list[int]:
        """Places whose endpoint takes requests."""
        return [
            place
            for place, seat in enumerate(self._seats)
            if seat.endpoint is not None and not seat.leaving and not seat.problem
        ]

    def requests_at(self, place: int) -> int:
        """Requests in flight at a place by the router's own count."""
        return len(self._seats[place].load.in_flight)

    def pending_tokens_at(self, place: int) -> int:
        """Prompt tokens at a place whose requests have no first token."""
        return self._seats[place].load.pending_tokens

    def context_tokens_at(self, place: int) -> int:
        """Tokens of prompts and answers at a place."""
        load = self._seats[place].load
        return load.pending_tokens + load.context_tokens

    # -- requests ------------------------------------------------------------------------------------------------------

    def __contains__(self, name: Hashable) -> bool:
        return name in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    def flight(self, name: Hashable) -> Flight:
        """A request that has not ended."""
        return self._flights[name]

    def arrive(
        self, name: Hashable, lengths: Lengths, hash_ids: NDArray[np.int32] = _NO_IDS, model: str = ""
    ) -> Flight:
        """A request has come; one that is known already is left as it is."""
        if name in self._flights:
            return self._flights[name]
        predicted = lengths.predicted_tokens or round(float(self._mean_output[lengths.class_id]))
        flight = Flight(
            index=self._arrived,
            arrival_s=self.now_s,
            lengths=lengths,
            predicted_tokens=max(min(predicted, lengths.max_output_tokens), 1),
            hash_ids=hash_ids,
            model=model,
        )
        self._flights[name] = self._unsent[name] = flight
        self._arrived += 1
        self._arrived_predicted += flight.predicted_tokens
        self._add(flight, arrived=1, arrived_tokens=lengths.input_tokens)
        return flight

    def send(self, name: Hashable, place: int) -> None:
        """A request goes to a place, or to another one than before."""
        flight = self._flights.get(name)
        if flight is None or flight.place == place:
            return
        if flight.place >= 0:
            self._leave(flight)
            flight.first_token_s, flight.generated = float("nan"), 0
        else:
            del self._unsent[name]
            self._sent_of_class[flight.lengths.class_id] += 1
        load = self._seats[place].load
        if not load.in_flight:
            load.busy_since_s = self.now_s
        load.in_flight.add(flight.index)
        load.pending_tokens += flight.lengths.input_tokens
        flight.place = place
        self._enter(name, flight)
        if self._index is not None:
            self._index.insert(flight.hash_ids.tolist(), place)

    def tokens(self, name: Hashable, generated: int) -> None:
        """A request has `generated` output tokens."""
        flight = self._flights.get(name)
        if flight is None or flight.place < 0 or generated <= flight.generated:
            return
        load, prompt = self._seats[flight.place].load, flight.lengths.input_tokens
        if flight.generated == 0:
            flight.first_token_s = self.now_s
            load.pending_tokens -= prompt
            load.prefilled_tokens += prompt
            load.context_tokens += prompt
            load.decoding += 1
            ttft_s = flight.first_token_s - flight.arrival_s
            self._add(flight, first_tokens=1, ttft_sum_s=ttft_s, ttft_met=ttft_s <= self._ttft_slo_s(flight))
        load.generated_tokens += generated - flight.generated
        load.context_tokens += generated - flight.generated
        flight.generated = generated
        self._rows[flight.row]["generated_tokens"] = generated
        self._rows[flight.row]["first_token_s"] = flight.first_token_s

    def end(self, name: Hashable, generated: int | None = None, failed: bool = False) -> Flight | None:
        """A request has ended; one that is unknown is left alone.

        Args:
            name: Which one.
            generated: Its output tokens; None: those counted so far.
            failed: Whether it has no complete answer.
        """
        flight = self._flights.pop(name, None)
        if flight is None:
            return None
        answered = flight.generated > 0
        if flight.place >= 0:
            self._leave(flight)
        else:
            del self._unsent[name]
        output = generated or flight.generated
        if failed:
            self._add(flight, failed=1)
        elif output:
            self._learn_output(flight.lengths.class_id, output)
            if answered:
                self._finish(flight, output)
        return flight

    def refuse(self, name: Hashable) -> None:
        """A request that has not been sent is refused."""
        flight = self._unsent.pop(name, None)
        if flight is not None:
            del self._flights[name]
            self._add(flight, refused=1)

    def withdraw(self, name: Hashable) -> Flight:
        """A request is taken out for a while, neither finished nor failed; `restore` puts it back, unsent."""
        flight = self._flights.pop(name)
        if flight.place >= 0:
            self._leave(flight)
            self._sent_of_class[flight.lengths.class_id] -= 1
            flight.place, flight.first_token_s, flight.generated = -1, float("nan"), 0
        else:
            del self._unsent[name]
        return flight

    def restore(self, name: Hashable, flight: Flight) -> None:
        """A request that was withdrawn is back."""
        self._flights[name] = self._unsent[name] = flight

    def _finish(self, flight: Flight, output: int) -> None:
        tpot_s = (self.now_s - flight.first_token_s) / max(output - 1, 1)
        met = tpot_s <= self.spec.slos[flight.lengths.class_id].tpot_s
        good = met and flight.first_token_s - flight.arrival_s <= self._ttft_slo_s(flight)
        self._add(flight, finished=1, tpot_sum_s=tpot_s, tpot_met=met, good=good, generated_tokens=output)

    def _learn_output(self, class_id: int, output: int) -> None:
        self._outputs[class_id] += 1
        weight = 1.0 / min(int(self._outputs[class_id]), _MEAN_OVER)
        self._mean_output[class_id] += weight * (output - self._mean_output[class_id])

    def _ttft_slo_s(self, flight: Flight) -> float:
        slo = self.spec.slos[flight.lengths.class_id]
        return float(slo.ttft_limits_s(np.array([flight.lengths.input_tokens], np.int32))[0])

    def _add(self, flight: Flight, **amounts: float) -> None:
        for name, amount in amounts.items():
            self._totals[flight.lengths.class_id, _COLUMN[name]] += amount

    # -- the table of requests in flight -------------------------------------------------------------------------------

    def _enter(self, name: Hashable, flight: Flight) -> None:
        row = len(self._names)
        if row == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._names.append(name)
        flight.row = row
        lengths = flight.lengths
        self._rows[row] = (
            flight.arrival_s,
            -1.0,
            flight.index,
            flight.place,
            lengths.input_tokens,
            flight.predicted_tokens,
            0,
            lengths.max_output_tokens,
            lengths.class_id,
            DEFERRED_PRIORITY if flight.deferred else lengths.priority,
        )

    def _leave(self, flight: Flight) -> None:
        """Takes a request out of the table, whose last row moves there, and out of its endpoint's load."""
        load, prompt = self._seats[flight.place].load, flight.lengths.input_tokens
        load.in_flight.discard(flight.index)
        if flight.generated == 0:
            load.pending_tokens -= prompt
        else:
            load.context_tokens -= prompt + flight.generated
            load.decoding -= 1
        if not load.in_flight:
            load.busy_s += self.now_s - load.busy_since_s
        last = len(self._names) - 1
        name = self._names.pop()
        if flight.row != last:
            self._rows[flight.row] = self._rows[last]
            self._names[flight.row] = name
            self._flights[name].row = flight.row
        flight.row = -1

    # -- the state -----------------------------------------------------------------------------------------------------

    def state(self, name: Hashable, allowed: Sequence[int] | None = None) -> RoutingState:
        """State of the router at the decision about a request.

        Args:
            name: The request, which has arrived.
            allowed: Places that it may go to; None: all that are ready.
        """
        flight, spec, now_s = self._flights[name], self.spec, self.now_s
        network_s = self._network_s(flight.model)
        able = [place for place in self.ready() if allowed is None or place in allowed]
        can_take = np.zeros(len(self._seats), bool)
        can_take[able] = True
        can_take &= np.isfinite(network_s) & (self._most_tokens() > flight.lengths.input_tokens)
        held = [other for other in self._unsent.values() if other is not flight]
        held_tokens = sum(other.lengths.input_tokens for other in held)
        own_tokens = flight.lengths.input_tokens if flight.place < 0 else 0
        classes = [other.lengths.class_id for other in held]
        kept_s = [seat.kept_s + (now_s - seat.since_s) * (seat.endpoint is not None) for seat in self._seats]
        return RoutingState(
            now_s=now_s,
            gauges_s=self._gauges_s(now_s),
            engines=self._engines(now_s),
            in_flight=self._rows[: len(self._names)].copy(),
            request=self._request(flight, network_s),
            can_take=can_take,
            num_held=len(held),
            held_tokens=held_tokens,
            unsent_tokens=held_tokens + own_tokens,
            gpu_seconds=np.asarray(spec.fleet.num_gpus * np.array(kept_s), np.float64),
            operations=(),
            totals=self._totals.copy(),
            arrived_predicted_tokens=self._arrived_predicted,
            held_of_class=np.bincount(classes, minlength=len(spec.slos)).astype(np.int64),
            sent_of_class=self._sent_of_class.copy(),
        )

    def _request(self, flight: Flight, network_s: NDArray[np.float64]) -> RoutedRequest:
        lengths, spec = flight.lengths, self.spec
        return RoutedRequest(
            index=flight.index,
            arrival_s=flight.arrival_s,
            input_tokens=lengths.input_tokens,
            predicted_tokens=flight.predicted_tokens,
            max_output_tokens=lengths.max_output_tokens,
            priority=DEFERRED_PRIORITY if flight.deferred else lengths.priority,
            class_id=lengths.class_id,
            deadline_s=flight.arrival_s + self._ttft_slo_s(flight),
            region=spec.fleet.regions[0],
            network_s=network_s,
            hash_ids=flight.hash_ids,
            hash_block_tokens=self.hash_block_tokens,
            cached_tokens=self.cached_tokens(flight),
            held_before=flight.held_before,
            deferred=flight.deferred,
        )

    def cached_tokens(self, flight: Flight) -> NDArray[np.int64]:
        """(P,) tokens of a prompt that were sent to each place before; 0 where that is not remembered."""
        if self._index is None or not flight.hash_ids.size:
            return np.zeros(len(self._seats), np.int64)
        blocks = self._index.match(flight.hash_ids.tolist())
        return np.minimum(blocks * self.hash_block_tokens, flight.lengths.input_tokens)

    def _network_s(self, model: str) -> NDArray[np.float64]:
        """(P,) 0 to places of the request's model, infinite to others; a name that no place has is for all."""
        models = self.spec.fleet.models
        if model not in models:
            return np.zeros(len(models))
        return np.where(np.array(models) == model, 0.0, np.inf)

    def _most_tokens(self) -> NDArray[np.int64]:
        """(P,) longest request of each place."""
        servers = (seat.server or server for seat, server in zip(self._seats, self._servers, strict=True))
        return np.array([server.most_tokens for server in servers], np.int64)

    def _gauges_s(self, now_s: float) -> float:
        """Time of the oldest reading; now where there is none, as the router's own counts are never old."""
        read_s = [seat.reading.at_s - self._begun_s for seat in self._seats if seat.reading is not None]
        return min(min(read_s, default=now_s), now_s)

    def _engines(self, now_s: float) -> NDArray[np.void]:
        engines = np.zeros(len(self._seats), ENGINE_STATE_DTYPE)
        for place, seat in enumerate(self._seats):
            row, server = engines[place], seat.server or self._servers[place]
            most = int(self.spec.fleet.max_num_seqs[place])
            fill_row(row, server, self._snapshot(seat), seat.load, most, now_s)
            if seat.endpoint is not None and seat.leaving:
                row["status"] = EngineStatus.DRAINING
        engines["width"] = self.spec.fleet.num_gpus
        return engines

    def _snapshot(self, seat: _Seat) -> Snapshot:
        return Snapshot(
            gauges=_UNREAD if seat.reading is None else seat.reading.gauges,
            base=seat.base,
            in_flight_then=0 if seat.reading is None else seat.reading.in_flight,
            fresh=not seat.stale,
            answering=seat.endpoint is not None and not seat.problem,
        )
