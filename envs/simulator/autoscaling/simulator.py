"""A simulated fleet whose instances are scaled: machines, a gateway, and requests that come by the hour."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.fleet import FleetCommand, FleetFault, FleetSpec
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.randomise import NOMINAL, EpisodeFactors
from serving_gym.envs.interface.scaling import Held, MachineSpec, QueueSpec, Release, ScaleChange
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.autoscaling.bins import (
    PAST_COLUMNS,
    Bins,
    book,
    book_instances,
    count_latencies,
)
from serving_gym.envs.simulator.autoscaling.changes import carry_out, endpoint_number
from serving_gym.envs.simulator.autoscaling.machines import Machines
from serving_gym.envs.simulator.autoscaling.plane import AutoscalingPlane
from serving_gym.envs.simulator.autoscaling.records import Left, left_of, records_of
from serving_gym.envs.simulator.autoscaling.sizing import new_latencies, preferences
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.gateway import (
    Gate,
    advance_with_gate,
    count_completions,
    dispatch_with_gate,
    fork_gate,
    new_gate,
    pooled_by_endpoint,
)
from serving_gym.envs.simulator.kernel.state import NEVER, NOTIFIED
from serving_gym.envs.simulator.kernel.world import is_idle
from serving_gym.envs.simulator.scheduling import to_ps
from serving_gym.envs.workload.predictions import PredictionSpec, predict_lengths
from serving_gym.envs.workload.streams import RequestStream

_PS_PER_NS = 1000
_HELD = {  # what a place's machine is held for, by its engine's status
    EngineStatus.DOWN: Held.STARTING,
    EngineStatus.ACTIVE: Held.RUNNING,
    EngineStatus.DRAINING: Held.DRAINING,
}


@dataclass
class Books:
    """What is written down as time passes.

    Attributes:
        recent: Traffic in short bins.
        history: Traffic in long bins, those before the episode included.
        latencies: (C, P, 3, NUM_LATENCY_BINS) counts of `envs.simulator.autoscaling.bins.LATENCIES`.
        left: Requests that have left, if they are kept.
        keeps: Whether they are.
    """

    recent: Bins
    history: Bins
    latencies: NDArray[np.int64]
    keeps: bool
    left: list[Left] = field(default_factory=list)

    def fork(self) -> Books:
        """A copy."""
        return Books(
            self.recent.fork(), self.history.fork(), self.latencies.copy(), self.keeps, list(self.left)
        )


class AutoscalingSimulator(FleetSimulator):
    """A fleet whose instances come and go.

    Places are the most instances of each endpoint on each kind of machine.

    Attributes:
        machines: Machines, and what of them instances hold at the start.
        layout: Places by endpoint and kind of machine.

    Args:
        spec: The fleet; its router is not used.
        slos: SLO of each request class.
        machines: Machines, and how long instances take to come.
        queue: The queue manager and the router between regions.
        interactive: (C,) which classes are interactive.

    Raises:
        ValueError: Something in it is unknown or impossible.
    """

    plane: AutoscalingPlane
    gate: Gate | None = None

    def __init__(
        self,
        spec: FleetSpec,
        slos: tuple[SLO, ...],
        machines: MachineSpec,
        queue: QueueSpec,
        interactive: tuple[bool, ...],
    ) -> None:
        super().__init__(spec, slos)
        self.queue = queue
        self.interactive = np.array(interactive, np.int8)
        self.machines = Machines(self.fleet, machines)
        self.layout = self.machines.layout
        self.seed = 0

    def make_plane(self) -> AutoscalingPlane:
        """A control plane for a new episode."""
        return AutoscalingPlane(self, self.machines, self.seed)

    # -- an episode ----------------------------------------------------------------------------------------------------

    def open(
        self,
        stream: RequestStream,
        seed: int,
        recent: tuple[float, int],
        history: tuple[float, int, int],
        prediction: PredictionSpec,
        keeps: bool,
        faults: tuple[FleetFault, ...] = (),
        factors: EpisodeFactors = NOMINAL,
    ) -> None:
        """Begins an episode.

        Args:
            stream: Requests.
            seed: Of what is drawn besides: times until spot instances are back, errors of predictions.
            recent: Length of the short bins, seconds, and how many are kept at least.
            history: Length of the long bins, seconds, how many lie before the episode, and how many after its begin.
            prediction: How output lengths are predicted.
            keeps: Whether to keep a record of each request.
            faults: What will go wrong.
            factors: What was drawn for the episode.
        """
        self.stream, self.seed = stream, seed
        self._prediction = prediction.with_errors(factors.prediction)
        first = stream.piece(0)
        self.gate = None
        self.reset(first, faults, stream.priorities, factors)
        if len(self.endpoints) > len(self.fleet.endpoints):
            model, region = self.endpoints[len(self.fleet.endpoints)]
            raise ValueError(
                f"autoscaling needs places for every model in every region that requests come from; cluster.groups has "
                f"none for {model} in {region}"
            )
        self.piece = 0
        self.gate = self._new_gate()
        self._predict()
        self.release_level = np.zeros(len(self.endpoints), np.int64)
        for endpoint in range(len(self.endpoints)):
            self.set_release(endpoint, self.queue.level)
        bin_s, before, after = history
        self.books = Books(
            Bins.new(len(self.endpoints), to_ps(recent[0]), 0, 2 * recent[1]),
            Bins.new(len(self.endpoints), to_ps(bin_s), -to_ps(bin_s) * before, before + after),
            new_latencies(len(self.slos), len(self.endpoints)),
            keeps,
        )
        self._book_past(bin_s, before)
        self._booked_ps, self._booked_row = 0, 0

    def _new_gate(self) -> Gate:
        models = list(dict.fromkeys(model for model, _ in self.endpoints))
        preference, delay_ps = preferences(self.spec, self.endpoints, len(self.fleet.endpoints))
        queue = self.queue
        return new_gate(
            model=np.array([models.index(model) for model, _ in self.endpoints], np.int32),
            num_places=len(self.fleet.places),
            preference=preference,
            delay_ps=delay_ps,
            interactive=self.interactive,
            signal_period_ps=to_ps(queue.signal_period_s),
            overdue_ps=to_ps(max(queue.deadline_s - queue.deadline_margin_s, 0.0)),
            aged_ps=to_ps(queue.aged_s),
            threshold=queue.region_threshold_ratio,
            holds=queue.hold,
            by_completion=queue.release == "completion",
        )

    def _predict(self) -> None:
        """Predicts the output lengths of the present piece."""
        assert self.gate is not None
        predicted = predict_lengths(self._prediction, self.workload, piece_seed(self.seed, self.piece))
        self.gate = self.gate._replace(predicted=np.ascontiguousarray(predicted, np.int32))

    def _book_past(self, bin_s: float, before: int) -> None:
        """Writes the traffic of the days before the episode into the history."""
        past = self.stream.past(bin_s, before)
        rows = self.books.history.rows
        tables = self.endpoint_table(self.stream.models, self.stream.regions)
        for c, interactive in enumerate(self.interactive):
            columns = PAST_COLUMNS[bool(interactive)]
            for m in range(past.shape[1]):
                for r in range(past.shape[2]):
                    rows[tables[m, r], :before, columns] += past[c, m, r].T

    def set_release(self, endpoint: int, level: int) -> None:
        """Chooses how freely non-interactive requests are released to an endpoint."""
        assert self.gate is not None
        chosen = self.queue.levels[level]
        line = self.gate.lines[endpoint]
        line["one_below"], line["two_below"] = chosen.one_below_ratio, chosen.two_below_ratio
        line["batch"] = chosen.requests
        self.release_level[endpoint] = level

    def flush(self) -> None:
        """Lets all that stand in line go, and all that come."""
        assert self.gate is not None
        self.gate.gate["flush"] = 1

    # -- the clock -----------------------------------------------------------------------------------------------------

    @property
    def arrivals_over(self) -> bool:
        """Whether all requests of the episode have arrived."""
        return self.piece + 1 >= self.stream.num_pieces and self.exhausted

    @property
    def exhausted(self) -> bool:
        """Whether all requests of the present piece have arrived."""
        if self.workload.has_sessions:
            return bool(is_idle(self.world, self.traffic))
        return int(self.world.cluster["next_arrival"][0]) >= len(self.traffic.arrival_ps)

    @property
    def empty(self) -> bool:
        """Whether all requests have arrived and left."""
        return self.arrivals_over and int(self.world.cluster["num_in_flight"][0]) == 0

    def advance_ps(self, until_ps: int) -> bool:
        """Lets time pass; a piece of the stream follows the other."""
        clockwork = self.clockwork
        while True:
            piece_ps = self._next_piece_ps()
            target = min(until_ps, clockwork.next_due_ps(), piece_ps)
            before_ps = self.now_ps
            assert self.gate is not None
            reason = advance_with_gate(self.world, self.traffic, self.tables, self.gate, target)
            self._count_machines(before_ps)
            if self.grow(reason):
                continue
            self.stale = clockwork.catch_up(reason == NOTIFIED)
            if self.now_ps >= piece_ps and reason != NOTIFIED:
                self._begin_piece()
            elif self.now_ps >= until_ps and clockwork.next_due_ps() > until_ps and reason != NOTIFIED:
                break
        self._write_books()
        return False

    def _next_piece_ps(self) -> int:
        """When the next piece of the stream begins, or NEVER."""
        if self.piece + 1 >= self.stream.num_pieces:
            return NEVER
        return to_ps(self.stream.piece_s * (self.piece + 1))

    def _begin_piece(self) -> None:
        self._write_books()
        self.piece += 1
        piece = self.stream.piece(self.piece)
        self.append(piece, self.endpoints_of(piece))
        self._booked_row = 0
        self._predict()

    def dispatch(self) -> None:
        """Offers pooled requests to the gateway again, and lets engines see what has changed for them."""
        if self.gate is not None and self.world.cluster["num_in_flight"][0] > 0:
            dispatch_with_gate(self.world, self.tables, self.gate)

    # -- books ---------------------------------------------------------------------------------------------------------

    def held(self) -> NDArray[np.int64]:
        """(P, G, len(Held)) machines by what they are held for, now."""
        layout = self.layout
        counts = np.zeros((layout.num_endpoints, len(layout.kinds), len(Held)), np.int64)
        status = self.world.engines["status"]
        for engine_status, held in _HELD.items():
            counts[:, :, held] = layout.count(status == engine_status)
        counts[:, :, Held.SPOT] = self.plane.inventory.spot
        return counts

    def _count_machines(self, since_ps: int) -> None:
        """Notes for how long machines have been held since a time; nothing has come or gone since."""
        if self.now_ps == since_ps:
            return
        counts = self.held()
        self.plane.inventory.held_ns += counts * (self.now_ps // _PS_PER_NS - since_ps // _PS_PER_NS)
        running = np.zeros(len(self.endpoints), np.int64)
        running[: len(counts)] = counts[:, :, Held.RUNNING].sum(axis=1)
        for bins in (self.books.recent, self.books.history):
            bins.prepare(self.now_ps)
            where = (bins.rows, bins.instance_ns, bins.begin_ps, bins.bin_ps)
            book_instances(*where, since_ps, self.now_ps, running)

    def _write_books(self) -> None:
        """Notes what requests have done since the last time."""
        assert self.gate is not None
        if self.gate.gate["by_completion"][0]:
            count_completions(self.world, self.gate)
        log = self.drain_log()
        count = int(self.world.cluster["next_arrival"][0])
        book(
            self.books.recent,
            self.books.history,
            self.world,
            self.traffic,
            self.arrivals(self._booked_row, count),
            log,
            self._booked_ps,
            self.interactive,
            self.tables.classes,
        )
        count_latencies(self.books.latencies, log)
        if self.books.keeps and len(log):
            self.books.left.append(left_of(log))
        self._booked_ps, self._booked_row = self.now_ps, count

    def held_by_gateway(self) -> NDArray[np.int64]:
        """(P,) requests by endpoint that wait because no instance can take them."""
        counts = np.zeros(len(self.endpoints), np.int64)
        pooled_by_endpoint(self.world, counts)
        return counts

    def results(self) -> RequestRecords:
        """What happened to every request that has arrived.

        Raises:
            ValueError: It was not to be kept.
        """
        if not self.books.keeps:
            raise ValueError("there are no records of single requests: keep_records is false")
        pieces = [self.stream.piece(number) for number in range(self.piece + 1)]
        return records_of(pieces, self.world, self.books.left)

    # -- commands ------------------------------------------------------------------------------------------------------

    def change(self, change: ScaleChange | Release) -> Receipt:
        """Begins to carry out a change, or refuses it with a reason; nothing of it is begun then."""
        self.stale = True
        reason = self._release(change) if isinstance(change, Release) else self._scale(change)
        if reason:
            self.refused_commands += 1
        return Receipt(not reason, reason)

    def _release(self, release: Release) -> str:
        """Chooses a release level; returns why it cannot be, or nothing."""
        endpoint = endpoint_number(self.plane, release.endpoint)
        if endpoint is None:
            return f"there is no endpoint {release.endpoint.model} in {release.endpoint.region}"
        if release.level >= len(self.queue.levels):
            return f"there is no release level {release.level}; there are {len(self.queue.levels)}"
        self.set_release(endpoint, release.level)
        return ""

    def _scale(self, change: ScaleChange) -> str:
        """Changes the number of instances; returns why all or part of it cannot be, or nothing."""
        assert self.gate is not None
        return carry_out(self.plane, self.gate.pools, change)

    def apply(self, command: FleetCommand) -> Receipt:
        """Refuses what is not a change of the number of instances."""
        self.refused_commands += 1
        return Receipt(False, "an autoscaler says how many instances there are, with ScaleChange")

    def fork(self) -> AutoscalingSimulator:
        """A copy that continues to the same numbers and shares nothing that changes."""
        copy = self._fork_body()
        for name in ("spec", "fleet", "endpoints", "levels", "machines", "queue", "interactive", "layout"):
            setattr(copy, name, getattr(self, name))
        for name in ("seed", "stream", "_prediction", "piece", "_booked_ps", "_booked_row"):
            setattr(copy, name, getattr(self, name))
        assert self.gate is not None
        copy.gate = fork_gate(self.gate)
        copy.release_level = self.release_level.copy()
        copy.books = self.books.fork()
        copy.plane = self.plane.fork_for(copy)
        return copy


def piece_seed(seed: int, piece: int) -> int:
    """Seed of the predictions of one piece of an episode's requests."""
    return int(np.random.SeedSequence([seed, piece]).generate_state(1)[0])
