"""The live backend: attaches to running vLLM servers and serves a workload with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.cluster import ClusterSpec, Fault
from serving_gym.envs.interface.commands import Command, Receipt, SetLayout
from serving_gym.envs.interface.layout import all_groups
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, ClusterState
from serving_gym.envs.live.client_health import ClientHealth
from serving_gym.envs.live.endpoints import check_endpoints
from serving_gym.envs.live.loop import LoopThread
from serving_gym.envs.live.routers import Router
from serving_gym.envs.live.servers import Server
from serving_gym.envs.live.session import LiveSession
from serving_gym.envs.live.settings import LiveSettings, lower_limit
from serving_gym.envs.live.supervision import LocalServers

if TYPE_CHECKING:
    from serving_gym.envs.interface.metrics import RequestRecords
    from serving_gym.envs.workload.schema import Workload

_STEP_S = 0.2


class LiveBackend:
    """Running vLLM servers, one engine each, as a `Backend`.

    The clock is real: it starts with the first `advance` after a `reset` and does not stop between two of them.
    A thread of its own sends requests on time. Use it as a context manager: at the end it drops requests in flight.

    Args:
        spec: The cluster; each endpoint is one base engine of `base_width` GPUs.
        slos: SLO of each request class, in the order of the workload's classes.
        settings: Servers and connection settings.
        trigger_classes: Classes whose arrival stops `advance` so that a decision can be taken.

    Attributes:
        refused_commands: Commands refused since the last reset.

    Raises:
        ValueError: an address is wrong or no server answers there, the number of endpoints is not that of the cluster's
            base engines, the router is not available, or a server lacks a metric.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        slos: tuple[SLO, ...],
        settings: LiveSettings,
        trigger_classes: tuple[int, ...] = (),
    ) -> None:
        urls = check_endpoints(settings.endpoints, settings.allow_remote)
        _check_spec(spec, len(urls))
        self.spec, self.slos, self.settings, self.trigger_classes = spec, slos, settings, trigger_classes
        self.layout = (1,) * spec.num_base
        self.refused_commands = 0
        self._triggered: list[int] = []
        self._launched: LocalServers | None = None
        self._wake = threading.Event()
        self._groups = all_groups(spec.num_base, spec.max_group)
        limits = (spec.max_num_seqs,) * spec.num_base
        limited = replace(settings, max_model_len=lower_limit(settings.max_model_len, spec.max_model_len))
        self._session = LiveSession(limited, limits, spec.order, spec.router, self._on_arrival)
        self._session.request_timeout_s = spec.request_timeout_s
        self._loop = LoopThread()
        try:
            self._loop.run(self._session.attach(urls))
        except BaseException:
            self.close()
            raise

    # -- Backend -------------------------------------------------------------------------------------------------------

    def reset(self, workload: Workload, faults: tuple[Fault, ...] = ()) -> ClusterState:
        """Drops requests in flight, waits until the servers are empty, and prepares to serve `workload`.

        Raises:
            ValueError: the workload's classes are not those of the SLOs, faults or a closed loop are requested, or a
                server is not empty after half a minute.
        """
        if len(workload.classes) != len(self.slos):
            raise ValueError(
                f"workload has {len(workload.classes)} classes ({', '.join(workload.classes)}) "
                f"but {len(self.slos)} SLOs are declared"
            )
        if faults:
            raise ValueError("faults cannot be injected into attached servers")
        if workload.num_clients:
            raise ValueError(
                "attached servers are sent requests when the workload says; workload.num_clients must be 0"
            )
        self.workload = (
            workload if self.settings.speed == 1 else workload.with_rate_scale(self.settings.speed)
        )
        self.refused_commands = 0
        self._triggered.clear()
        if self._launched is not None:
            self._launched.await_all()
        self._loop.run(self._session.prepare(self.workload, self.slos))
        return self.observe()

    def observe(self) -> ClusterState:
        """Observes the cluster."""
        return self._loop.call(self._state)

    def apply(self, command: Command) -> Receipt:
        """Refuses commands that would change attached servers; their present layout is accepted at no cost."""
        present = isinstance(command, SetLayout) and tuple(command.layout) == self.layout
        receipt = Receipt(True) if present else Receipt(False, self._why_not(command))
        self.refused_commands += not receipt.accepted
        return receipt

    def advance(self, until_s: float) -> bool:
        """Waits until `until_s`. Returns True if it stopped early because a request triggered a decision."""
        self._wake.clear()
        self._triggered.clear()
        self._begin()
        while (ahead_s := until_s - self.now_s) > 0:
            self._wake.wait(min(ahead_s, _STEP_S))
            trouble = self._session.trouble
            if trouble is not None:
                raise trouble
            if self._triggered:
                return True
        return False

    def results(self) -> RequestRecords:
        """Records of every request that has arrived."""
        return self._loop.call(self._session.ledger.records)

    def latency_cost(self) -> float:
        """Sum over requests of TTFT / SLO + TPOT / SLO, accrued so far."""
        return self._loop.call(lambda: self._session.ledger.latency_cost(self.now_s))

    # -- live only -----------------------------------------------------------------------------------------------------

    @property
    def servers(self) -> tuple[Server, ...]:
        """Server information, by engine."""
        return tuple(self._session.servers)

    @property
    def now_s(self) -> float:
        """Seconds since the run began; 0 before the first `advance`."""
        return self._session.replay.now_s

    @property
    def idle(self) -> bool:
        """Whether every request of the workload has arrived and is done."""
        return self._loop.call(lambda: self._session.replay.idle)

    def run_to_completion(
        self, limit_s: float | None = None, on_step: Callable[[int], object] | None = None
    ) -> None:
        """Serves the whole workload, or as much of it as `limit_s` allows.

        Args:
            limit_s: time limit, seconds.
            on_step: called with the number of finished requests, several times a second.
        """
        self._begin()
        while not self.idle and (limit_s is None or self.now_s < limit_s):
            until_s = self.now_s + _STEP_S
            self.advance(until_s if limit_s is None else min(until_s, limit_s))
            if on_step is not None:
                ledger = self._session.ledger
                on_step(ledger.arrived - ledger.num_in_flight - len(self._session.replay.pool))

    def details(self) -> dict[str, list[Any]]:
        """Lists for keys of `vllm bench serve --save-detailed` measured on live servers: `itls` (s), `errors`."""
        ledger = self._session.ledger
        return self._loop.call(
            lambda: {
                "itls": [ledger.inter_token_s(row) for row in ledger.order],
                "errors": [ledger.reason(row) for row in ledger.order],
            }
        )

    def send_lag_s(self) -> NDArray[np.float64]:
        """Delay with which each request was sent, seconds: the client's error of an open loop."""
        sent_s = self._session.ledger.sent_s
        lag_s: NDArray[np.float64] = (sent_s - self._session.ledger.arrival_s)[~np.isnan(sent_s)]
        return lag_s

    def record_requests(self, sink: Callable[[dict[str, Any]], None]) -> None:
        """Lets each request of the next runs be told when it has ended (`Ledger.row`); in the loop's thread."""
        self._session.on_record = sink

    def attend_to(self, launched: LocalServers) -> None:
        """Lets launched servers that hang be started again, and requests wait for those that are."""
        self._launched = launched
        self._session.on_hung = launched.kill_hung
        self._session.server_is_coming = launched.coming

    def client_health(self) -> ClientHealth:
        """What the client itself has added to the present run: its lag, the machine's load, strangers."""
        return self._loop.call(self._session.client_health)

    def close(self) -> None:
        """Drops requests in flight and disconnects from the servers."""
        if self._loop.alive:
            self._loop.run(self._session.detach())
        self._loop.close()

    def __enter__(self) -> LiveBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        if not self._session.begun:
            self._loop.call(self._session.begin)

    def _why_not(self, command: Command) -> str:
        if sum(command.layout) != self.spec.num_base:
            return f"layout {command.layout} does not add up to {self.spec.num_base} base engines"
        wish = f"{type(command).__name__}{command.layout}"
        return f"{wish}: attached servers keep the layout {self.layout}; they cannot be restarted or merged"

    # -- called in the loop's thread -----------------------------------------------------------------------------------

    def _on_arrival(self, row: int) -> None:
        if self.workload.class_id[row] in self.trigger_classes:
            self._triggered.append(row)
            self._wake.set()

    def _state(self) -> ClusterState:
        pool, now_s = self._session.replay.pool, self.now_s
        return ClusterState(
            now_s=now_s,
            engines=self._rows(now_s),
            layout=self.layout,
            target_layout=self.layout,
            transitions=(),
            num_pooled=len(pool),
            pooled_tokens=int(self.workload.input_tokens[list(pool)].sum()),
            totals=self._session.ledger.totals.copy(),
            waiting=tuple(self.workload.waiting_request(row) for row in self._triggered),
            stale=self._session.stale(),
        )

    def _rows(self, now_s: float) -> NDArray[np.void]:
        """One row per group, as in simulation; groups of more than one base engine are not active."""
        rows = np.zeros(len(self._groups), ENGINE_STATE_DTYPE)
        rows["first_gpu"] = [group.first * self.spec.base_width for group in self._groups]
        rows["width"] = [group.length * self.spec.base_width for group in self._groups]
        self._session.fill_rows(rows, now_s)
        return rows


def _check_spec(spec: ClusterSpec, num_servers: int) -> None:
    """Raises ValueError if attached servers cannot form the cluster."""
    if num_servers != spec.num_base:
        raise ValueError(
            f"backend.endpoints names {num_servers} servers, but the cluster has {spec.num_base} base engines "
            f"(cluster.num_gpus={spec.num_gpus}, cluster.base_width={spec.base_width})"
        )
    apart = (1,) * spec.num_base
    if spec.layout is not None and tuple(spec.layout) != apart:
        raise ValueError(
            f"cluster.layout={tuple(spec.layout)} is not available: attached servers are separate engines, "
            f"hence {apart}"
        )
    if spec.order not in ("fcfs", "priority"):
        raise ValueError(f"cluster.order must be fcfs or priority on servers of vLLM, got {spec.order!r}")
    Router(spec.router)
