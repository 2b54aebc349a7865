"""How long SageServe's optimisation problem takes to solve (section 5): 1.41 s and 33 s in the paper.

The paper's instances are not public. Ours are random: what runs, what comes (between a third and five thirds of what
runs could serve), throughputs, prices and start-up times are drawn evenly from ranges of a real fleet's order; as many
machines as there are and a tenth more, or without limit. A solution is taken when it is within a thousandth of the
optimum, as a share of what the fleet costs.

`python -m runners.reproduction.plan_time` prints the times; it takes some three minutes.
"""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.sageserve.capacity_plan import CapacityProblem, SolverConfig, solve
from serving_gym.runners.reporting.tables import print_table

SIZES = {(4, 3, 1): 1.41, (20, 20, 5): 33.0}  # models, regions, kinds of GPU; seconds in section 5
WINDOWS = 4  # quarters of an hour
TIME_LIMIT_S = 300.0  # after which the best plan so far is taken


def random_problem(
    models: int, regions: int, gpus: int, seed: int, epsilon: float = 0.8, spare: float | None = None
) -> CapacityProblem:
    """A problem of a size.

    Args:
        models: L.
        regions: R.
        gpus: G.
        seed: Of what is drawn.
        epsilon: Least share of its own peak that a region serves itself.
        spare: Machines beyond those in use, as a share of them; None: without limit.
    """
    rng = np.random.default_rng(seed)
    instances = rng.integers(2, 20, (models, regions, gpus))
    capacity = rng.uniform(500.0, 8000.0, (models, gpus))
    served = (instances * capacity[:, None]).sum(axis=2)[..., None]
    demand = rng.uniform(1 / 3, 5 / 3, (models, regions, 1)) * served
    vm_cost = rng.uniform(10.0, 100.0, gpus)
    machines = None if spare is None else np.floor(instances.sum(axis=0) * (1 + spare)).astype(np.int64)
    return CapacityProblem(
        instances,
        demand * rng.uniform(0.7, 1.0, (models, regions, WINDOWS)),
        capacity,
        vm_cost,
        vm_cost * rng.uniform(0.1, 0.5, (models, gpus)),
        epsilon,
        machines=machines,
    )


def seconds(size: tuple[int, int, int], epsilon: float, spare: float | None, seeds: int = 3) -> list[float]:
    """Seconds that solving takes, for each seed."""
    patient = SolverConfig(time_limit_s=TIME_LIMIT_S)
    return [solve(random_problem(*size, seed, epsilon, spare), patient).seconds for seed in range(seeds)]


def main() -> None:
    """Prints the times."""
    rows = []
    for size, paper in SIZES.items():
        for epsilon in (1.0, 0.8):
            for spare in (None, 0.1):
                took = seconds(size, epsilon, spare)
                rows.append((str(size), epsilon, spare, float(np.mean(took)), float(np.max(took)), paper))
    print_table(
        "Seconds to solve SageServe's optimisation problem",
        ("models, regions, GPUs", "epsilon", "spare machines", "mean", "longest", "paper"),
        rows,
    )


if __name__ == "__main__":
    main()
