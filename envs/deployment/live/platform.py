"""Which replicas servers on this machine can be, and what they are started with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.machines.cluster import Deployment, Replica, ReplicaKind


@dataclass(frozen=True)
class Platform:
    """GPUs, or sets of cores in their place, that replicas are made of.

    Attributes:
        base: How a replica of one of them is started.
        ranks: (G,), what each GPU of the cluster stands for: a GPU's number, or cores as `LaunchSettings.slot` has
            them.
    """

    base: LaunchSettings
    ranks: tuple[str, ...]

    def __post_init__(self) -> None:
        for rank in self.ranks:
            if self.base.device == "cpu":
                replace(self.base, slot=rank)  # it checks how cores are written
        if len(set(self.ranks)) < len(self.ranks):
            raise ValueError(f"backend.slots must differ where each is a rank, got {', '.join(self.ranks)}")

    def why_not(self, kind: ReplicaKind) -> str:
        """Why there can be no replica of a kind here; empty where there can."""
        if kind.role != "mixed":
            return (
                f"{kind}: live servers serve a request from end to end, as nothing here sends KV from a prefill worker "
                "to a decode worker"
            )
        if kind.pp > 1 and self.base.device == "cpu":
            return f"{kind}: on a CPU the first request ends an engine of vLLM that has pipeline stages"
        return ""

    def why_not_all(self, deployment: Deployment) -> str:
        """Why a deployment cannot be had here; empty where it can."""
        return next(filter(None, map(self.why_not, deployment.kinds)), "")

    def settings_of(self, replica: Replica) -> LaunchSettings:
        """How a replica is started in its place."""
        ranks = [self.ranks[gpu] for gpu in replica.gpus]
        joint = "|" if self.base.device == "cpu" else ","
        return replace(self.base, slot=joint.join(ranks), tp_size=replica.kind.tp, pp_size=replica.kind.pp)
