"""The client's own records: the state of every request, and the load sent to each engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import (
    ABANDONED,
    FAILED,
    FINISHED,
    LENGTH,
    NO_REASON,
    OUTCOME_NAMES,
    PATIENCE,
    REASON_NAMES,
    REFUSED,
    STOP,
    UNFINISHED,
    RequestRecords,
)
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.live.http import clean
from serving_gym.envs.workload.schema import Workload

_COLUMN = {name: number for number, name in enumerate(TOTALS)}


@dataclass(slots=True)
class EngineLoad:
    """Load of one engine by the client's own records; always up to date, unlike the engine's gauges.

    Attributes:
        in_flight: Rows of the requests in flight.
        pending_tokens: Prompt tokens of requests without a first token.
        decoding: Requests with a first token.
        context_tokens: Prompt and answer so far of the decoding ones, tokens.
        prefilled_tokens: Prompt tokens of all requests that got a first token.
        generated_tokens: Generated tokens.
        busy_s: Time with requests in flight, without the present busy period, seconds.
        busy_since_s: Start of the present busy period; NaN: nothing is in flight.
    """

    in_flight: set[int] = field(default_factory=set)
    pending_tokens: int = 0
    decoding: int = 0
    context_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    busy_s: float = 0.0
    busy_since_s: float = float("nan")

    def busy_until(self, now_s: float) -> float:
        """Time with requests in flight up to now, seconds."""
        return self.busy_s + (now_s - self.busy_since_s if self.in_flight else 0.0)


class Ledger:
    """Records of one run; times are seconds since it began.

    Args:
        workload: requests, with arrivals in real time.
        slos: SLO of each class.
        num_engines: engines.

    Attributes:
        ttft_slo_s: (N,), TTFT SLO of each row, seconds.
        tpot_slo_s: (N,), TPOT SLO of each row, seconds.
        answer_tokens: (N,), length of each answer: what the workload says, or less where a limit cuts it.
        max_output_tokens: (N,), what clients declare, likewise.
        arrival_s: (N,), when each request arrives, seconds; NaN until then where it waits for an answer.
        send_lag_s: (N,), how much later than due the client had each request ready to be sent, seconds.
        order: rows that have arrived, in order of arrival.
        on_end: called with the record of each request that has ended (`row`); None: nobody is.
    """

    on_end: Callable[[dict[str, Any]], None] | None = None

    def __init__(self, workload: Workload, slos: tuple[SLO, ...], num_engines: int) -> None:
        rows = len(workload)
        self.workload, self.slos = workload, slos
        limits_s = np.array([slo.ttft_limits_s(workload.input_tokens) for slo in slos])  # (C, N)
        self.ttft_slo_s = limits_s[workload.class_id, np.arange(rows)]
        self.tpot_slo_s = np.array([slo.tpot_s for slo in slos])[workload.class_id]
        self.answer_tokens = workload.output_tokens.copy()
        self.max_output_tokens = workload.max_output_tokens.copy()
        self.arrival_s = np.where(workload.num_awaited > 0, np.nan, workload.arrival_s)
        self.order: list[int] = []
        self.engines = [EngineLoad() for _ in range(num_engines)]
        self.engine = np.full(rows, -1, np.int32)
        self.sent_s = np.full(rows, np.nan)
        self.send_lag_s = np.full(rows, np.nan)
        self.first_scheduled_s = np.full(rows, np.nan)
        self.first_token_s = np.full(rows, np.nan)
        self.finish_s = np.full(rows, np.nan)
        self.end_s = np.full(rows, np.nan)  # when it was served, refused or lost
        self.generated = np.zeros(rows, np.int32)
        self.outcome = np.full(rows, UNFINISHED, np.int8)
        self.token_times: dict[int, list[tuple[int, float]]] = {}  # (tokens so far, seconds) by row
        self.reasons: dict[int, str] = {}  # why a row was refused or failed
        self.totals: NDArray[np.float64] = np.zeros((len(slos), len(TOTALS)))

    @property
    def num_in_flight(self) -> int:
        """Number of requests in flight."""
        return sum(len(load.in_flight) for load in self.engines)

    @property
    def arrived(self) -> int:
        """Number of requests that have arrived."""
        return len(self.order)

    @property
    def here(self) -> slice | NDArray[np.int64]:
        """Rows that have arrived, in order of arrival, as an index."""
        return np.array(self.order, np.int64) if self.workload.has_sessions else slice(0, self.arrived)

    def book_arrival(self, row: int, at_s: float | None = None, now_s: float | None = None) -> None:
        """Records the arrival of a request.

        Args:
            row: of the workload.
            at_s: when it was due, of one that has waited for an answer.
            now_s: when the client had it ready to be sent; None: in time.
        """
        if at_s is not None:
            self.arrival_s[row] = at_s
        due_s = float(self.arrival_s[row])
        self.send_lag_s[row] = 0.0 if now_s is None else max(now_s - due_s, 0.0)
        self.order.append(row)
        self._add(row, arrived=1, arrived_tokens=int(self.workload.input_tokens[row]))

    def limit_length(self, row: int, longest: int) -> bool:
        """Ends a request's answer where it has `longest` tokens; False: its prompt leaves no room for one."""
        room = longest - int(self.workload.input_tokens[row])
        self.answer_tokens[row] = max(min(int(self.workload.output_tokens[row]), room), 0)
        self.max_output_tokens[row] = max(min(int(self.workload.max_output_tokens[row]), room), 0)
        return room > 0

    def book_sent(self, row: int, engine: int, now_s: float) -> None:
        """Records that a request is sent to an engine."""
        load = self.engines[engine]
        if not load.in_flight:
            load.busy_since_s = now_s
        load.in_flight.add(row)
        load.pending_tokens += int(self.workload.input_tokens[row])
        self.engine[row], self.sent_s[row] = engine, now_s
        self.token_times[row] = []

    def book_tokens(self, row: int, tokens: int, now_s: float) -> None:
        """Records that a request has `tokens` output tokens."""
        load, known = self.engines[self.engine[row]], int(self.generated[row])
        if known == 0:
            self._book_first_token(row, now_s)
        load.generated_tokens += tokens - known
        load.context_tokens += tokens - known
        self.generated[row] = tokens
        self.token_times[row].append((tokens, now_s))

    def book_end(
        self, row: int, refused: bool, reason: str, server_ttft_s: float | None, now_s: float
    ) -> None:
        """Records the end of a request's stream; without a reason it is complete."""
        self._leave(row, now_s)
        if server_ttft_s is not None and not np.isnan(self.first_token_s[row]):
            scheduled_s = float(self.first_token_s[row]) - server_ttft_s
            self.first_scheduled_s[row] = max(scheduled_s, float(self.sent_s[row]))
        if reason:
            self._book_loss(row, refused, reason, now_s)
        else:
            self.finish_s[row] = self.end_s[row] = self.token_times[row][-1][1]
            self.outcome[row] = FINISHED
            self._book_finish(row)
        self._tell(row)

    def book_return(self, row: int, now_s: float) -> None:
        """Records that a request without a token has lost its engine and waits for another."""
        self._leave(row, now_s)
        self.engine[row], self.sent_s[row] = -1, np.nan

    def book_loss(self, row: int, refused: bool, reason: str, now_s: float) -> None:
        """Records that a request which is not in flight gets no complete answer; why, as in REASON_NAMES or else."""
        self._book_loss(row, refused, reason, now_s)
        self._tell(row)

    def _book_loss(self, row: int, refused: bool, reason: str, now_s: float) -> None:
        self.end_s[row] = now_s
        gave_up = reason == REASON_NAMES[PATIENCE]
        self.outcome[row] = REFUSED if refused else ABANDONED if gave_up else FAILED
        self.reasons[row] = clean(reason)
        self._add(row, refused=refused, failed=not refused)

    def _tell(self, row: int) -> None:
        if self.on_end is not None:
            self.on_end(self.row(row))

    def row(self, row: int) -> dict[str, Any]:
        """The record of a request under the names of `RequestRecords.to_frame`; None: it did not happen."""
        workload = self.workload
        sessions = (
            {} if workload.session_id is None else {"session": workload.session_id, "turn": workload.turn}
        )
        columns: dict[str, Any] = {
            "arrival_s": self.arrival_s,
            "input_tokens": workload.input_tokens,
            "output_tokens": workload.output_tokens,
            "class_id": workload.class_id,
            "priority": workload.priority,
            "first_scheduled_s": self.first_scheduled_s,
            "first_token_s": self.first_token_s,
            "finish_s": self.finish_s,
            "generated_tokens": self.generated,
            "engine": self.engine,
            "send_lag_s": self.send_lag_s,
            **sessions,
        }
        values = {name: column[row].item() for name, column in columns.items()}
        whole = self.generated[row] >= workload.output_tokens[row]
        ended = REASON_NAMES[STOP if whole else LENGTH]
        return {
            "index": row,
            **{name: None if value != value else value for name, value in values.items()},
            "preemptions": 0,
            "cached_tokens": 0,
            "outcome": OUTCOME_NAMES[self.outcome[row]],
            "reason": ended if self.outcome[row] == FINISHED else self.reasons.get(row, ""),
        }

    def latency_cost(self, now_s: float) -> float:
        """Sum over requests of TTFT / SLO + TPOT / SLO, accrued while they are in the system, as in simulation."""
        rows = self.here
        ttft_slo_s, tpot_slo_s = self.ttft_slo_s[rows], self.tpot_slo_s[rows]
        end_s = np.where(self.outcome[rows] == UNFINISHED, now_s, self.end_s[rows])
        first_s = np.where(np.isnan(self.first_token_s[rows]), end_s, self.first_token_s[rows])
        waiting = (first_s - self.arrival_s[rows]) / ttft_slo_s
        gaps = np.maximum(self.answer_tokens[rows] - 1, 1)
        return float((waiting + (end_s - first_s) / (tpot_slo_s * gaps)).sum())

    def records(self) -> RequestRecords:
        """Records of every request that has arrived.

        A server does not tell the preemptions of single requests (0 here), and when it first scheduled one only with
        `--enable-per-request-metrics` (else NaN).
        """
        rows = self.here
        return RequestRecords(
            index=np.array(self.order, np.int64),
            arrival_s=self.arrival_s[rows].copy(),
            input_tokens=self.workload.input_tokens[rows],
            output_tokens=self.workload.output_tokens[rows],
            class_id=self.workload.class_id[rows],
            priority=self.workload.priority[rows],
            first_scheduled_s=self.first_scheduled_s[rows].copy(),
            first_token_s=self.first_token_s[rows].copy(),
            finish_s=self.finish_s[rows].copy(),
            generated_tokens=self.generated[rows].copy(),
            preemptions=np.zeros(self.arrived, np.int32),
            engine=self.engine[rows].copy(),
            outcome=self.outcome[rows].copy(),
            session=None if self.workload.session_id is None else self.workload.session_id[rows],
            turn=None if self.workload.session_id is None else self.workload.turn[rows],
            reason=np.array([self._reason_code(row) for row in self.order], np.int8),
            error=np.array([self._error(row) for row in self.order], object),
            send_lag_s=self.send_lag_s[rows].copy(),
        )

    def _reason_code(self, row: int) -> int:
        """Index into REASON_NAMES of why a request has no complete answer; NO_REASON for others."""
        reason = self.reasons.get(row, "")
        return REASON_NAMES.index(reason) if reason in REASON_NAMES else NO_REASON

    def _error(self, row: int) -> str:
        """What else than a reason of REASON_NAMES a request failed for."""
        reason = self.reasons.get(row, "")
        return "" if reason in REASON_NAMES else reason

    def failures(self) -> dict[str, int]:
        """Number of requests that got no complete answer, by reason, the most frequent first."""
        return dict(Counter(self.reasons[row] for row in self.reasons).most_common())

    def reason(self, row: int) -> str:
        """Why a request has no complete answer; empty if it has one."""
        return (
            "" if self.outcome[row] == FINISHED else self.reasons.get(row, OUTCOME_NAMES[self.outcome[row]])
        )

    def inter_token_s(self, row: int) -> list[float]:
        """Inter-token latencies of one request, seconds; tokens of one chunk arrive together."""
        times = self.token_times.get(row, [])
        gaps: list[float] = []
        for (before, earlier_s), (after, later_s) in pairwise(times):
            gaps += [later_s - earlier_s] + [0.0] * (after - before - 1)
        return gaps

    def _book_first_token(self, row: int, now_s: float) -> None:
        load, prompt = self.engines[self.engine[row]], int(self.workload.input_tokens[row])
        load.pending_tokens -= prompt
        load.prefilled_tokens += prompt
        load.context_tokens += prompt
        load.decoding += 1
        self.first_token_s[row] = now_s
        ttft_s = now_s - float(self.arrival_s[row])
        met = ttft_s <= self.ttft_slo_s[row]
        self._add(row, first_tokens=1, ttft_sum_s=ttft_s, ttft_met=met)

    def _book_finish(self, row: int) -> None:
        tokens = int(self.generated[row])
        ttft_s = float(self.first_token_s[row] - self.arrival_s[row])
        tpot_s = float(self.finish_s[row] - self.first_token_s[row]) / max(tokens - 1, 1)
        met = tpot_s <= self.tpot_slo_s[row]
        good = met and ttft_s <= self.ttft_slo_s[row]
        self._add(row, finished=1, tpot_sum_s=tpot_s, tpot_met=met, good=good, generated_tokens=tokens)

    def _leave(self, row: int, now_s: float) -> None:
        """Removes a request from its engine's load."""
        load, prompt = self.engines[self.engine[row]], int(self.workload.input_tokens[row])
        load.in_flight.discard(row)
        if self.generated[row] == 0:
            load.pending_tokens -= prompt
        else:
            load.context_tokens -= prompt + int(self.generated[row])
            load.decoding -= 1
        if not load.in_flight:
            load.busy_s += now_s - load.busy_since_s
            load.busy_since_s = float("nan")

    def _add(self, row: int, **amounts: float) -> None:
        totals = self.totals[self.workload.class_id[row]]
        for name, amount in amounts.items():
            totals[_COLUMN[name]] += amount
