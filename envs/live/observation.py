"""Combines the servers' gauges with the client's own counts into rows of `ENGINE_STATE_DTYPE`.

Gauges are as old as the last scrape; the client knows the requests sent since then. The requests on an engine are
the client's count plus other clients' requests at the last reading, split into running and waiting by the gauges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE, EngineStatus
from serving_gym.envs.live.gauges import CacheConfig, Gauges
from serving_gym.envs.live.ledger import EngineLoad, Ledger
from serving_gym.envs.live.servers import Server


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Gauges and status of one engine.

    Attributes:
        gauges: Last successful reading.
        base: Reading at the start of the run, as offset of counters.
        in_flight_then: Own requests in flight at the last reading.
        fresh: Whether the reading is not stale.
        answering: Whether the last scrape succeeded.
    """

    gauges: Gauges
    base: Gauges
    in_flight_then: int
    fresh: bool
    answering: bool


def split_requests(snapshot: Snapshot, load: EngineLoad, max_num_seqs: int) -> tuple[int, int]:
    """Running and waiting requests of an engine now.

    Args:
        snapshot: the server's gauges.
        load: the client's counts.
        max_num_seqs: most running requests.
    """
    gauges = snapshot.gauges
    if not snapshot.fresh or gauges.num_running is None or gauges.num_waiting is None:
        total = len(load.in_flight)
        running = min(total, max_num_seqs)
        return running, total - running
    total = len(load.in_flight) + max(gauges.num_running + gauges.num_waiting - snapshot.in_flight_then, 0)
    if gauges.num_waiting == 0 and total <= max_num_seqs:
        running = total  # requests sent since then are assumed to fit in the batch
    else:
        running = min(max(gauges.num_running, load.decoding), total)
    return running, total - running


def _used_blocks(gauges: Gauges, load: EngineLoad, cache: CacheConfig) -> int:
    """KV blocks in use; of a server that does not tell, those of the client's own requests."""
    if gauges.kv_usage_ratio is not None:
        return round(gauges.kv_usage_ratio * cache.num_blocks)
    own = -(-(load.pending_tokens + load.context_tokens) // cache.block_size)
    return min(own, cache.num_blocks)


def _since(now: int | None, then: int | None) -> int:
    """How much a counter has risen; 0 where a server does not tell it, or has begun anew."""
    return max(now - then, 0) if now is not None and then is not None else 0


def fill_row(
    row: np.void, server: Server, snapshot: Snapshot, load: EngineLoad, max_num_seqs: int, now_s: float
) -> None:
    """Fills the row of one engine.

    What a server does not tell is counted from the client's own requests (preemptions: 0).
    `pending_prefill_tokens` are the whole prompts of requests without a first token; progress of a chunked prefill is
    not available. `busy_s` is the time with requests in flight.

    Args:
        row: an element of ENGINE_STATE_DTYPE.
        server: the engine's server.
        snapshot: the server's gauges.
        load: the client's counts.
        max_num_seqs: most running requests.
        now_s: seconds since the run began.
    """
    running, waiting = split_requests(snapshot, load, max_num_seqs)
    gauges, base, cache = snapshot.gauges, snapshot.base, server.cache
    row["status"] = EngineStatus.ACTIVE if snapshot.answering else EngineStatus.DOWN
    row["num_running"] = running
    row["num_prefilling"] = max(running - load.decoding, 0)
    row["num_waiting"] = waiting
    row["pending_prefill_tokens"] = load.pending_tokens
    row["context_tokens"] = load.context_tokens
    row["kv_used_blocks"] = _used_blocks(gauges, load, cache)
    row["kv_capacity_blocks"] = cache.num_blocks
    row["kv_capacity_tokens"] = cache.num_blocks * cache.block_size
    row["preemptions"] = _since(gauges.preemptions, base.preemptions)
    row["generated_tokens"] = max(
        load.generated_tokens, _since(gauges.generation_tokens, base.generation_tokens)
    )
    row["prefilled_tokens"] = max(load.prefilled_tokens, _since(gauges.prompt_tokens, base.prompt_tokens))
    row["busy_s"] = load.busy_until(now_s)


def in_flight_rows(ledger: Ledger, predicted: NDArray[np.int32]) -> NDArray[np.void]:
    """(M,) IN_FLIGHT_DTYPE, requests on engines.

    Args:
        ledger: Records of the run.
        predicted: (N,) predicted output lengths.
    """
    workload = ledger.workload
    rows = np.array(sorted(row for load in ledger.engines for row in load.in_flight), np.int64)
    flights = np.zeros(len(rows), IN_FLIGHT_DTYPE)
    flights["index"] = rows
    flights["first_token_s"] = np.nan_to_num(ledger.first_token_s[rows], nan=-1.0)
    flights["place"], flights["generated_tokens"] = ledger.engine[rows], ledger.generated[rows]
    flights["predicted_tokens"] = predicted[rows]
    flights["max_output_tokens"] = ledger.max_output_tokens[rows]
    flights["arrival_s"] = ledger.arrival_s[rows]
    for name in ("input_tokens", "class_id", "priority"):
        flights[name] = getattr(workload, name)[rows]
    return flights
