"""The interface of a node of engines, simulated or live.

A `Backend` is the calibrated simulator or live vLLM servers. It returns a `ClusterState` and executes `Command`s;
environments, heuristics and learned policies use only this interface.
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
        """Observes the present state of the cluster."""
        ...

    def apply(self, command: Command) -> Receipt:
        """Begins to execute a command, or refuses it."""
        ...

    def advance(self, until_s: float) -> bool:
        """Advances time to `until_s`. Returns True if it stopped early because a request triggered a decision."""
        ...

    def results(self) -> RequestRecords:
        """Records of every request that has arrived."""
        ...
