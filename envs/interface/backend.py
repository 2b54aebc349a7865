"""What a node of engines does, whichever body it has.

A `Backend` is the calibrated simulator or live vLLM servers. It shows a `ClusterState` and obeys `Command`s; everything
above it, environments, heuristics and learned policies, sees nothing else.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from serving_gym.envs.interface.cluster import ClusterSpec, Fault
from serving_gym.envs.interface.commands import Command, Receipt
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.state import ClusterState

WorkloadT = TypeVar("WorkloadT", contravariant=True)


class Backend(Protocol[WorkloadT]):
    """One cluster, simulated or real, that serves workloads of one form: `envs.workload.schema.Workload`."""

    spec: ClusterSpec

    def reset(self, workload: WorkloadT, faults: tuple[Fault, ...] = ()) -> ClusterState:
        """Empties the cluster and prepares to serve `workload` from time zero."""
        ...

    def observe(self) -> ClusterState:
        """What the cluster shows now."""
        ...

    def apply(self, command: Command) -> Receipt:
        """Begins to carry out a command, or refuses it."""
        ...

    def advance(self, until_s: float) -> bool:
        """Lets time pass to `until_s`. Returns True if it stopped early because a request asks for a decision."""
        ...

    def results(self) -> RequestRecords:
        """What happened to every request that has arrived."""
        ...
