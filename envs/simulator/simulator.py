"""The simulator backend: a compiled data plane under a SimPy control plane, as a `Backend`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from serving_gym.calibration.power import power_of
from serving_gym.envs.interface.cluster import Fault
from serving_gym.envs.interface.commands import Command, Receipt, Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Group, Layout, changed_regions, groups_of, layout_of
from serving_gym.envs.interface.randomise import NOMINAL, EpisodeFactors
from serving_gym.envs.interface.state import TOTALS, ClusterState, Transition
from serving_gym.envs.interface.usage import Usage
from serving_gym.envs.simulator.control_plane import ControlPlane, Phase, Switch
from serving_gym.envs.simulator.kernel.state import NEVER, PS_PER_S
from serving_gym.envs.simulator.metering import usage, work_j
from serving_gym.envs.simulator.node import Node

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload


class Simulator(Node):
    """A simulated node of GPUs whose engines can be merged and split.

    Args and errors are those of `Node`.
    """

    @property
    def clockwork(self) -> ControlPlane:
        """The control plane."""
        return self.control

    # -- Backend -------------------------------------------------------------------------------------------------------

    def reset(
        self, workload: Workload, faults: tuple[Fault, ...] = (), factors: EpisodeFactors = NOMINAL
    ) -> ClusterState:
        """Empties the cluster and prepares to serve `workload` from time zero.

        Args:
            workload: Requests.
            faults: What will go wrong.
            factors: What was drawn for the episode.
        """
        self.factors = factors
        self.begin(workload, num_engines=len(self.cluster.groups))
        engines = self.world.engines
        engines["width"] = [group.length * self.spec.base_width for group in self.cluster.groups]
        engines["first_gpu"] = [group.first * self.spec.base_width for group in self.cluster.groups]
        engines["kind"] = [self.kind_of(group, "tp") for group in self.cluster.groups]
        self.control = ControlPlane(self)
        self.set_request_limit(self.spec.weights)
        layout = self.spec.layout or (1,) * self.spec.num_base
        self.control.start(groups_of(tuple(layout)), faults)
        return self.observe()

    def observe(self) -> ClusterState:
        """Observes the present state of the cluster."""
        world = self.world
        cluster = world.cluster[0]
        return ClusterState(
            now_s=float(cluster["now_ps"]) / PS_PER_S,
            engines=self.shown(),
            layout=layout_of(self.control.layout),
            target_layout=layout_of(self.target_groups),
            transitions=tuple(self._transitions()),
            num_pooled=int(cluster["num_pooled"]),
            pooled_tokens=int(cluster["pooled_tokens"]),
            totals=world.stats[:, : len(TOTALS)].copy(),
            waiting=self.arrived_now(),
        )

    def apply(self, command: Command) -> Receipt:
        """Begins to execute a command, or refuses it with a reason."""
        if self.is_as_wanted(command):
            return Receipt(True)
        self.stale = True
        receipt = self._switch_to(command) if isinstance(command, SetLayout) else self._redeploy(command)
        if not receipt.accepted:
            self.refused_commands += 1
        return receipt

    def usage(self) -> Usage:
        """Resources used by the node; all of its GPUs are provisioned throughout."""
        powers = [power_of(self.spec.gpu, int(width)) for width in self.world.engines["width"]]
        return usage(
            gpus=[self.spec.gpu],
            gpu_s=np.array([self.now_s * self.spec.num_gpus]),
            idle_w=np.array([powers[0].idle_w]),
            work=work_j(self.world, powers).sum(keepdims=True),
        )

    # -- simulator only ------------------------------------------------------------------------------------------------

    @property
    def can_switch_live(self) -> bool:
        """Whether engines hold whole weights, so that groups can be merged and split without a restart."""
        return self.control.weights == "whole"

    @property
    def target_groups(self) -> tuple[Group, ...]:
        """Groups of the node when every reconfiguration is done."""
        busy = self.control.busy_regions()
        if not busy:
            return self.control.layout
        groups = set(self.control.layout)
        for operation in busy:
            groups = {group for group in groups if not operation.region.contains(group)} | set(
                operation.target
            )
        return tuple(sorted(groups))

    def fork(self) -> Simulator:
        """Returns an independent copy that continues with the same random numbers."""
        copy = self._fork_node()
        copy.control = self.control.fork(copy)
        return copy

    @property
    def settled(self) -> bool:
        """Whether nothing is being reconfigured."""
        return not self.control.busy_regions()

    @property
    def layout(self) -> Layout:
        """Groups that serve or are being drained, left to right."""
        return layout_of(self.control.layout)

    def is_as_wanted(self, command: Command) -> bool:
        """Whether a command requests the present layout, with no transition in progress that it could speed up."""
        if not isinstance(command, SetLayout) or not self.settled or self.untouched:
            return False
        return command.layout == self.layout

    def _switch_to(self, command: SetLayout) -> Receipt:
        impossible = self._impossible(command)
        if impossible:
            return Receipt(False, impossible)
        target = groups_of(command.layout)
        busy = self.control.busy_regions()
        regions = changed_regions(self.target_groups, target)
        if regions and not self.can_switch_live:
            return Receipt(False, "engines hold sharded weights; only a cold restart changes their layout")
        if self.untouched:
            self.control.deploy(target)
            return Receipt(True)
        for operation in busy:
            if any(region.overlaps(operation.region) for region in regions):
                return Receipt(False, f"base engines {list(operation.region.members)} are being reconfigured")
        if not regions and command.mode == SwitchMode.HARD:
            for operation in busy:
                if isinstance(operation, Switch) and operation.phase == Phase.DRAIN:
                    self.control.escalate(operation)
        for region in regions:
            inside = tuple(group for group in target if region.contains(group))
            self.control.begin_switch(region, inside, command.mode)
        self.control.catch_up(notified=False)
        return Receipt(True)

    def _impossible(self, command: Command) -> str:
        """Why a layout is impossible on the node, or nothing."""
        if sum(command.layout) != self.spec.num_base:
            return f"layout {command.layout} does not add up to {self.spec.num_base} base engines"
        longest = self.cluster.groups[-1].length
        if max(command.layout) > longest:
            return f"layout {command.layout} has a group of more than {longest} base engines"
        return ""

    def _redeploy(self, command: Redeploy) -> Receipt:
        impossible = self._impossible(command)
        if impossible:
            return Receipt(False, impossible)
        self.control.redeploy(command)
        return Receipt(True)

    def _transitions(self) -> list[Transition]:
        return [
            Transition(
                region=operation.region,
                target=operation.target,
                mode=operation.mode if isinstance(operation, Switch) else None,
                started_s=operation.started_ps / PS_PER_S,
                due_s=None if operation.due_ps == NEVER else operation.due_ps / PS_PER_S,
            )
            for operation in self.control.busy_regions()
        ]
