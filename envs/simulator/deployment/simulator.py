"""A simulated cluster that is cut into replicas anew while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.envs.interface.commands import Receipt
from serving_gym.envs.interface.randomise import NOMINAL, EpisodeFactors
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.machines.cluster import Deployment, Replica
from serving_gym.envs.simulator.deployment.plane import AD_HOC, RELOAD, SWITCHES, DeploymentPlane
from serving_gym.envs.simulator.deployment.replicas import Replicas
from serving_gym.envs.simulator.fleet.build import context_tokens

if TYPE_CHECKING:
    from serving_gym.envs.workload.schema import Workload


class DeploymentSimulator(Replicas):
    """A simulated cluster that is cut into replicas anew.

    A workload type is to the kernel an endpoint of its own over all engines, whose requests go to them by the shares of
    the assignment; while a switch is under way, and where no replica with a share can hold a request, they go to the
    least loaded replica that can.

    Attributes, arguments and errors are those of `Replicas`.
    """

    @property
    def clockwork(self) -> DeploymentPlane:
        """The control plane."""
        return self.plane

    def reset(
        self,
        workload: Workload,
        types: NDArray[np.int64] | None = None,
        num_types: int = 1,
        factors: EpisodeFactors = NOMINAL,
    ) -> None:
        """Empties the cluster and prepares to serve `workload` from time zero; there is no replica yet.

        Args:
            workload: Requests.
            types: (N,), workload type of each; None: all are of one.
            num_types: J.
            factors: What was drawn for the episode.
        """
        self.factors = factors
        labels = np.zeros(len(workload), np.int32) if types is None else types.astype(np.int32)
        self.begin(
            workload,
            self.factory.num_engines,
            labels,
            num_types,
            disaggregated=self.spec.disaggregation,
        )
        endpoints, most = self.world.endpoints, self.factory.num_slots
        endpoints["first"], endpoints["last"] = 0, most
        endpoints["first_decode"], endpoints["last_decode"] = most, self.factory.num_engines
        self.world.engines["total_blocks"] = self.world.engines["capacity_blocks"] = 0
        self.deployment = Deployment(self.spec.cluster)
        self.standing = {}
        self.plane = DeploymentPlane(self)
        self._limit_requests()

    # -- commands ------------------------------------------------------------------------------------------------------

    def deploy(self, deployment: Deployment, shares: ArrayLike, switch: str = AD_HOC) -> Receipt:
        """Begins a switch to a deployment, and lets requests go where an assignment says.

        Before anything has happened it is the choice of the first deployment, and takes no time.

        Args:
            deployment: Replicas in their places; those that stand already go on.
            shares: (K, J), of each type's requests that go to each replica, relative; decode workers take no new ones.
            switch: "ad_hoc" or "reload".
        """
        self.stale = True
        weights = np.asarray(shares, np.float64)
        reason = self._why_not(deployment, weights, switch)
        if reason:
            self.refused_commands += 1
            return Receipt(False, reason)
        before, self.deployment = self.deployment, deployment
        old, new = set(before.replicas), set(deployment.replicas)
        going = tuple(e for e, replica in self.standing.items() if replica in old - new)
        at_once = self.untouched
        if at_once:
            for e in going:
                self.plane.remove(e)
        coming = self._slots([replica for replica in deployment.replicas if replica not in old])
        self.standing.update(coming)
        self._share_out(weights)
        if at_once:
            for e, replica in coming:
                self.plane.enlist(e, replica)
        elif going or coming:
            self.plane.begin_switch(before, going, coming, switch == RELOAD)
        self._limit_requests()
        self.dispatch()
        return Receipt(True)

    def _why_not(self, deployment: Deployment, shares: NDArray[np.float64], switch: str) -> str:
        if switch not in SWITCHES:
            return f"switch must be one of {', '.join(SWITCHES)}, got {switch!r}"
        if deployment.cluster != self.spec.cluster:
            return "the deployment is for another cluster"
        for kind in deployment.kinds:
            if kind not in self.factory.kinds:
                return f"{kind} is no kind of replica that {self.spec.model} allows here"
        roles = {kind.role for kind in deployment.kinds}
        if not deployment.replicas or len(roles & {"prefill", "decode"}) == 1:
            return (
                "a deployment needs a replica, and prefill and decode workers only together; "
                f"got {str(deployment) or 'none'}"
            )
        expected = (len(deployment.replicas), len(self.world.endpoints))
        if shares.shape != expected or not np.isfinite(shares).all() or (shares < 0).any():
            return f"shares must be {expected}, finite and not negative; got {shares.shape}"
        if self.plane.switch is not None and deployment != self.deployment:
            return "a switch is under way"
        return ""

    def _slots(self, replicas: Sequence[Replica]) -> tuple[tuple[int, Replica], ...]:
        """Empty slots for new replicas."""
        taken = set(self.standing)
        found = []
        for replica in replicas:
            e = next(slot for slot in self.factory.slots_for(replica.kind) if slot not in taken)
            taken.add(e)
            found.append((e, replica))
        return tuple(found)

    def _share_out(self, weights: NDArray[np.float64]) -> None:
        """Sets where requests of each type go."""
        shares = np.zeros(self.world.shares.shape)
        for e, replica in self.standing.items():
            if replica in self.deployment.replicas and replica.kind.role != "decode":
                shares[:, e] = weights[self.deployment.replicas.index(replica)]
        if not np.array_equal(shares, self.world.shares):
            self.world.shares[:] = shares
            self.world.credit[:] = 0.0

    def _limit_requests(self) -> None:
        """Sets how long requests may become: `max_model_len`, and what a replica of the deployment could hold.

        Prefill workers hold prompts alone. Beside replicas that do both, which new requests may go to instead, they are
        to hold whole requests.
        """
        tokens = {"prefill": 0, "decode": 0, "mixed": 0}
        for kind in self.deployment.kinds:
            tokens[kind.role] = max(tokens[kind.role], self.factory.capacity_tokens(kind))
        divided = bool(tokens["prefill"]) and not tokens["mixed"]
        limit = (
            tokens["decode"] if divided else max(tokens["mixed"], min(tokens["prefill"], tokens["decode"]))
        )
        self.world.endpoints["max_request_tokens"] = min(limit, context_tokens(self.spec.replica))
        self.world.endpoints["max_prompt_tokens"] = tokens["prefill"] - 1 if divided else 0

    # -- what is seen --------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> NDArray[np.int64]:
        """(K,), slot of each replica of `deployment`."""
        where = {replica: e for e, replica in self.standing.items()}
        return np.array([where[replica] for replica in self.deployment.replicas], np.int64)

    @property
    def in_service(self) -> NDArray[np.bool_]:
        """(K,), which replicas of `deployment` serve."""
        return np.asarray(self.world.engines["status"][self.slots] == EngineStatus.ACTIVE)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the cluster has been kept, idle GPUs included."""
        return self.spec.num_gpus * self.now_s

    def fork(self) -> DeploymentSimulator:
        """A copy that continues to the same numbers and shares nothing that changes."""
        copy = self._fork_body()
        copy.spec, copy.factory, copy.deployment = self.spec, self.factory, self.deployment
        copy.standing = dict(self.standing)
        copy.plane = self.plane.fork(copy)
        return copy
