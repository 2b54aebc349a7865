"""What a policy is told about the environment before an episode begins."""

from __future__ import annotations

from dataclasses import dataclass

from envs.backend import SLO, ClusterSpec


@dataclass(frozen=True)
class PolicySpec:
    """The setting a policy decides in.

    Attributes:
        cluster: The cluster.
        slos: Latency promises, by class.
        classes: Names of the request classes, in the order of `ClusterState.totals`.
        decision_interval_s: Time between decisions, seconds.
    """

    cluster: ClusterSpec
    slos: tuple[SLO, ...]
    classes: tuple[str, ...]
    decision_interval_s: float

    @property
    def num_base(self) -> int:
        """Base engines of the node."""
        return self.cluster.num_base
