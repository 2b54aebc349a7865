"""Algorithm 1 of OServe (section 4.3, Appendix E): flow-network-guided generation of a model deployment.

Readings of what the text leaves open.

* It describes two beginnings: section 4.3 takes replicas of the fewest GPUs that hold the model with pure tensor
  parallelism, Appendix E "a random uniform initial model deployment". The first run begins as section 4.3 says, the
  others (`restarts`) with random uniform deployments; the best run counts. restarts=0 is section 4.3 alone.
* `foreach` goes over the over- and under-utilised replicas as the flow found them. A replica that was merged into
  another meanwhile is skipped; one that a swap has changed takes its turn.
* What partners, parts and delta are drawn from: `mutations.py`.
* A replica is over-utilised when it works its whole span in the maximum flow, a corner of C1 to C3. Demand that leaves
  all replicas idle some of the time is speeded up for this until the deployment can just serve it; else nothing would
  be over-utilised and nothing could merge.
* The strategies are enumerated for all replicas, not only for changed ones; the beginning stays as it is, pure tensor
  parallelism, until something better is found.
* Deployments whose stages do not fit the machines are no deployments (source: ours).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.oserve.mutations import merge, split, swap
from serving_gym.envs.deployment.assignment import FULL
from serving_gym.envs.deployment.strategies import GAIN, Plan, PlanEvaluator, Sizes
from serving_gym.envs.machines.cluster import ReplicaKind
from serving_gym.envs.machines.placement import packable, stage_widths
from serving_gym.envs.workload.seeding import stream


@dataclass(frozen=True)
class GenerationConfig:
    """Constants of Algorithm 1.

    Attributes:
        idle_iterations: Iterations without a higher throughput after which a run ends. Source: section 4.3, 20.
        max_iterations: Most iterations of a run. Source: ours; the text has a maximum without a number.
        restarts: Further runs from random uniform deployments (Appendix E). Source of the number: ours. As an iteration
            changes every replica, one run soon finds nothing better: on 16 GPUs and random demands it ended up to 39 %
            short of the optimum, 3 to 10 % in the mean; with 64 restarts never more than 4 %.
    """

    idle_iterations: int = 20
    max_iterations: int = 1000
    restarts: int = 64

    def __post_init__(self) -> None:
        for name, least in (("idle_iterations", 1), ("max_iterations", 1), ("restarts", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Generated:
    """What a search found.

    Attributes:
        plan: The deployment.
        iterations: Iterations of all runs.
        programs: Linear programs solved.
    """

    plan: Plan
    iterations: int
    programs: int


def generate(evaluator: PlanEvaluator, config: GenerationConfig | None = None, seed: int = 0) -> Generated:
    """Algorithm 1.

    Args:
        evaluator: Cluster, capacities and demand.
        config: Constants; None: the defaults.
        seed: Of all random choices.

    Raises:
        ValueError: No uniform deployment fills the cluster.
    """
    config = config or GenerationConfig()
    random = stream(seed, "oserve", "generation")
    uniform = uniform_sizes(evaluator)
    best, iterations = None, 0
    for run in range(config.restarts + 1):
        size = uniform[0] if run == 0 else int(random.choice(uniform))
        climb = _Climb(evaluator, _uniform(evaluator, size, pure=run == 0), random)
        iterations += climb.run(config)
        if best is None or climb.plan.max_requests > best.max_requests * GAIN:
            best = climb.plan
    assert best is not None
    return Generated(best, iterations, evaluator.programs)


def uniform_sizes(evaluator: PlanEvaluator) -> tuple[int, ...]:
    """Sizes of replicas of which equal ones fill the cluster, small ones first.

    Raises:
        ValueError: There is none.
    """
    gpus = evaluator.cluster.num_gpus
    sizes = [size for size in sorted(evaluator.options) if gpus % size == 0]
    fitting = tuple(size for size in sizes if evaluator.best((size,) * (gpus // size)) is not None)
    if not fitting:
        raise ValueError(
            f"no replicas of equal size fill {gpus} GPUs; sizes with a strategy: {sorted(evaluator.options)}"
        )
    return fitting


def _uniform(evaluator: PlanEvaluator, size: int, pure: bool) -> Plan:
    """Replicas of one size; with `pure`, of tensor parallelism only where one can be that wide."""
    count = evaluator.cluster.num_gpus // size
    kind = ReplicaKind(size)
    if pure and kind in evaluator.table.kinds and packable(evaluator.cluster, stage_widths({kind: count})):
        return evaluator.plan({kind: count})
    plan = evaluator.best((size,) * count)
    assert plan is not None
    return plan


class _Climb:
    """One run of the loop."""

    def __init__(self, evaluator: PlanEvaluator, plan: Plan, random: np.random.Generator) -> None:
        self.evaluator, self.plan, self.random = evaluator, plan, random
        self.allowed = set(evaluator.options)

    def run(self, config: GenerationConfig) -> int:
        """Iterates until nothing has improved for long enough; returns the number of iterations."""
        idle, iterations = 0, 0
        while idle < config.idle_iterations and iterations < config.max_iterations:
            iterations += 1
            idle = 0 if self.iterate() else idle + 1
        return iterations

    def iterate(self) -> bool:
        """One iteration; whether the deployment is better than before. Else it is what it was."""
        found = self.evaluator.better(self._mutated(), self.plan.max_requests)
        if found is None:
            return False
        self.plan = found
        return True

    def _mutated(self) -> Sizes:
        """Sizes after every over- and under-utilised replica had its operation."""
        flow = self.evaluator.utilisation(self.plan)
        sizes = dict(enumerate(kind.num_gpus for kind, _ in flow))
        over = [r for r, (_, busy) in enumerate(flow) if busy >= FULL]
        under = [r for r, (_, busy) in enumerate(flow) if busy < FULL]
        for r in over:
            if r in sizes:
                if self._chance():
                    merge(sizes, r, over, self.allowed, self.random)
                else:
                    swap(sizes, under, [r], self.allowed, self.random)
        for r in under:
            if self._chance():
                split(sizes, r, self.allowed, self.random)
            else:
                swap(sizes, [r], over, self.allowed, self.random)
        return tuple(sorted(sizes.values(), reverse=True))

    def _chance(self) -> bool:
        """SelectOperation."""
        return bool(self.random.integers(2))
