"""Algorithm 2 of OServe (section 5.2, Appendix F): the greedy plan of an ad hoc model switch.

Readings. Section 5.2 calls the source chosen the one "with the least data sent so far", Algorithm 2 takes the least
C_{s->t}, which counts what s has sent to this target only; the listing is followed (`balance="pair"`), and the sentence
is there as `balance="source"`. Of equal sources the lowest GPU is taken; shards come layer by layer, targets by number.
A shard that no GPU holds is loaded from storage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from serving_gym.envs.machines.cluster import Cluster
from serving_gym.envs.machines.shards import Shard

STORAGE = -1  # source of shards that no GPU holds
BALANCES = ("pair", "source")


@dataclass(frozen=True)
class Transfer:
    """Transfer of one shard.

    Attributes:
        shard: m, its row in the list that the plan was made for.
        source: s, a GPU, or STORAGE.
        target: t, a GPU.
        size_bytes: V_{m,t}.
    """

    shard: int
    source: int
    target: int
    size_bytes: float


def greedy_switch_plan(
    cluster: Cluster, shards: Sequence[Shard], balance: str = "pair"
) -> tuple[Transfer, ...]:
    """Algorithm 2.

    Args:
        cluster: The cluster, for GPUs that share a machine.
        shards: Model shards with S_m and T_m.
        balance: "pair" or "source".

    Raises:
        ValueError: The balance is unknown.
    """
    if balance not in BALANCES:
        raise ValueError(f"balance={balance!r} is not allowed; choose one of {', '.join(BALANCES)}")
    load: defaultdict[tuple[int, int], float] = defaultdict(float)  # C_{s->t}
    plan = []
    ways: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, list[int]]]] = {}
    for m, shard in enumerate(shards):
        held = (shard.sources, shard.targets)
        if held not in ways:
            ways[held] = _ways(cluster, *held)
        for t, candidates in ways[held]:
            counted = t if balance == "pair" else STORAGE  # one counter per pair, or per source
            source = candidates[0]
            if len(candidates) > 1:
                source = min(candidates, key=lambda s: (load[s, counted], s))
            load[source, counted] += shard.size_bytes
            plan.append(Transfer(m, source, t, shard.size_bytes))
    return tuple(plan)


def _ways(
    cluster: Cluster, sources: tuple[int, ...], targets: tuple[int, ...]
) -> list[tuple[int, list[int]]]:
    """Targets that lack a shard, each with its possible source GPUs."""
    found = []
    for t in targets:
        if t not in sources:
            near = [s for s in sources if cluster.machine_of(s) == cluster.machine_of(t)]
            found.append((t, near or list(sources) or [STORAGE]))
    return found
