"""Base classes of fleets and environments on live servers, for threads other than the loop's."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import UNFINISHED, RequestRecords
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.client_health import ClientHealth
from serving_gym.envs.live.control import NoDecision
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.loop import LoopThread
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.session import LiveSession
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.supervision import LocalServers
from serving_gym.envs.workload.schema import Workload

T = TypeVar("T")


class LiveRun:
    """A session with servers in its own event loop. A context manager.

    Args:
        session: The session in the loop's thread.

    Attributes:
        workload: Requests of the present run.
        slos: SLO of each request class.
    """

    workload: Workload
    slos: tuple[SLO, ...]

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self._launched: LocalServers | None = None
        self._loop = LoopThread()

    @property
    def settings(self) -> LiveSettings:
        """Connection settings."""
        return self._session.settings

    @property
    def now_s(self) -> float:
        """Seconds since the run began; 0 before."""
        return self._session.now_s

    @property
    def servers(self) -> tuple[Server, ...]:
        """Server information, by engine."""
        return tuple(self._session.servers)

    @property
    def idle(self) -> bool:
        """Whether every request has arrived and is done."""
        return self._loop.call(lambda: self._session.replay.idle)

    def pooled(self) -> list[int]:
        """Rows of requests that are on no server."""
        return self._loop.call(lambda: list(self._session.replay.pool))

    def ask_ledger(self, question: Callable[[Ledger], T]) -> T:
        """Reads from the ledger in the loop's thread, where nothing writes meanwhile."""
        return self._loop.call(lambda: question(self._session.ledger))

    def books(self) -> tuple[NDArray[np.float64], float]:
        """Running totals by class, (C, len(TOTALS)), and the running sum of TTFT / SLO + TPOT / SLO."""
        return self.ask_ledger(lambda ledger: (ledger.totals.copy(), ledger.latency_cost(self.now_s)))

    def results(self) -> RequestRecords:
        """Records of every request that has arrived."""
        return self.ask_ledger(Ledger.records)

    def unfinished(self) -> NDArray[np.int64]:
        """(C,), requests of each class that are still in the system."""

        def count(ledger: Ledger) -> NDArray[np.int64]:
            rows = ledger.here
            left = ledger.outcome[rows] == UNFINISHED
            return np.bincount(self.workload.class_id[rows][left], minlength=len(self.slos))

        return self.ask_ledger(count)

    def record_requests(self, sink: Callable[[dict[str, Any]], None]) -> None:
        """Lets each request of the next runs be told when it has ended (`Ledger.row`); in the loop's thread."""
        self._session.on_record = sink

    def attend_to(self, launched: LocalServers) -> None:
        """Lets launched servers that hang be started again, and requests wait for those that are."""
        self._launched = launched
        self._session.on_hung = launched.kill_hung
        self._session.server_is_coming = launched.coming

    def end_requests_after(self, timeout_s: float | None) -> None:
        """Ends requests of later runs some time after their arrival, whatever they have, seconds; None: never."""
        self._session.request_timeout_s = timeout_s

    def client_health(self) -> ClientHealth:
        """What the client itself has added to the present run: its lag, the machine's load, overrides, strangers."""
        return self._loop.call(self._session.client_health)

    def close(self) -> None:
        """Drops requests in flight and disconnects from the servers."""
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
    """Mixin of environments on live servers.

    Attributes:
        fleet: The servers.
    """

    survives_failures = True  # errors of a policy: `envs.live.control.NoDecision` replaces its action
    fleet: LiveRun

    def _checked(self, action: Any) -> Any:
        """Checks an action; one that is not allowed counts as no decision, as the requests are real."""
        try:
            return super()._checked(action)  # type: ignore[misc]
        except ValueError as error:
            return NoDecision(str(error))

    def records(self) -> RequestRecords:
        """Records of every request that has arrived."""
        return self.fleet.results()

    def client_health(self) -> ClientHealth:
        """What the client itself has added to the present episode."""
        return self.fleet.client_health()

    def record_requests(self, sink: Callable[[dict[str, Any]], None]) -> None:
        """Lets each request of the next episodes be told when it has ended."""
        self.fleet.record_requests(sink)

    def close(self) -> None:
        """Disconnects from the servers; servers launched for the environment are stopped."""
        self.fleet.close()
        super().close()  # type: ignore[misc]
