"""What can be chosen: the present deployment, the best uniform ones, the end of a climb, and neighbours of both.

Each comes with two assignments: spread, in which every replica gets of each type what it can do of it, and apart, the
flow solution in which types are kept apart (`assignment.keep_apart`). The former is indifferent to what comes, the
latter spares answers the prompts of others.

A neighbour differs in one step: a replica becomes one of another kind, two become one, or one becomes two, and all of
the GPUs that this frees are used again. A climb goes from the better of the present deployment and the best uniform one
to its best neighbour for as long as that is better. Values are those of the lower level for a forecast
(`strategies.Worth`); this is no algorithm of a paper, and what a policy proposes itself need not be among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement

from envs.deployment.strategies import GAIN, Plan, Worth
from envs.machines.cluster import ReplicaKind
from envs.machines.placement import packable, stage_widths

Kinds = tuple[tuple[ReplicaKind, int], ...]  # by kind, each with how many there are

UNIFORM = 4  # best uniform deployments among the candidates
CLIMB_STEPS = 8


@dataclass(frozen=True, eq=False)
class Candidate:
    """A deployment and an assignment to choose.

    Attributes:
        plan: Replicas of each kind and what they reach.
        stay: Whether it is the present one.
        uniform: Whether all replicas are alike.
        apart: Whether types are kept apart.
    """

    plan: Plan
    stay: bool
    uniform: bool
    apart: bool


def find_candidates(worth: Worth, present: Mapping[ReplicaKind, int], most: int) -> list[Candidate]:
    """At most so many choices: the present deployment first, then by what they reach, each spread, then apart.

    Args:
        worth: Values deployments under the forecast.
        present: Replicas of each kind now.
        most: How many.
    """
    search, most = _Search(worth), most // 2
    here = search.plan(_key(present))
    uniform = sorted(map(search.plan, search.uniform()), key=lambda plan: -plan.reachable)[:UNIFORM]
    near = search.neighbours(here)
    top = search.climb(max([here, *uniform], key=lambda plan: plan.reachable))
    beyond = search.neighbours(top)
    chosen = {_key(plan.kinds): plan for plan in (top, *uniform)}
    half = max((most - 1 - len(chosen)) // 2, 0)
    for plans in (near[:half], beyond, near):
        for plan in plans:
            if len(chosen) < most:
                chosen.setdefault(_key(plan.kinds), plan)
    chosen.pop(_key(here.kinds), None)
    ranked = sorted(chosen.values(), key=lambda plan: (-plan.reachable, _key(plan.kinds)))[: most - 1]
    return [choice for plan in (here, *ranked) for choice in choices_of(plan, plan is here)]


def choices_of(plan: Plan, stay: bool) -> list[Candidate]:
    """A deployment with each of its assignments; with one replica they are the same."""
    assignments = (False, True) if sum(plan.kinds.values()) > 1 else (False,)
    return [Candidate(plan, stay, len(plan.kinds) == 1, apart) for apart in assignments]


def best_uniform(worth: Worth) -> Plan:
    """The best deployment of replicas that are all alike.

    Raises:
        ValueError: None fits.
    """
    search = _Search(worth)
    plans = [search.plan(kinds) for kinds in search.uniform()]
    if not plans:
        raise ValueError("no replica fits the cluster")
    return max(plans, key=lambda plan: plan.reachable)


def _key(kinds: Mapping[ReplicaKind, int]) -> Kinds:
    return tuple(sorted((kind, count) for kind, count in kinds.items() if count))


class _Search:
    """Values and neighbours, each worked out once."""

    def __init__(self, worth: Worth) -> None:
        self.worth = worth
        rows = [row for rows in worth.options.values() for row in rows]
        self.kinds = sorted(kind for kind in (worth.table.kinds[row] for row in rows) if kind.role == "mixed")
        self._plans: dict[Kinds, Plan] = {}

    def plan(self, kinds: Kinds) -> Plan:
        """A deployment with its value."""
        if kinds not in self._plans:
            self._plans[kinds] = self.worth.plan(dict(kinds))
        return self._plans[kinds]

    def uniform(self) -> list[Kinds]:
        """As many replicas of each kind as fit."""
        found: list[Kinds] = []
        for kind in self.kinds:
            counts = range(self.worth.cluster.num_gpus // kind.num_gpus, 0, -1)
            count = next((c for c in counts if self._fits({kind: c})), 0)
            if count:
                found.append(((kind, count),))
        return found

    def climb(self, plan: Plan) -> Plan:
        """Where going to the best neighbour ends."""
        for _ in range(CLIMB_STEPS):
            best = next(iter(self.neighbours(plan)), plan)
            if best.reachable <= plan.reachable * GAIN:
                return plan
            plan = best
        return plan

    def neighbours(self, plan: Plan) -> list[Plan]:
        """Deployments that are one step away, best first."""
        present = Counter(dict(plan.kinds))
        keys = dict.fromkeys(_key(kinds) for kinds in self._steps(present) if self._fits(kinds))
        keys.pop(_key(present), None)
        return sorted(map(self.plan, keys), key=lambda other: (-other.reachable, _key(other.kinds)))

    def _fits(self, kinds: Mapping[ReplicaKind, int]) -> bool:
        return packable(self.worth.cluster, stage_widths(kinds))

    def _steps(self, present: Counter[ReplicaKind]) -> Iterator[Counter[ReplicaKind]]:
        used = sum(kind.num_gpus * count for kind, count in present.items())
        idle = self.worth.cluster.num_gpus - used
        singles = [(kind,) for kind in present if present[kind]]
        pairs = [
            pair for pair in combinations_with_replacement(sorted(present), 2) if not Counter(pair) - present
        ]
        for leaving in (*singles, *pairs):
            room = sum(kind.num_gpus for kind in leaving) + idle
            rest = present - Counter(leaving)
            for kind in self.kinds:
                if kind.num_gpus == room:
                    yield rest + Counter({kind: 1})
            if len(leaving) == 1 or idle:
                for first, second in combinations_with_replacement(self.kinds, 2):
                    if first.num_gpus + second.num_gpus == room:
                        yield rest + Counter((first, second))
        for kind in self.kinds:
            if idle and kind.num_gpus <= idle:
                yield present + Counter({kind: 1})
