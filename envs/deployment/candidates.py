"""What can be chosen: the present deployment, the best uniform ones, the end of a climb, and neighbours of both.

Each comes with two assignments: spread, in which every replica gets of each type what it can do of it, and apart, the
flow solution in which types are kept apart (`assignment.keep_apart`). The former is indifferent to what comes, the
latter spares answers the prompts of others.

Where the cluster allows prefill and decode workers, up to half of the choices divide it between these
(`division.Divisions`): the best division with decode workers of each size, and, if the present deployment is one, those
with one prefill worker more or less. Their requests are spread evenly.

A neighbour differs in one step: a replica becomes one of another kind, two become one, or one becomes two, and all of
the GPUs that this frees are used again. A climb goes from the better of the present deployment and the best uniform one
to its best neighbour for as long as that is better. Values are those of the lower level for a forecast
(`strategies.PlanEvaluator`); this is no algorithm of a paper, and what a policy proposes itself need not be among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement

from serving_gym.envs.deployment.division import Divisions
from serving_gym.envs.deployment.strategies import GAIN, Plan, PlanEvaluator
from serving_gym.envs.machines.cluster import ReplicaKind
from serving_gym.envs.machines.placement import packable, stage_widths

Kinds = tuple[tuple[ReplicaKind, int], ...]  # by kind, each with how many there are

UNIFORM = 4  # best uniform deployments among the candidates
CLIMB_STEPS = 8


@dataclass(frozen=True, eq=False)
class Candidate:
    """A deployment and an assignment to choose.

    Attributes:
        plan: Replicas of each kind and what they reach.
        stay: Whether it is the present one.
        apart: Whether types are kept apart.
    """

    plan: Plan
    stay: bool
    apart: bool

    @property
    def uniform(self) -> bool:
        """Whether all replicas are alike."""
        return len(self.plan.kinds) == 1

    @property
    def divided(self) -> bool:
        """Whether it has prefill and decode workers."""
        return is_divided(self.plan.kinds)


def find_candidates(
    evaluator: PlanEvaluator,
    present: Mapping[ReplicaKind, int],
    most: int,
    divisions: Divisions | None = None,
) -> list[Candidate]:
    """At most so many choices: the present deployment first, then by what they reach, each spread, then apart.

    Args:
        evaluator: Values deployments under the forecast.
        present: Replicas of each kind now.
        most: How many.
        divisions: Values divisions between prefill and decode workers under it; None: there are none.
    """
    here = plan_of(evaluator, present, divisions)
    stays = choices_of(here, stay=True)
    left = most - len(stays)
    divided = {} if divisions is None else _divided(divisions, present, min(most // 2, left))
    mixed = _mixed(_Search(evaluator), here, (left - len(divided)) // 2)
    ranked = sorted(
        {**divided, **mixed}.values(), key=lambda plan: (-plan.max_requests, str(_key(plan.kinds)))
    )
    return [*stays, *(choice for plan in ranked for choice in choices_of(plan, stay=False))]


def _mixed(search: _Search, here: Plan, most: int) -> dict[Kinds, Plan]:
    """At most so many deployments of replicas that do both, the present one not among them."""
    start = [] if is_divided(here.kinds) else [here]
    uniform = sorted(map(search.plan, search.uniform()), key=lambda plan: -plan.max_requests)[:UNIFORM]
    near = search.neighbours(here) if start else []
    top = search.climb(max([*start, *uniform], key=lambda plan: plan.max_requests))
    beyond = search.neighbours(top)
    chosen = {_key(plan.kinds): plan for plan in (top, *uniform)}
    half = max((most - len(chosen)) // 2, 0)
    for plans in (near[:half], beyond, near):
        for plan in plans:
            if len(chosen) <= most:
                chosen.setdefault(_key(plan.kinds), plan)
    chosen.pop(_key(here.kinds), None)
    return dict(sorted(chosen.items(), key=lambda item: (-item[1].max_requests, item[0]))[:most])


def _divided(divisions: Divisions, present: Mapping[ReplicaKind, int], most: int) -> dict[Kinds, Plan]:
    """At most so many divisions, the present one not among them."""
    near = divisions.neighbours(present) if is_divided(present) else []
    found = {_key(plan.kinds): plan for plan in (*near, *divisions.best())}
    found.pop(_key(present), None)
    return dict(list(found.items())[:most])


def plan_of(evaluator: PlanEvaluator, kinds: Mapping[ReplicaKind, int], divisions: Divisions | None) -> Plan:
    """A deployment with its value, of whatever replicas it is.

    Args:
        evaluator: Values deployments of replicas that do both.
        kinds: Replicas of each kind.
        divisions: Values the others.
    """
    if divisions is not None and is_divided(kinds):
        return divisions.plan(kinds)
    return evaluator.plan(kinds)


def is_divided(kinds: Mapping[ReplicaKind, int]) -> bool:
    """Whether some replicas only prefill, or only decode."""
    return any(kind.role != "mixed" for kind in kinds)


def choices_of(plan: Plan, stay: bool) -> list[Candidate]:
    """A deployment with each of its assignments; of one replica, and of prefill and decode workers, there is one."""
    several = sum(plan.kinds.values()) > 1 and not is_divided(plan.kinds)
    return [Candidate(plan, stay, apart) for apart in ((False, True) if several else (False,))]


def best_uniform(evaluator: PlanEvaluator) -> Plan:
    """The best deployment of replicas that are all alike.

    Raises:
        ValueError: None fits.
    """
    search = _Search(evaluator)
    plans = [search.plan(kinds) for kinds in search.uniform()]
    if not plans:
        raise ValueError("no replica fits the cluster")
    return max(plans, key=lambda plan: plan.max_requests)


def _key(kinds: Mapping[ReplicaKind, int]) -> Kinds:
    return tuple(sorted((kind, count) for kind, count in kinds.items() if count))


class _Search:
    """Values and neighbours, each worked out once."""

    def __init__(self, evaluator: PlanEvaluator) -> None:
        self.evaluator = evaluator
        rows = [row for rows in evaluator.options.values() for row in rows]
        self.kinds = sorted(
            kind for kind in (evaluator.table.kinds[row] for row in rows) if kind.role == "mixed"
        )
        self._plans: dict[Kinds, Plan] = {}

    def plan(self, kinds: Kinds) -> Plan:
        """A deployment with its value."""
        if kinds not in self._plans:
            self._plans[kinds] = self.evaluator.plan(dict(kinds))
        return self._plans[kinds]

    def uniform(self) -> list[Kinds]:
        """As many replicas of each kind as fit."""
        found: list[Kinds] = []
        for kind in self.kinds:
            counts = range(self.evaluator.cluster.num_gpus // kind.num_gpus, 0, -1)
            count = next((c for c in counts if self._fits({kind: c})), 0)
            if count:
                found.append(((kind, count),))
        return found

    def climb(self, plan: Plan) -> Plan:
        """Where going to the best neighbour ends."""
        for _ in range(CLIMB_STEPS):
            best = next(iter(self.neighbours(plan)), plan)
            if best.max_requests <= plan.max_requests * GAIN:
                return plan
            plan = best
        return plan

    def neighbours(self, plan: Plan) -> list[Plan]:
        """Deployments that are one step away, best first."""
        present = Counter(dict(plan.kinds))
        keys = dict.fromkeys(_key(kinds) for kinds in self._steps(present) if self._fits(kinds))
        keys.pop(_key(present), None)
        return sorted(map(self.plan, keys), key=lambda other: (-other.max_requests, _key(other.kinds)))

    def _fits(self, kinds: Mapping[ReplicaKind, int]) -> bool:
        return packable(self.evaluator.cluster, stage_widths(kinds))

    def _steps(self, present: Counter[ReplicaKind]) -> Iterator[Counter[ReplicaKind]]:
        used = sum(kind.num_gpus * count for kind, count in present.items())
        idle = self.evaluator.cluster.num_gpus - used
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
