"""What latency has cost so far: the sum over requests of TTFT / SLO + TPOT / SLO, accrued as in simulation."""

from __future__ import annotations

import numpy as np

from envs.backend import SLO
from envs.metrics import UNFINISHED, RequestRecords
from envs.workload.schema import Workload


class LatencyCost:
    """Follows one run. A request accrues while it is in the system; one that is lost stops when that is first seen.

    Args:
        workload: Requests of the run, with arrivals in real time.
        slos: Promise of each class.
    """

    def __init__(self, workload: Workload, slos: tuple[SLO, ...]) -> None:
        self._ttft_slo_s = np.array([slo.ttft_s for slo in slos])[workload.class_id]
        self._tpot_slo_s = np.array([slo.tpot_s for slo in slos])[workload.class_id]
        self._gaps = np.maximum(workload.output_tokens - 1, 1)
        self._end_s = np.full(len(workload), np.nan)

    def at(self, records: RequestRecords, now_s: float) -> float:
        """The sum at a time no earlier than at the last call.

        Args:
            records: every request that has arrived.
            now_s: seconds since the run began.
        """
        rows = slice(0, len(records.arrival_s))
        ended = (records.outcome != UNFINISHED) & np.isnan(self._end_s[rows])
        seen_s = np.where(np.isnan(records.finish_s), now_s, records.finish_s)
        self._end_s[rows] = np.where(ended, seen_s, self._end_s[rows])
        end_s = np.where(np.isnan(self._end_s[rows]), now_s, self._end_s[rows])
        first_s = np.where(np.isnan(records.first_token_s), end_s, records.first_token_s)
        waiting = (first_s - records.arrival_s) / self._ttft_slo_s[rows]
        decoding = (end_s - first_s) / (self._tpot_slo_s[rows] * self._gaps[rows])
        return float((waiting + decoding).sum())
