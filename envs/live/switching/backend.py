"""A node whose ranks serve separately (DP) or merged (TP): one server with the plugin, as a `Backend`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.cluster import ClusterSpec, Fault
from serving_gym.envs.interface.commands import Command, Receipt, Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Group, Layout, all_groups
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, ClusterState, EngineStatus, Transition
from serving_gym.envs.live.access import access_by_url
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.client_health import ClientHealth
from serving_gym.envs.live.endpoints import check_endpoints
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.supervision import LocalServers
from serving_gym.envs.live.switching.client import SwitchingClient
from serving_gym.envs.live.switching.node_status import COUNTED, NodeStatus, group_of

if TYPE_CHECKING:
    from serving_gym.envs.interface.metrics import RequestRecords
    from serving_gym.envs.workload.schema import Workload

_SETTLE_WITHIN_S = 60.0
_POLL_S = 0.005
_STATUS = {
    "active": EngineStatus.ACTIVE,
    "draining": EngineStatus.DRAINING,
    "speculative": EngineStatus.SPECULATIVE,
    "paused": EngineStatus.PAUSED,
}
_SHOWN = (
    "num_running",
    "num_prefilling",
    "num_waiting",
    "pending_prefill_tokens",
    "context_tokens",
    "kv_used_blocks",
    "kv_capacity_blocks",
)


class SwitchingBackend:
    """One server of TP=N with the plugin, its ranks the base engines of a node. A context manager.

    Requests go to the server, whose own scheduler routes them among the groups. `SetLayout` is the plugin's switch, in
    its mode. A `Redeploy` is had at time zero only, as the choice of the first layout: weights are always whole, so
    that "sharded" means the layout alone. In the records every request has engine 0, the server. While the server does
    not answer, its last status is shown with all engines down.

    Args:
        spec: The node; one rank per base engine.
        slos: SLO of each request class.
        settings: The server's address and connection settings.
        trigger_classes: Classes whose arrival stops `advance` so that a decision can be taken.

    Attributes:
        refused_commands: Commands refused since the last reset.

    Raises:
        ValueError: no server with the plugin answers, or it is not the node.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        slos: tuple[SLO, ...],
        settings: LiveSettings,
        trigger_classes: tuple[int, ...] = (),
    ) -> None:
        _check_spec(spec, settings)
        self.spec, self.slos = spec, slos
        self.refused_commands = 0
        (url,) = check_endpoints(settings.endpoints, settings.allow_remote)
        self._client = SwitchingClient(url, access_by_url([url], settings.access, settings.access_of)[url])
        self._node = NodeStatus(self._client)
        alone = replace(
            spec,
            num_gpus=1,
            base_width=1,
            max_group=1,
            layout=None,
            router="round_robin",
            kv_blocks_override=None,
        )
        self._server = LiveBackend(alone, slos, settings, trigger_classes)
        try:
            self._check_world()
        except BaseException:
            self.close()
            raise
        self._groups = all_groups(spec.num_base)
        self._rows = {group: number for number, group in enumerate(self._groups)}

    def _check_world(self) -> None:
        world = self._client.status()["world"]
        if world != self.spec.num_base:
            raise ValueError(
                f"the server has {world} ranks, but the cluster has {self.spec.num_base} base engines "
                f"(cluster.num_gpus={self.spec.num_gpus}, cluster.base_width={self.spec.base_width})"
            )

    # -- Backend -------------------------------------------------------------------------------------------------------

    def reset(self, workload: Workload, faults: tuple[Fault, ...] = ()) -> ClusterState:
        """Drops requests in flight, returns to the first layout, and prepares to serve `workload`.

        Raises:
            ValueError: as of `LiveBackend.reset`, or the server does not come to the first layout.
        """
        self._server.reset(workload, faults)
        self.refused_commands = 0
        layout = self.spec.layout or (1,) * self.spec.num_base
        self._settle(layout)
        self._node.begin(layout)
        return self.observe()

    def observe(self) -> ClusterState:
        """Observes the present state of the node."""
        return self._state(self._server.observe(), self._node.read())

    def apply(self, command: Command) -> Receipt:
        """Begins a switch, or refuses it."""
        reason = self._why_not(command) or self._carry_out(command)
        self.refused_commands += bool(reason)
        return Receipt(not reason, reason)

    def advance(self, until_s: float) -> bool:
        """Waits until `until_s`. Returns True if it stopped early because a request triggered a decision."""
        return self._server.advance(until_s)

    def results(self) -> RequestRecords:
        """Records of every request that has arrived."""
        return self._server.results()

    def latency_cost(self) -> float:
        """Sum over requests of TTFT / SLO + TPOT / SLO, accrued so far."""
        return self._server.latency_cost()

    # -- the live body's own -------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Seconds since the run began; 0 before the first `advance`."""
        return self._server.now_s

    @property
    def idle(self) -> bool:
        """Whether every request of the workload has arrived and is done."""
        return self._server.idle

    @property
    def workload(self) -> Workload:
        """Requests of the run, with arrivals in real time."""
        return self._server.workload

    def record_requests(self, sink: Callable[[dict[str, Any]], None]) -> None:
        """Lets each request of the next runs be told when it has ended."""
        self._server.record_requests(sink)

    def switches(self) -> list[dict[str, Any]]:
        """The server's last switches: requests waited for, cut-over times, paused requests."""
        return self._node.switches()

    def attend_to(self, launched: LocalServers) -> None:
        """Lets a launched server that hangs be started again, and requests wait for it."""
        self._server.attend_to(launched)

    def client_health(self) -> ClientHealth:
        """As of `LiveBackend.client_health`."""
        return self._server.client_health()

    def close(self) -> None:
        """Drops requests in flight and disconnects from the server."""
        self._server.close()

    def __enter__(self) -> SwitchingBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _why_not(self, command: Command) -> str:
        if isinstance(command, SetLayout):
            return ""
        if self.now_s > 0:
            return "Redeploy: an attached server cannot be restarted"
        return (
            "" if command.execution == "tp" else f"Redeploy: execution {command.execution!r} is not to be had"
        )

    def _carry_out(self, command: Command) -> str:
        if sum(command.layout) != self.spec.num_base:
            return f"layout {command.layout} does not add up to {self.spec.num_base} base engines"
        if isinstance(command, Redeploy) or self.now_s == 0:
            try:
                self._settle(command.layout)
            except ValueError as error:
                return str(error)
            self._node.wanted = command.layout
            return ""
        return self._node.set_layout(command.layout, command.mode)

    def _settle(self, layout: Layout) -> None:
        """Brings an idle server to a layout.

        Raises:
            ValueError: it does not get there.
        """
        deadline_s = time.monotonic() + _SETTLE_WITHIN_S
        reason = self._client.set_layout(layout, SwitchMode.HARD)
        while True:
            status = self._client.status()
            if not status["open"]:
                if tuple(status["layout"]) == layout:
                    return
                reason = self._client.set_layout(layout, SwitchMode.HARD)
            if time.monotonic() > deadline_s:
                raise ValueError(
                    f"the server does not come to layout {layout}: {reason or 'it never gets there'}"
                )
            time.sleep(_POLL_S)

    # -- state ---------------------------------------------------------------------------------------------------------

    def _state(self, shown: ClusterState, status: Mapping[str, Any]) -> ClusterState:
        return replace(
            shown,
            engines=self._engines(status, shown),
            layout=tuple(status["layout"]),
            target_layout=tuple(status["target_layout"]),
            transitions=tuple(_transition(each, status["now_s"], shown.now_s) for each in status["open"]),
            num_pooled=shown.num_pooled + status["num_pooled"],
            pooled_tokens=shown.pooled_tokens + status["pooled_tokens"],
            stale=tuple(range(self.spec.num_base)) if self._node.lost else (),
        )

    def _engines(self, status: Mapping[str, Any], shown: ClusterState) -> NDArray[np.void]:
        """One row per group, as in simulation."""
        rows = np.zeros(len(self._groups), ENGINE_STATE_DTYPE)
        width = self.spec.base_width
        rows["first_gpu"] = [group.first * width for group in self._groups]
        rows["width"] = [group.length * width for group in self._groups]
        down = bool(self._node.lost) or shown.engines[0]["status"] == EngineStatus.DOWN
        for figures in status["groups"]:
            row = rows[self._rows[group_of(figures)]]
            for name in COUNTED:
                row[name] = self._node.counted(figures, name)
            row["kv_capacity_tokens"] = figures["kv_capacity_blocks"] * figures["block_size"]
            for name in _SHOWN:
                row[name] = figures[name]
            if figures["status"] != "inactive":
                row["status"] = EngineStatus.DOWN if down else _STATUS[figures["status"]]
        return rows


def _transition(switch: Mapping[str, Any], server_now_s: float, now_s: float) -> Transition:
    """A switch as policies know it; one that no longer waits for requests is due now."""
    return Transition(
        region=Group(*switch["region"]),
        target=tuple(Group(*group) for group in switch["to"]),
        mode=SwitchMode[switch["mode"].upper()],
        started_s=max(now_s - (server_now_s - switch["asked_s"]), 0.0),
        due_s=None if switch["drain_s"] is None else now_s,
    )


def _check_spec(spec: ClusterSpec, settings: LiveSettings) -> None:
    """Raises ValueError if a server with the plugin cannot be the node."""
    if len(settings.endpoints) != 1:
        raise ValueError(
            "backend.endpoints must name the one server whose ranks are the base engines, "
            f"got {len(settings.endpoints)} addresses"
        )
    if spec.base_width != 1:
        raise ValueError(
            f"cluster.base_width must be 1: a rank of the server is a base engine; got {spec.base_width}"
        )
    if spec.max_group not in (None, spec.num_base):
        raise ValueError(f"cluster.max_group must be null on a server that switches, got {spec.max_group}")
    if spec.weights != "whole":
        raise ValueError(f"cluster.weights must be whole on a server that switches, got {spec.weights!r}")
