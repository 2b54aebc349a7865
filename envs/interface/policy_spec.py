"""What a policy is told about the environment before an episode begins."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.envs.autoscaling.state import AutoscalingSpec
from serving_gym.envs.deployment.state import DeploymentSetting
from serving_gym.envs.interface.backend import SLO, ClusterSpec
from serving_gym.envs.interface.fleet import FleetSpec
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.sharing.spec import SharingSpec
from serving_gym.envs.sharing.state import SharingSetting


@dataclass(frozen=True)
class PolicySpec:
    """The setting a policy decides in.

    Attributes:
        cluster: The cluster.
        slos: Latency promises, by class.
        classes: Names of the request classes, in the order of `ClusterState.totals`.
        decision_interval_s: Time between decisions, seconds; in routing, from the first hold to the next offer.
        engines: What is known of the engines beforehand; None where their layout is what is decided.
        queue_capacity: Requests that the router may hold; one more is refused.
        deployment: Capacities and the past, where the cut into replicas is what is decided.
        sharing: Nodes, models and their times, where nodes are shared.
        autoscaling: Endpoints, capacities and start-up times, where the number of instances is what is decided.
    """

    cluster: ClusterSpec | FleetSpec | DeploymentSpec | SharingSpec
    slos: tuple[SLO, ...]
    classes: tuple[str, ...]
    decision_interval_s: float
    engines: NominalEngines | None = None
    queue_capacity: int = 0
    deployment: DeploymentSetting | None = None
    sharing: SharingSetting | None = None
    autoscaling: AutoscalingSpec | None = None

    @property
    def node(self) -> ClusterSpec:
        """The cluster, which must be a node.

        Raises:
            ValueError: it is a fleet.
        """
        if not isinstance(self.cluster, ClusterSpec):
            raise ValueError("this policy decides about the layout of a node; the environment has none")
        return self.cluster

    @property
    def fleet(self) -> NominalEngines:
        """The engines, which must be known beforehand.

        Raises:
            ValueError: the cluster is a node, whose engines are what is decided.
        """
        if self.engines is None:
            raise ValueError(
                "this policy decides where requests go; the environment has a node without fixed engines"
            )
        return self.engines

    @property
    def setting(self) -> DeploymentSetting:
        """What is known of replica kinds, which must be what is decided about.

        Raises:
            ValueError: the cluster is not cut into replicas.
        """
        if self.deployment is None:
            raise ValueError(
                "this policy decides how a cluster is cut into replicas; here another decision is taken"
            )
        return self.deployment

    @property
    def shared(self) -> SharingSetting:
        """What is known of nodes and models, whose sharing must be what is decided about.

        Raises:
            ValueError: nodes are not shared.
        """
        if self.sharing is None:
            raise ValueError("this policy decides how models share nodes; here another decision is taken")
        return self.sharing

    @property
    def scaling(self) -> AutoscalingSpec:
        """What is known of endpoints, whose number of instances must be what is decided.

        Raises:
            ValueError: it is not.
        """
        if self.autoscaling is None:
            raise ValueError(
                "this policy decides how many instances there are; here another decision is taken"
            )
        return self.autoscaling

    @property
    def num_base(self) -> int:
        """Base engines of the node."""
        return self.node.num_base
