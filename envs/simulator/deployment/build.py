"""From a `DeploymentSpec` to what the kernel needs: the kinds of replicas that fit, their tables and their KV pools."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from serving_gym.envs.interface.fleet import ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.cluster import ReplicaKind, replica_spec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.fleet.build import blocks_of, kv_tokens, stack_tables
from serving_gym.envs.simulator.kernel.state import Tables
from serving_gym.envs.simulator.scheduling import check_scheduling, with_factors


@dataclass(frozen=True)
class Factory:
    """The constants of a cluster.

    Args:
        spec: The specification.
        kinds: Kinds of replicas whose memory holds the model.
        tables: What they cost and allow; a row for each factor, TP and PP, whatever the role.
        factors: Factors on iteration times.
        rows: Row of each kind at the first factor.
        blocks: KV blocks of each kind.
        num_slots: Most replicas that take new requests, twice: those that go and those that come are there together.
    """

    spec: DeploymentSpec
    kinds: tuple[ReplicaKind, ...]
    tables: Tables
    factors: tuple[float, ...]
    rows: dict[ReplicaKind, int]
    blocks: dict[ReplicaKind, int]
    num_slots: int

    @property
    def num_engines(self) -> int:
        """Engine slots; with disaggregated prefill the second half is for decode workers."""
        return self.num_slots * (2 if self.spec.disaggregation else 1)

    @property
    def max_replicas(self) -> int:
        """Most replicas of a deployment."""
        return self.spec.num_gpus // min(kind.num_gpus for kind in self.kinds)

    def row(self, kind: ReplicaKind, factor: float) -> int:
        """Row of the tables for a kind whose iterations take `factor` times as long."""
        return self.rows[kind] + self.factors.index(factor) * (len(self.tables.kinds) // len(self.factors))

    def slots_for(self, kind: ReplicaKind) -> range:
        """Slots where a replica of a kind may be."""
        return range(self.num_slots, self.num_engines) if kind.role == "decode" else range(self.num_slots)

    def capacity_tokens(self, kind: ReplicaKind) -> int:
        """Longest request that a replica holds, tokens."""
        return self.blocks[kind] * self.spec.block_size


@lru_cache(maxsize=16)
def build_factory(spec: DeploymentSpec, slos: tuple[SLO, ...], factors: tuple[float, ...] = ()) -> Factory:
    """Works out a cluster's constants.

    Args:
        spec: The cluster.
        slos: SLO of each request class.
        factors: Factors on iteration times that it may have beside 1.

    Raises:
        ValueError: the spec names something unknown, or the model fits no replica.
    """
    check_scheduling(spec, "cluster")
    kinds = tuple(kind for kind in spec.kinds if kv_tokens(replica_spec(kind, spec.replica)) > 0)
    if not kinds:
        raise ValueError(f"cluster.model {spec.model} fits no replica on {spec.num_gpus} x {spec.gpu}")
    alone = {kind: replica_spec(ReplicaKind(kind.tp, kind.pp), spec.replica) for kind in kinds}
    replicas: tuple[ReplicaSpec, ...] = tuple(dict.fromkeys(alone.values()))
    most = spec.num_gpus // min(kind.num_gpus for kind in kinds)
    levels = tuple(dict.fromkeys((1.0, *factors)))
    nominal = tuple((replica, 1.0) for replica in replicas)
    return Factory(
        spec=spec,
        kinds=kinds,
        tables=with_factors(stack_tables(nominal, slos, spec, spec.network_bytes_per_s, None), levels),
        factors=levels,
        rows={kind: replicas.index(alone[kind]) for kind in kinds},
        blocks={kind: blocks_of(alone[kind]) for kind in kinds},
        num_slots=2 * most,
    )
