"""What a policy knows of the environment before an episode."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.slo import SLO


class Setting(Protocol):
    """Base class of an environment's own part of the policy specification.

    Attributes:
        decision: The kind of decision, as in "this policy decides how models share nodes".
    """

    decision: ClassVar[str]


_INTERVAL = "decision_interval_s"
SettingT = TypeVar("SettingT", bound=Setting)


@dataclass(frozen=True)
class PolicySpec:
    """The setting a policy decides in.

    Attributes:
        cluster: The cluster's specification: a `ClusterSpec`, a `FleetSpec`, or the environment's own.
        slos: SLOs, by class.
        classes: Names of the request classes, in the order of `ClusterState.totals`.
        decision_interval_s: Time between decisions, seconds; in routing, from the first hold to the next offer.
        engines: Nominal properties of the engines; None if the policy decides their layout.
        queue_capacity: Most requests that the router may hold; further ones are refused.
        admission: Whether the router may also refuse a request at once, or defer it.
        setting: The environment's own part (capacities, nodes, endpoints); None: nothing.
    """

    cluster: object
    slos: tuple[SLO, ...]
    classes: tuple[str, ...]
    decision_interval_s: float
    engines: NominalEngines | None = None
    queue_capacity: int = 0
    admission: bool = False
    setting: Setting | None = None

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
        """The engines, which must be known before the episode.

        Raises:
            ValueError: the cluster is a node, whose layout the policy decides.
        """
        if self.engines is None:
            raise ValueError(
                "this policy decides where requests go; the environment has a node without fixed engines"
            )
        return self.engines

    def setting_of(self, kind: type[SettingT]) -> SettingT:
        """The environment's own part, which must be of a class.

        Args:
            kind: Class of the setting that the policy needs, such as `envs.deployment.state.DeploymentSetting`.

        Raises:
            ValueError: the environment has another setting or none, so its decisions are of another kind.
        """
        if not isinstance(self.setting, kind):
            raise ValueError(f"this policy decides {kind.decision}; here another decision is taken")
        return self.setting

    def asked_every(self, period_s: float | None) -> Self:
        """The same setting for a policy that is asked at a period of its own.

        Args:
            period_s: Time between its decisions, seconds; None: the environment's.
        """
        if period_s is None:
            return self
        setting: Any = self.setting
        if is_dataclass(setting) and _INTERVAL in {item.name for item in fields(setting)}:
            setting = replace(setting, **{_INTERVAL: period_s})  # type: ignore[type-var]
        return replace(self, decision_interval_s=period_s, setting=setting)

    @property
    def num_base(self) -> int:
        """Base engines of the node."""
        return self.node.num_base
