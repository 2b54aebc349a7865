"""One run after another on live servers, for a thread that is not the loop's: what all fleets have in common."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import UNFINISHED, RequestRecords
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.loop import LoopThread
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.session import LiveSession
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.workload.schema import Workload

T = TypeVar("T")


class LiveRun:
    """A session with servers, in a loop of its own. Use it in a `with` block.

    Args:
        session: The servers, as the loop's thread has them.

    Attributes:
        workload: Requests of the present run.
        slos: Latency promise of each request class.
    """

    workload: Workload
    slos: tuple[SLO, ...]

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self._loop = LoopThread()

    @property
    def settings(self) -> LiveSettings:
        """How the servers are dealt with."""
        return self._session.settings

    @property
    def now_s(self) -> float:
        """Seconds since the run began; 0 before."""
        return self._session.now_s

    @property
    def servers(self) -> tuple[Server, ...]:
        """What the servers say they are."""
        return tuple(self._session.servers)

    @property
    def idle(self) -> bool:
        """Whether every request has arrived and is done."""
        return self._loop.call(lambda: self._session.replay.idle)

    def pooled(self) -> list[int]:
        """Rows that no server has."""
        return self._loop.call(lambda: list(self._session.replay.pool))

    def ask_ledger(self, question: Callable[[Ledger], T]) -> T:
        """An answer from the books, while nothing is written into them."""
        return self._loop.call(lambda: question(self._session.ledger))

    def books(self) -> tuple[NDArray[np.float64], float]:
        """Running totals by class, (C, len(TOTALS)), and the running sum of TTFT / SLO + TPOT / SLO."""
        return self.ask_ledger(lambda ledger: (ledger.totals.copy(), ledger.latency_cost(self.now_s)))

    def results(self) -> RequestRecords:
        """What happened to every request that has arrived."""
        return self.ask_ledger(Ledger.records)

    def unfinished(self) -> NDArray[np.int64]:
        """(C,), requests of each class that are still in the system."""

        def count(ledger: Ledger) -> NDArray[np.int64]:
            rows = slice(0, ledger.arrived)
            left = ledger.outcome[rows] == UNFINISHED
            return np.bincount(self.workload.class_id[rows][left], minlength=len(self.slos))

        return self.ask_ledger(count)

    def close(self) -> None:
        """Drops what is in flight and lets go of the servers."""
        if self._loop.alive:
            self._loop.run(self._session.detach())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DrivesServers:
    """What environments on live servers have in common.

    Attributes:
        fleet: The servers.
    """

    survives_failures = True  # of a policy: `envs.live.control.NoDecision` stands for its action
    fleet: LiveRun

    def records(self) -> RequestRecords:
        """What happened to every request that has arrived."""
        return self.fleet.results()

    def close(self) -> None:
        """Lets go of the servers; those that were launched for the environment are stopped."""
        self.fleet.close()
