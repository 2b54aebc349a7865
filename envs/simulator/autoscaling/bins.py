"""What passes through each endpoint, in time bins, and how long requests took, by class and endpoint: compiled.

Requests come as rows of the arrivals and go as entries of the log; those in between stand in the kernel's slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Traffic
from serving_gym.envs.simulator.kernel import state as kernel
from serving_gym.envs.simulator.kernel.router_view import tracked_slots
from serving_gym.envs.simulator.kernel.state import PS_PER_S, World

FloatArray = NDArray[np.float64]
Number = TypeVar("Number", bound=np.generic)

_NAMES = TRAFFIC_DTYPE.names or ()
(
    _REQUESTS,
    _INPUT,
    _OUTPUT,
    _NIW_REQUESTS,
    _NIW_INPUT,
    _NIW_OUTPUT,
    _FIRST,
    _TTFT,
    _FINISHED,
    _TPOT,
    _VIOLATIONS,
    _CONCURRENCY,
    _INSTANCES,
) = range(len(_NAMES))
PAST_COLUMNS = {  # of the past: requests, input and output tokens
    True: [_REQUESTS, _INPUT, _OUTPUT],
    False: [_NIW_REQUESTS, _NIW_INPUT, _NIW_OUTPUT],
}

# Latencies are counted in classes of their logarithm, each wider than the last by 2 %.
LATENCIES = ("ttft", "tpot", "e2e")
_LEAST_S, _WIDTH, NUM_LATENCY_BINS = 1e-4, np.log(1.02), 1048
_FINISH = kernel.FINISHED
_PS_PER_NS = 1000


@njit(cache=True)
def _latency_bin(seconds: float) -> int:
    """Class of a latency; the last one holds what never came."""
    if not seconds < np.inf:
        return NUM_LATENCY_BINS - 1
    return min(max(int(np.log(max(seconds, _LEAST_S) / _LEAST_S) / _WIDTH), 0), NUM_LATENCY_BINS - 2)


def latency_percentile(counts: NDArray[np.int64], percent: float) -> float:
    """Percentile of counted latencies, seconds, to within 1 %; infinite where it falls on what never came.

    Args:
        counts: (NUM_LATENCY_BINS,)
        percent: 0 to 100. Not a number where nothing was counted.
    """
    if not counts.sum():
        return float("nan")
    number = int(np.searchsorted(np.cumsum(counts), percent / 100.0 * counts.sum()))
    return (
        float("inf") if number == NUM_LATENCY_BINS - 1 else float(_LEAST_S * np.exp((number + 0.5) * _WIDTH))
    )


@njit(cache=True)
def _spread(
    rows: FloatArray, column: int, begin_ps: int, bin_ps: int, since_ps: int, until_ps: int, weight: float
) -> None:
    """Adds weight x time within each bin / length of a bin to a column of one endpoint's bins, (T, columns)."""
    at = max(since_ps, begin_ps)
    while at < until_ps:
        number = (at - begin_ps) // bin_ps
        end = min(begin_ps + (number + 1) * bin_ps, until_ps)
        rows[number, column] += weight * (end - at) / bin_ps
        at = end


@njit(cache=True)
def _add(rows: FloatArray, column: int, begin_ps: int, bin_ps: int, at_ps: int, value: float) -> None:
    """Adds to a column of the bin that a time lies in, unless that bin is forgotten."""
    if at_ps >= begin_ps:
        rows[(at_ps - begin_ps) // bin_ps, column] += value


@njit(cache=True)
def book_instances(
    bins: FloatArray,
    instance_ns: NDArray[np.int64],
    begin_ps: int,
    bin_ps: int,
    since_ps: int,
    until_ps: int,
    running: NDArray[np.int64],
) -> None:
    """Books the number of running instances of each endpoint, (P,), over a span; exact, however spans are cut.

    `instance_ns` is (P, T), instance-nanoseconds of each bin.
    """
    for p in range(len(running)):
        at = max(since_ps, begin_ps)
        while at < until_ps:
            number = (at - begin_ps) // bin_ps
            end = min(begin_ps + (number + 1) * bin_ps, until_ps)
            instance_ns[p, number] += running[p] * (end // _PS_PER_NS - at // _PS_PER_NS)
            bins[p, number, _INSTANCES] = instance_ns[p, number] / (bin_ps / _PS_PER_NS)
            at = end


@njit(cache=True)
def book_arrivals(
    bins: FloatArray,
    begin_ps: int,
    bin_ps: int,
    arrival_ps: NDArray[np.int64],
    prompt: NDArray[np.int32],
    class_id: NDArray[np.int32],
    endpoint: NDArray[np.int32],
    interactive: NDArray[np.int8],
) -> None:
    """Books requests that have arrived."""
    for i in range(len(arrival_ps)):
        rows, at_ps = bins[endpoint[i]], arrival_ps[i]
        own = interactive[class_id[i]] == 1
        _add(rows, _REQUESTS if own else _NIW_REQUESTS, begin_ps, bin_ps, at_ps, 1.0)
        _add(rows, _INPUT if own else _NIW_INPUT, begin_ps, bin_ps, at_ps, float(prompt[i]))


@njit(cache=True)
def _book_first_token(
    rows: FloatArray, begin_ps: int, bin_ps: int, arrival_ps: int, first_ps: int, slo_ps: int
) -> None:
    """Books an interactive request's first token."""
    _add(rows, _FIRST, begin_ps, bin_ps, first_ps, 1.0)
    _add(rows, _TTFT, begin_ps, bin_ps, first_ps, (first_ps - arrival_ps) / PS_PER_S)
    if first_ps - arrival_ps > slo_ps:
        _add(rows, _VIOLATIONS, begin_ps, bin_ps, first_ps, 1.0)


@njit(cache=True)
def book_log(
    bins: FloatArray,
    begin_ps: int,
    bin_ps: int,
    since_ps: int,
    log: NDArray[np.void],
    interactive: NDArray[np.int8],
    ttft_slo_ps: NDArray[np.int64],
    tpot_slo_ps: NDArray[np.int64],
) -> None:
    """Books requests that have left since a time."""
    for i in range(len(log)):
        entry = log[i]
        c, rows, end_ps = entry.class_id, bins[entry.endpoint], entry.finish_ps
        if interactive[c] == 0:
            if entry.first_scheduled_ps >= 0:
                from_ps = max(entry.first_scheduled_ps, since_ps)
                _spread(rows, _CONCURRENCY, begin_ps, bin_ps, from_ps, end_ps, 1.0)
            _add(rows, _NIW_OUTPUT, begin_ps, bin_ps, end_ps, float(entry.generated))
            continue
        _spread(rows, _CONCURRENCY, begin_ps, bin_ps, max(entry.arrival_ps, since_ps), end_ps, 1.0)
        _add(rows, _OUTPUT, begin_ps, bin_ps, end_ps, float(entry.generated))
        first_ps = entry.first_token_ps
        if first_ps > since_ps:
            _book_first_token(rows, begin_ps, bin_ps, entry.arrival_ps, first_ps, ttft_slo_ps[c])
        late = first_ps >= 0 and first_ps - entry.arrival_ps > ttft_slo_ps[c]  # and booked as such already
        slow = True
        if entry.outcome == _FINISH:
            tpot_ps = (end_ps - first_ps) / max(entry.generated - 1, 1)
            _add(rows, _FINISHED, begin_ps, bin_ps, end_ps, 1.0)
            _add(rows, _TPOT, begin_ps, bin_ps, end_ps, tpot_ps / PS_PER_S)
            slow = tpot_ps > tpot_slo_ps[c]
        if slow and not late:
            _add(rows, _VIOLATIONS, begin_ps, bin_ps, end_ps, 1.0)


@njit(cache=True)
def book_present(
    recent: FloatArray,
    history: FloatArray,
    begins_ps: tuple[int, int],
    bins_ps: tuple[int, int],
    since_ps: int,
    now_ps: int,
    requests: NDArray[np.void],
    slots: NDArray[np.int32],
    interactive: NDArray[np.int8],
    ttft_slo_ps: NDArray[np.int64],
) -> None:
    """Books what requests have done since a time that are still inside, in short and in long bins.

    Tens of thousands may wait, far apart in memory and inside for all of the span: one visit for both kinds of bins,
    and no division where the span lies in one bin.

    Args:
        recent: (P, T, columns of TRAFFIC_DTYPE), short bins.
        history: The same, long ones.
        begins_ps: When the first short and the first long bin begin.
        bins_ps: Their lengths.
        since_ps: Begin of the span.
        now_ps: Its end.
        requests: (N,) REQUEST_DTYPE.
        slots: (M,) which of them are inside, but for those in a gateway's line, which have done nothing.
        interactive: (C,)
        ttft_slo_ps: (C,)
    """
    (begin_ps, long_begin_ps), (bin_ps, long_bin_ps) = begins_ps, bins_ps
    bin_since = _bin_of_both(begin_ps, bin_ps, since_ps, now_ps)
    long_bin_since = _bin_of_both(long_begin_ps, long_bin_ps, since_ps, now_ps)
    whole, long_whole = (now_ps - since_ps) / bin_ps, (now_ps - since_ps) / long_bin_ps
    for slot in slots:
        request = requests[slot]
        p, own = request.endpoint, interactive[request.class_id] == 1
        arrival_ps, first_ps = request.arrival_ps, request.first_token_ps
        from_ps = arrival_ps if own else request.first_scheduled_ps
        if own and since_ps < first_ps <= now_ps:
            slo_ps = ttft_slo_ps[request.class_id]
            _book_first_token(recent[p], begin_ps, bin_ps, arrival_ps, first_ps, slo_ps)
            _book_first_token(history[p], long_begin_ps, long_bin_ps, arrival_ps, first_ps, slo_ps)
        if from_ps < 0:
            continue
        if bin_since >= 0 and from_ps <= since_ps:
            recent[p, bin_since, _CONCURRENCY] += whole
        else:
            _spread(recent[p], _CONCURRENCY, begin_ps, bin_ps, max(from_ps, since_ps), now_ps, 1.0)
        if long_bin_since >= 0 and from_ps <= since_ps:
            history[p, long_bin_since, _CONCURRENCY] += long_whole
        else:
            _spread(history[p], _CONCURRENCY, long_begin_ps, long_bin_ps, max(from_ps, since_ps), now_ps, 1.0)


@njit(cache=True)
def _bin_of_both(begin_ps: int, bin_ps: int, since_ps: int, until_ps: int) -> int:
    """The bin that a span lies in, or -1: it lies in several, or before the first."""
    number = (since_ps - begin_ps) // bin_ps
    return number if since_ps >= begin_ps and until_ps <= begin_ps + (number + 1) * bin_ps else -1


@njit(cache=True)
def count_latencies(counts: NDArray[np.int64], log: NDArray[np.void]) -> None:
    """Counts latencies of requests that have left, (C, P, 3, NUM_LATENCY_BINS); what did not finish is infinite."""
    for i in range(len(log)):
        entry = log[i]
        cell = counts[entry.class_id, entry.endpoint]
        ttft = tpot = e2e = np.inf
        if entry.outcome == _FINISH:
            ttft = (entry.first_token_ps - entry.arrival_ps) / PS_PER_S
            tpot = (entry.finish_ps - entry.first_token_ps) / PS_PER_S / max(entry.generated - 1, 1)
            e2e = (entry.finish_ps - entry.arrival_ps) / PS_PER_S
        cell[0, _latency_bin(ttft)] += 1
        cell[1, _latency_bin(tpot)] += 1
        cell[2, _latency_bin(e2e)] += 1


@dataclass
class Bins:
    """Bins of one length of all endpoints.

    Attributes:
        bin_ps: Length.
        begin_ps: When the first one begins; before the episode it is negative.
        rows: (P, T, columns of TRAFFIC_DTYPE).
        instance_ns: (P, T), time that running instances were there, summed over them, ns.
        shared: Whether a fork has the same rows: they are copied before they change.
    """

    bin_ps: int
    begin_ps: int
    rows: FloatArray
    instance_ns: NDArray[np.int64]
    shared: bool = False

    @classmethod
    def new(cls, num_endpoints: int, bin_ps: int, begin_ps: int, num_bins: int) -> Bins:
        """Empty ones."""
        shape = (num_endpoints, num_bins)
        return cls(bin_ps, begin_ps, np.zeros((*shape, len(_NAMES))), np.zeros(shape, np.int64))

    def fork(self) -> Bins:
        """A copy; rows are copied when one of the two changes them."""
        self.shared = True
        return replace(self)

    def prepare(self, until_ps: int) -> None:
        """Makes the rows its own, and moves on so that they reach to a time; the oldest half is forgotten."""
        length = self.rows.shape[1]
        beyond = (until_ps - self.begin_ps) // self.bin_ps + 1 - length
        if beyond > 0:
            shift = max(beyond, length // 2)
            self.rows, self.instance_ns = _moved(self.rows, shift), _moved(self.instance_ns, shift)
            self.begin_ps += shift * self.bin_ps
        elif self.shared:
            self.rows, self.instance_ns = self.rows.copy(), self.instance_ns.copy()
        self.shared = False

    def traffic(self, endpoint: int, now_ps: int, most: int | None = None) -> Traffic:
        """An endpoint's bins that have ended, the latest `most` of them."""
        ended = (now_ps - self.begin_ps) // self.bin_ps
        view = self.rows[endpoint, 0 if most is None else max(0, ended - most) : ended]
        view.flags.writeable = False
        rows = view.view(TRAFFIC_DTYPE).reshape(-1)
        return Traffic(self.bin_ps / PS_PER_S, (self.begin_ps + ended * self.bin_ps) / PS_PER_S, rows)


def _moved(rows: NDArray[Number], shift: int) -> NDArray[Number]:
    """Bins later by `shift`, the new ones zero."""
    moved = np.zeros_like(rows)
    moved[:, : rows.shape[1] - shift] = rows[:, shift:] if shift < rows.shape[1] else 0
    return moved


def book(
    recent: Bins,
    history: Bins,
    world: World,
    traffic: kernel.Traffic,
    arrived: tuple[NDArray[np.int64], NDArray[np.int64]],
    log: NDArray[np.void],
    since_ps: int,
    interactive: NDArray[np.int8],
    classes: NDArray[np.void],
) -> None:
    """Books what has happened since a time.

    Args:
        recent: Short bins.
        history: Long ones.
        world: As it stands now.
        traffic: Arrivals.
        arrived: Rows of them that have arrived since, and when, picoseconds.
        log: (M,) LOG_DTYPE, of requests that have left since.
        since_ps: When.
        interactive: (C,)
        classes: (C,) CLASS_DTYPE.
    """
    now_ps = int(world.cluster["now_ps"][0])
    ttft_slo_ps = classes["ttft_slo_ps"]
    for bins in (recent, history):
        bins.prepare(now_ps)
        rows, came_ps = arrived
        where = (bins.rows, bins.begin_ps, bins.bin_ps)
        book_log(*where, since_ps, log, interactive, ttft_slo_ps, classes["tpot_slo_ps"])
        book_arrivals(
            *where,
            came_ps,
            traffic.prompt[rows],
            traffic.class_id[rows],
            traffic.endpoint[rows],
            interactive,
        )
    slots = np.empty(int(world.cluster["num_in_flight"][0]), np.int32)
    book_present(
        recent.rows,
        history.rows,
        (recent.begin_ps, history.begin_ps),
        (recent.bin_ps, history.bin_ps),
        since_ps,
        now_ps,
        world.requests,
        slots[: tracked_slots(world, slots)],
        interactive,
        ttft_slo_ps,
    )
