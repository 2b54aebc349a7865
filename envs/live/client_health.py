"""What the client itself adds to a result: its lag, its machine's load, decisions taken out of the policy's hands."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.neighbours import Neighbours

_TICK_S = 0.01
_LOAD_EVERY_S = 1.0
_EDGES_S = np.geomspace(1e-4, 100.0, 121)  # bins of 12 %
_MOST_SHARE = 0.05  # above it a share is warned of
_MOST_LOOP_LAG_S = 0.05


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """How much of a result is the client's.

    Attributes:
        send_lag_p50_s: Delay from when requests were due until the client had them ready to be sent, seconds.
        send_lag_p99_s: The same, 99th percentile.
        send_lag_max_s: The same, largest.
        send_lag_share: Sum of these delays, of the sum of TTFT.
        loop_lag_p99_s: Lateness of a timer of 10 ms in the thread that sends and times requests, seconds.
        loop_lag_max_s: The same, largest.
        load: Highest load average over one minute during the run.
        cores: Of the machine.
        overrides: Decisions that were taken out of the policy's hands.
        overrides_share: Of all decisions; None: no policy is asked, or not by the client.
        failed: Number of requests that got no complete answer, by reason, the most frequent first.
        foreign_requests: Most requests of others at a time on each server that had any, by address.
        servers: Kind and version of each server, by address.
        remarks: What else is wrong with the servers, as sentences.
    """

    send_lag_p50_s: float = 0.0
    send_lag_p99_s: float = 0.0
    send_lag_max_s: float = 0.0
    send_lag_share: float = 0.0
    loop_lag_p99_s: float = 0.0
    loop_lag_max_s: float = 0.0
    load: float = 0.0
    cores: int = 1
    overrides: int = 0
    overrides_share: float | None = None
    failed: dict[str, int] = field(default_factory=dict)
    foreign_requests: dict[str, int] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def warnings(self) -> list[str]:
        """Why the result is not the policy's and the servers' alone, as sentences."""
        found = list(self.remarks)
        if (self.overrides_share or 0.0) > _MOST_SHARE:
            found.append(
                f"{100 * (self.overrides_share or 0.0):.0f} % of the decisions were not the policy's (overrides)"
            )
        if self.send_lag_share > _MOST_SHARE:
            found.append(
                f"the client was late with requests: {100 * self.send_lag_share:.0f} % of TTFT is its own lag "
                f"(p99 {1e3 * self.send_lag_p99_s:.0f} ms)"
            )
        if self.loop_lag_p99_s > _MOST_LOOP_LAG_S:
            found.append(
                f"tokens were timed up to {1e3 * self.loop_lag_p99_s:.0f} ms late (p99 of the client's loop)"
            )
        if self.load > self.cores:
            found.append(f"the machine was overloaded: load {self.load:.1f} on {self.cores} cores")
        return found


class LagMeter:
    """Measures how late the loop is, and the machine's load; runs as a task in the loop's thread.

    Attributes:
        max_s: Largest lateness, seconds.
        load: Highest load average.
        last_s: Lateness of the last tick, seconds.
    """

    def __init__(self) -> None:
        self.max_s, self.load = 0.0, 0.0
        self._counts: NDArray[np.int64] = np.zeros(len(_EDGES_S) + 1, np.int64)

    async def run(self) -> None:
        """Measures until cancelled."""
        loaded_s = float("-inf")
        while True:
            due_s = time.monotonic() + _TICK_S
            if due_s - loaded_s > _LOAD_EVERY_S:
                self.load, loaded_s = max(self.load, load_average()), due_s
            await asyncio.sleep(_TICK_S)
            late_s = max(time.monotonic() - due_s, 0.0)
            self._counts[np.searchsorted(_EDGES_S, late_s)] += 1
            self.max_s = max(self.max_s, late_s)

    @property
    def p99_s(self) -> float:
        """99th percentile of the lateness, seconds, up to the width of a bin; 0 before the first tick."""
        total = int(self._counts.sum())
        if total == 0:
            return 0.0
        at = int(np.searchsorted(self._counts.cumsum(), 0.99 * total))
        return min(float(_EDGES_S[min(at, len(_EDGES_S) - 1)]), self.max_s)


def client_health(
    ledger: Ledger,
    meter: LagMeter,
    decisions: tuple[int, int],
    servers: dict[str, str],
    neighbours: Neighbours,
    remarks: Sequence[str],
) -> ClientHealth:
    """What the client itself has added to a run.

    Args:
        ledger: records of the run.
        meter: lateness of the loop.
        decisions: number of decisions that were taken out of a policy's hands, and of all.
        servers: kind and version of each server, by address.
        neighbours: requests of others.
        remarks: what else is wrong with the servers.
    """
    lag_s = ledger.send_lag_s[ledger.order]
    ttft_s = (ledger.first_token_s - ledger.arrival_s)[ledger.order]
    answered = ~np.isnan(ttft_s)
    p50_s, p99_s, max_s = np.percentile(lag_s, (50, 99, 100)).tolist() if lag_s.size else (0.0, 0.0, 0.0)
    overrides, asked = decisions
    return ClientHealth(
        send_lag_p50_s=p50_s,
        send_lag_p99_s=p99_s,
        send_lag_max_s=max_s,
        send_lag_share=float(lag_s[answered].sum() / max(ttft_s[answered].sum(), 1e-9)),
        loop_lag_p99_s=meter.p99_s,
        loop_lag_max_s=meter.max_s,
        load=meter.load,
        cores=os.cpu_count() or 1,
        overrides=overrides,
        overrides_share=overrides / asked if asked else None,
        failed=ledger.failures(),
        foreign_requests=neighbours.found(),
        servers=servers,
        remarks=(*remarks, *neighbours.sentences()),
    )


def load_average() -> float:
    """Load average over one minute; 0 where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0
