"""A simulated cluster of shared nodes: it executes commands, and stops at every decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.metrics import NO_REASON, TOO_LONG, UNFINISHED, RequestRecords
from serving_gym.envs.interface.randomise import NOMINAL, EpisodeFactors
from serving_gym.envs.interface.sharing import (
    FINISHED_DTYPE,
    INSTANCE_DTYPE,
    NODE_DTYPE,
    REQUEST_DTYPE,
    Configure,
    Load,
    NewInstance,
    Place,
    ResizeKV,
    Retry,
    SharingCommand,
    TokenScheduler,
    Unload,
)
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.shared_nodes import SharingSpec
from serving_gym.envs.simulator.sharing import commands as told
from serving_gym.envs.simulator.sharing.arrays import (
    NEVER,
    NO_CHOICE,
    PS_PER_S,
    SharingTables,
    SharingWorld,
    fork_world,
    new_world,
)
from serving_gym.envs.simulator.sharing.build import ManagerSpec, build_setting, build_tables
from serving_gym.envs.simulator.sharing.engine import advance
from serving_gym.envs.simulator.sharing.view import show

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload

SCHEDULERS = tuple(TokenScheduler)


class Shown(NamedTuple):
    """What can be read off a shared cluster. N nodes, S slots, R requests in the system."""

    nodes: NDArray[np.void]  # (N,) NODE_DTYPE
    instances: NDArray[np.void]  # (S,) INSTANCE_DTYPE
    requests: NDArray[np.void]  # (R,) REQUEST_DTYPE
    runnable: NDArray[np.bool_]  # (S,), which instances have an iteration to run


class SharingSimulator:
    """A simulated cluster whose nodes are shared.

    Attributes:
        setting: What is known before an episode.
        world: All that changes.
        tables: All that stays in an episode.
        workload: Requests of the episode.

    Args:
        spec: The cluster.
        slos: SLO of each request class, in the order of the workload's classes.
        models: Names of the workload's models.
        manager: The environment's own memory manager, and the gateway.
        mean_output_tokens: Of the training split.
        scheduler: Token scheduler that an episode begins with.

    Raises:
        ValueError: the spec names something unknown, or a model fits no node.
    """

    world: SharingWorld
    tables: SharingTables
    workload: Workload

    def __init__(
        self,
        spec: SharingSpec,
        slos: tuple[SLO, ...],
        models: tuple[str, ...],
        manager: ManagerSpec | None = None,
        mean_output_tokens: float = 211.0,
        scheduler: TokenScheduler = TokenScheduler.SHORTEST_HEADROOM,
    ) -> None:
        self.spec, self.slos, self.models = spec, slos, models
        self.manager = manager or ManagerSpec()
        self.scheduler = TokenScheduler(scheduler)
        self.setting, self._times = build_setting(spec, models, mean_output_tokens)

    @property
    def has_front_end(self) -> bool:
        """Whether anything lies between engines and clients."""
        return bool(self._times.front_ps.any())

    def reset(self, workload: Workload, factors: EpisodeFactors = NOMINAL) -> None:
        """Empties the cluster and prepares to serve `workload` from time zero.

        Args:
            workload: Requests.
            factors: What was drawn for the episode; those on iteration times are by kind of node.
        """
        if workload.models != self.models:
            raise ValueError(f"the workload's models are {workload.models[:3]}..., not {self.models[:3]}...")
        if workload.has_sessions or workload.patience_s is not None:
            raise ValueError(
                f"workload {workload.name!r} has sessions or impatient clients, which the sharing simulator does not "
                "serve yet: routing, dp_tp, deployment and autoscaling do"
            )
        self.workload = workload
        self.tables = build_tables(
            self.spec, self.manager, self.setting, self._times, workload, self.slos, factors
        )
        self.world = new_world(
            self.setting.node_kinds,
            self.setting.memory_bytes,
            self.spec.slots_per_node,
            len(workload),
            len(self.models),
            len(self.slos),
            round(self.spec.keep_alive_s * PS_PER_S),
        )
        self.world.clock["scheduler"] = SCHEDULERS.index(self.scheduler)
        self._coming: NDArray[np.float64] | None = None
        self.refused_commands = 0

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def now_ps(self) -> int:
        """Time, picoseconds."""
        return int(self.world.clock["now_ps"][0])

    @property
    def now_s(self) -> float:
        """Time, seconds."""
        return self.now_ps / PS_PER_S

    def advance_ps(self, until_ps: int = NEVER) -> int:
        """Lets time pass to the next event that asks the policy, the end, or `until_ps`. Returns which."""
        return int(advance(self.world, self.tables, until_ps))

    def note_decision(self) -> None:
        """Drops finished requests that have been reported to the policy."""
        self.world.clock["num_finished"] = 0
        self.world.clock["decisions"] += 1

    # -- commands ------------------------------------------------------------------------------------------------------

    def place(self, place: Place | None, retry: Retry = Retry.ALWAYS) -> Receipt:
        """Says where the offered request goes; None, or a place that is refused: it is held until `retry`."""
        r = int(self.world.clock["event_request"][0])
        receipt = Receipt(True) if place is None else self._move(r, place)
        self._command(told.AWAIT, r, int(retry), 0)
        return receipt

    def iterate(self, slot: int | None, prefill: bool | None = None) -> Receipt:
        """Says which instance has the next iteration of the node that asks; None: shortest headroom decides."""
        n = int(self.world.clock["event_node"][0])
        node = self.world.nodes[n]
        node["asked"] = NO_CHOICE
        if slot is None:
            return Receipt(True)
        if not 0 <= slot < len(self.world.instances) or slot // self.spec.slots_per_node != n:
            return self._refuse(f"{slot} is no slot of node {n}")
        if not self.shown().runnable[slot]:
            return self._refuse(f"instance {slot} has no iteration to run")
        node["asked"], node["asked_prefill"] = slot, -1 if prefill is None else int(prefill)
        return Receipt(True)

    def apply(self, command: SharingCommand) -> Receipt:
        """Begins to carry out a command, or refuses it."""
        if isinstance(command, Configure):
            return self._configure(command)
        if isinstance(command, Load):
            if not 0 <= command.model < len(self.models):
                return self._refuse(f"load.model must lie in [0, {len(self.models)}), got {command.model}")
            return self._at_node(told.LOAD, command.model, command.node, command.kv_bytes)
        if isinstance(command, Unload):
            return self._at_slot(told.UNLOAD, 0, command.instance, 0)
        if isinstance(command, ResizeKV):
            return self._at_slot(told.RESIZE, 0, command.instance, command.kv_bytes)
        if command.to is None:
            return self._command(told.TO_GATEWAY, command.request, 0, 0)
        return self._move(command.request, command.to)

    def _configure(self, command: Configure) -> Receipt:
        clock = self.world.clock
        if command.keep_alive_s is not None and not 0 <= command.keep_alive_s < 1e6:
            return self._refuse(f"configure.keep_alive_s must lie in [0, 1e6), got {command.keep_alive_s}")
        if command.token_scheduler is not None:
            if command.token_scheduler not in SCHEDULERS:
                return self._refuse(f"configure.token_scheduler must be one of {', '.join(SCHEDULERS)}")
            clock["scheduler"] = SCHEDULERS.index(TokenScheduler(command.token_scheduler))
        if command.manages_memory is not None:
            clock["manages"] = command.manages_memory
        if command.keep_alive_s is not None:
            clock["keep_alive_ps"] = round(command.keep_alive_s * PS_PER_S)
        return Receipt(True)

    def _move(self, r: int, place: Place) -> Receipt:
        if isinstance(place, NewInstance):
            return self._at_node(told.TO_NEW, r, place.node, place.kv_bytes)
        return self._at_slot(told.TO_INSTANCE, r, int(place), 0)

    def _at_node(self, what: int, r: int, node: int, kv: int) -> Receipt:
        if not 0 <= node < len(self.world.nodes):
            return self._refuse(f"there is no node {node}, there are {len(self.world.nodes)}")
        return self._command(what, r, node, kv)

    def _at_slot(self, what: int, r: int, slot: int, kv: int) -> Receipt:
        if not 0 <= slot < len(self.world.instances):
            return self._refuse(f"there is no slot {slot}, there are {len(self.world.instances)}")
        return self._command(what, r, slot, kv)

    def _command(self, what: int, r: int, where: int, kv: int) -> Receipt:
        reason = told.command(self.world, self.tables, what, int(r), int(where), int(kv))
        return self._refuse(told.REASONS[reason]) if reason else Receipt(True)

    def _refuse(self, reason: str) -> Receipt:
        self.refused_commands += 1
        return Receipt(False, reason)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def shown(self) -> Shown:
        """Rows of nodes, instances and requests now."""
        world = self.world
        shown = Shown(
            np.zeros(len(world.nodes), NODE_DTYPE),
            np.zeros(len(world.instances), INSTANCE_DTYPE),
            np.zeros(int(world.clock["num_in_system"][0]), REQUEST_DTYPE),
            np.zeros(len(world.instances), np.bool_),
        )
        show(
            world,
            self.tables,
            self.workload.max_output_tokens,
            shown.nodes,
            shown.instances,
            shown.runnable,
            shown.requests,
        )
        return shown

    def coming_s(self, arrived: int) -> NDArray[np.float64]:
        """(models,), when the next request of each comes after so many requests, s; infinity: never."""
        if self._coming is None:
            self._coming = _coming(self.workload)
        return self._coming[arrived]

    def used_ps(self) -> NDArray[np.int64]:
        """(N,), for which each node has had an instance."""
        nodes = self.world.nodes
        since = nodes["used_since_ps"]
        return np.asarray(nodes["used_ps"] + np.where(since < NEVER, self.now_ps - since, 0))

    def finished(self) -> NDArray[np.void]:
        """(F,) FINISHED_DTYPE, requests that have ended since the last decision."""
        rows = self.world.finished[: int(self.world.clock["num_finished"][0])]
        shown = np.zeros(len(rows), FINISHED_DTYPE)
        shown["index"], shown["model"] = rows, self.workload.model_id[rows]
        shown["instance"] = self.world.requests["last_instance"][rows]
        shown["input_tokens"] = self.workload.input_tokens[rows]
        shown["output_tokens"] = self.tables.output_tokens[rows]
        return shown

    def results(self) -> RequestRecords:
        """What happened to every request that has arrived."""
        count, workload = int(self.world.clock["next_arrival"][0]), self.workload
        requests = self.world.requests[:count]
        longest = self.tables.max_tokens[workload.model_id[:count]]
        return RequestRecords(
            index=np.arange(count),
            arrival_s=workload.arrival_s[:count],
            input_tokens=workload.input_tokens[:count],
            output_tokens=workload.output_tokens[:count],
            class_id=workload.class_id[:count],
            priority=workload.priority[:count],
            first_scheduled_s=_seconds(requests["first_scheduled_ps"]),
            first_token_s=_seconds(requests["first_token_ps"]),
            finish_s=_seconds(requests["finish_ps"]),
            generated_tokens=requests["generated"].astype(np.int32),
            preemptions=requests["evictions"].astype(np.int32),
            engine=requests["last_instance"].astype(np.int32),
            outcome=np.where(requests["outcome"] < 0, UNFINISHED, requests["outcome"]).astype(np.int8),
            reason=np.where(workload.input_tokens[:count] >= longest, TOO_LONG, NO_REASON).astype(np.int8),
        )

    def fork(self) -> SharingSimulator:
        """A copy that continues to the same numbers and shares nothing that changes."""
        copy = SharingSimulator.__new__(SharingSimulator)
        copy.__dict__.update(self.__dict__)
        copy.world = fork_world(self.world)
        return copy


def _coming(workload: Workload) -> NDArray[np.float64]:
    """(R + 1, models), after so many requests, when the next one of each model comes, s; infinity: never."""
    coming_s = np.full((len(workload) + 1, len(workload.models)), np.inf)
    coming_s[np.arange(len(workload)), workload.model_id] = workload.arrival_s
    return np.minimum.accumulate(coming_s[::-1])[::-1]


def _seconds(times_ps: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(times_ps < 0, np.nan, times_ps / PS_PER_S)
