"""A simulated cluster that is cut into replicas, as its control plane knows it: replicas, without commands."""

from __future__ import annotations

from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.cluster import Deployment, Replica, ReplicaKind
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.body import Body
from serving_gym.envs.simulator.deployment.build import build_factory


class Replicas(Body):
    """The replicas of a simulated cluster.

    Attributes:
        deployment: Replicas in force, or those to be when the switch under way is done.
        standing: Replica in each slot that is not empty; those that go and those that come included.

    Args:
        spec: The cluster.
        slos: SLO of each request class, in the order of the workload's classes.
        levels: Factors on iteration times that episodes may draw.

    Raises:
        ValueError: the spec names something unknown, or the model fits no replica.
    """

    deployment: Deployment
    standing: dict[int, Replica]

    def __init__(self, spec: DeploymentSpec, slos: tuple[SLO, ...], levels: tuple[float, ...] = ()) -> None:
        self.spec = spec
        self.factory = build_factory(spec, slos, levels)
        super().__init__(spec, self.factory.tables, slos)

    def holds(self, kind: ReplicaKind, prompt: int, max_output: int) -> bool:
        """Whether a replica of a kind could hold what it does of a request: its prompt, and what it may answer."""
        return prompt + (1 if kind.role == "prefill" else max_output) <= self.factory.capacity_tokens(kind)

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold `tokens` tokens."""
        return -(-tokens // self.spec.block_size)
