"""Long traces, piece by piece: memory grows with requests in flight, plus a few numbers per finished request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.state import FINISHED, PS_PER_S

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload

_GROWTH = 2


class Tally:
    """Latencies of requests that have left, in single precision, with class and endpoint.

    Args:
        slos: SLO of each class.
    """

    def __init__(self, slos: Sequence[SLO]) -> None:
        self._slos = slos
        self._rows = np.empty(
            1024, [("ttft", "f4"), ("tpot", "f4"), ("e2e", "f4"), ("class_id", "i2"), ("endpoint", "i2")]
        )
        self._length = 0
        self._arrived = np.zeros(0, np.int64)  # by endpoint

    @property
    def arrived(self) -> int:
        """Requests that have arrived."""
        return int(self._arrived.sum())

    def expect(self, endpoint: NDArray[np.int32]) -> None:
        """Counts arriving requests, (N,) endpoint of each; they are part of every metric, whatever their outcome."""
        counts = np.bincount(endpoint, minlength=len(self._arrived))
        counts[: len(self._arrived)] += self._arrived
        self._arrived = counts

    def add(self, log: NDArray[np.void]) -> None:
        """Adds log entries; refused and failed requests have infinite latencies."""
        need = self._length + len(log)
        if need > len(self._rows):
            self._rows.resize(max(need, _GROWTH * len(self._rows)), refcheck=False)
        rows = self._rows[self._length : need]
        finished = log["outcome"] == FINISHED
        gaps = np.maximum(log["generated"] - 1, 1)
        for name, elapsed in (
            ("ttft", log["first_token_ps"] - log["arrival_ps"]),
            ("tpot", (log["finish_ps"] - log["first_token_ps"]) / gaps),
            ("e2e", log["finish_ps"] - log["arrival_ps"]),
        ):
            rows[name] = np.where(finished, elapsed / PS_PER_S, np.inf)
        rows["class_id"], rows["endpoint"] = log["class_id"], log["endpoint"]
        self._length = need

    def summary(self, endpoint: int | None = None) -> dict[str, float]:
        """Metrics over all requests that arrived; those still in the system count as infinite.

        Args:
            endpoint: Only requests to this endpoint; None: all requests.
        """
        rows = self._rows[: self._length]
        arrived = self.arrived
        if endpoint is not None:
            rows = rows[rows["endpoint"] == endpoint]
            arrived = int(self._arrived[endpoint]) if endpoint < len(self._arrived) else 0
        missing = arrived - len(rows)
        promises = np.array([(slo.ttft_s, slo.tpot_s) for slo in self._slos], np.float32)[rows["class_id"]]
        good = (rows["ttft"] <= promises[:, 0]) & (rows["tpot"] <= promises[:, 1])
        count = len(rows) + missing
        figures = {"requests": float(count), "slo_attainment": float(good.sum()) / max(count, 1)}
        for name in ("ttft", "tpot", "e2e"):
            values = np.concatenate([rows[name], np.full(missing, np.inf, np.float32)])
            for percentile, value in zip((50, 90, 99), _percentiles(values), strict=True):
                figures[f"{name}_p{percentile}_s"] = value
        return figures


def _percentiles(values: NDArray[np.float32]) -> list[float]:
    """50th, 90th and 99th percentile, the nearest observation above."""
    if not len(values):
        return [float("nan")] * 3
    places = [min(int(np.ceil(share * len(values))) - 1, len(values) - 1) for share in (0.5, 0.9, 0.99)]
    ordered = np.partition(values, places)
    return [float(ordered[place]) for place in places]


def run_stream(
    simulator: FleetSimulator,
    pieces: Iterable[Workload],
    priorities: Sequence[int] = (),
    settle_s: float = 3600.0,
) -> Tally:
    """Serves a trace given in pieces.

    Args:
        simulator: A fleet.
        pieces: Workloads with times since the episode began, each later than the one before.
        priorities: All priorities that occur; where left out, those of the first piece.
        settle_s: Longest time after the last arrival for requests to end, s.

    Returns:
        Latencies of all requests.
    """
    tally = Tally(simulator.slos)
    for number, piece in enumerate(pieces):
        if number == 0:
            simulator.reset(piece, priorities=priorities)
        else:
            simulator.append(piece, simulator.endpoints_of(piece))
        tally.expect(simulator.traffic.endpoint)
        simulator.advance_ps(int(simulator.traffic.arrival_ps[-1]))
        tally.add(simulator.drain_log())
    simulator.run_to_completion(limit_s=simulator.now_s + settle_s)
    tally.add(simulator.drain_log())
    return tally
