"""What a policy knows when it chooses a deployment, and what it can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.deployment.division import PREFILL, Divisions
from serving_gym.envs.deployment.profiling import PRECISION, CapacityTable, WorkloadType, profile
from serving_gym.envs.deployment.strategies import PlanEvaluator
from serving_gym.envs.interface.fleet import ReplicaSpec
from serving_gym.envs.machines.cluster import Cluster, Deployment, ReplicaKind, replica_spec
from serving_gym.envs.simulator.fleet.build import kv_tokens

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Deploy:
    """Switch to a deployment, and send requests where an assignment says.

    Replicas that both have go on. At the first decision it costs nothing.

    Attributes:
        deployment: Replicas in their places.
        shares: (K, J), of each type's requests that go to each replica, relative; None: from the flow solution for the
            environment's forecast, types kept apart.
        switch: "ad_hoc" (weights and long KV caches come from other GPUs) or "reload" (weights come from storage, all
            running requests are computed again).
    """

    deployment: Deployment
    shares: FloatArray | None = None
    switch: str = "ad_hoc"


@dataclass(frozen=True, eq=False)
class DeploymentSetting:
    """What is known before an episode, from the training split of the workload.

    Attributes:
        cluster: Machines and links.
        model: Name of the model.
        table: Capacities of replica kinds, n_kj, requests a span.
        mean_tokens: (J, 2), mean prompt and output length of each type, tokens.
        past: (T, J), requests of each type in the spans of a training episode.
        types: (J,), lengths that were observed of each type, for a policy that profiles in its own way.
        replica: What is profiled, on one GPU; None: nothing but the table is known.
        scheduling: How engines schedule, fields of `FleetSpec`.
        longest_tokens: Longest request, prompt and declared answer, within `max_model_len`; 0: not known. Replicas that
            could not hold it would have it refused.
        longest_prompt_tokens: Longest prompt, which is what prefill workers are to hold; 0: not known.
    """

    decision: ClassVar[str] = "how a cluster is cut into replicas"

    cluster: Cluster
    model: str
    table: CapacityTable
    mean_tokens: FloatArray
    past: FloatArray
    types: tuple[WorkloadType, ...] = ()
    replica: ReplicaSpec | None = None
    scheduling: Mapping[str, Any] = field(default_factory=dict)
    longest_tokens: int = 0
    longest_prompt_tokens: int = 0

    @property
    def num_types(self) -> int:
        """J."""
        return self.table.num_types

    @property
    def order(self) -> NDArray[np.int64]:
        """(J,), types by mean answer, the longest first: in which they are kept apart."""
        return np.argsort(-self.mean_tokens[:, 1], kind="stable")

    def evaluator(self, demand: FloatArray) -> PlanEvaluator:
        """Values deployments of replicas that both prefill and decode, under a demand, (J,) requests a span."""
        return PlanEvaluator(self.cluster, self._mixed, demand)

    @cached_property
    def _mixed(self) -> CapacityTable:
        return self.table.of_role("mixed")

    def holds(self, kind: ReplicaKind) -> bool:
        """Whether a replica of a kind has KV memory for what it does of the longest request."""
        if kind not in self._holds:
            longest = self.longest_prompt_tokens + 1 if kind.role == PREFILL else self.longest_tokens
            self._holds[kind] = self.replica is None or kv_tokens(replica_spec(kind, self.replica)) >= longest
        return self._holds[kind]

    @cached_property
    def _holds(self) -> dict[ReplicaKind, bool]:
        return {}

    def divisions(self, demand: FloatArray) -> Divisions | None:
        """Values divisions between prefill and decode workers under a demand; None where there are no such workers."""
        if all(kind.role == "mixed" for kind in self.table.kinds):
            return None
        return Divisions(self.cluster, self.table, demand, self.holds)

    def profiled(
        self, method: str, precision: float = PRECISION, tpot_s: float | None = None
    ) -> CapacityTable:
        """Capacities of replicas that both prefill and decode, worked out in another way than the environment's own.

        Args:
            method: As in `envs.deployment.profiling`.
            precision: Half of the 95 % interval of a measured capacity, share of it.
            tpot_s: Time between tokens that replicas keep, seconds; None: they are saturated.

        Raises:
            ValueError: the method is unknown or cannot keep `tpot_s`, or only the table is known.
        """
        if self.replica is None:
            raise ValueError("capacities cannot be profiled anew: the setting holds their table alone")
        kinds = self._mixed.kinds
        return profile(
            self.replica, kinds, self.types, self.table.span_s, method, self.scheduling, precision, tpot_s
        )


@dataclass(frozen=True, slots=True)
class SwitchUnderway:
    """What a policy sees of a switch.

    Attributes:
        started_s: When it began.
        due_s: When its present phase ends at the latest.
        draining: Whether requests are waited for; else weights are on their way or engines start.
    """

    started_s: float
    due_s: float
    draining: bool


@dataclass(frozen=True, eq=False)
class DeploymentState:
    """What a policy may know at a decision.

    Attributes:
        now_s: Time.
        deployment: Replicas in force, or those to be when the switch under way is done.
        engines: (K,) ENGINE_STATE_DTYPE, of each of its replicas; those to be are inactive.
        shares: (K, J), where requests of each type go, relative.
        switch: The switch under way.
        history: (T, J), requests of each type in every span so far, told apart by predicted output lengths.
        forecast: (J,), the environment's own forecast of the next span.
        num_pooled: Requests that no replica could take yet.
        pooled_tokens: Their tokens to prefill.
        totals: (num_classes, len(TOTALS)), as `ClusterState.totals`.
        coming: (T', J), requests of each type in this span and all that follow: the future, for clairvoyant references
            alone.
    """

    now_s: float
    deployment: Deployment
    engines: NDArray[np.void]
    shares: FloatArray
    switch: SwitchUnderway | None
    history: FloatArray
    forecast: FloatArray
    num_pooled: int
    pooled_tokens: int
    totals: FloatArray
    coming: FloatArray
