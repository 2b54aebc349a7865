"""SageServe's optimisation problem (section 5): how the number of instances should change for the next hour.

By model i, region j and kind of GPU k, n_ijk instances change by whole numbers delta_ijk so that

    sum_k (n_ijk + delta_ijk) theta_ik            >= max_w epsilon rho_ij(w)         for every model and region
    sum_j sum_k (n_ijk + delta_ijk) theta_ik      >= max_w sum_j rho_ij(w)           for every model
    delta_ijk                                     >= -n_ijk

at the least  sum_k alpha_k sum_ij delta_ijk + sum_ijk sigma_ik max(0, delta_ijk).  The text speaks besides of "the
available VM capacities" (section 5) and of fewest and most instances of an endpoint (section 2.1): both are further
constraints here. Where capacities do not suffice, nothing would be feasible; then as little demand as may be is left
uncovered, and that at the least cost. Solved by HiGHS (scipy.optimize.milp).

Only machines join different models, and only what is rerouted joins regions. So each model is solved by itself first,
and each of its regions where none may rely on another; where that asks for more machines than there are, all models are
solved together, region by region again where none may rely on another. The variables are the instances that are kept,
at most n, and those that are started: as a start costs more, one is started only where all are kept, and no constraint
need say so. The gap up to which a solution is optimal is a share of what the fleet costs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from serving_gym.calibration.fields import check_not_negative, check_positive, check_within

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_INFEASIBLE = 2  # status of scipy.optimize.milp
_TOLERANCE = 1e-6  # share of a demand that is not worth an instance


@dataclass(frozen=True, eq=False)
class CapacityProblem:
    """L models, R regions, G kinds of GPU, W windows of the next hour.

    Attributes:
        instances: n, (L, R, G), present instances.
        demand_tps: rho, (L, R, W), prompt tokens/s expected from the clients of a region.
        capacity_tps: theta, (L, G), prompt tokens/s that an instance serves; 0: the model does not run there.
        vm_cost: alpha, (G,), cost of a machine.
        start_cost: sigma, (L, G), cost of a start.
        epsilon: Least share of a region's own peak that it serves itself, over 0 to 1; the rest may go elsewhere.
        fewest: Fewest instances of a model in a region.
        most: Most of them.
        machines: (R, G), machines of all models together; None: there are enough.
    """

    instances: IntArray
    demand_tps: FloatArray
    capacity_tps: FloatArray
    vm_cost: FloatArray
    start_cost: FloatArray
    epsilon: float = 1.0
    fewest: int = 0
    most: int | None = None
    machines: IntArray | None = None

    def __post_init__(self) -> None:
        models, regions, gpus = self.instances.shape
        shapes = {
            "demand_tps": (models, regions, *self.demand_tps.shape[2:]),
            "capacity_tps": (models, gpus),
            "vm_cost": (gpus,),
            "start_cost": (models, gpus),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape or (name == "demand_tps" and self.demand_tps.ndim != 3):
                raise ValueError(f"{name} does not go with instances of the shape {self.instances.shape}")
        if self.machines is not None and self.machines.shape != (regions, gpus):
            raise ValueError(f"machines must have the shape {(regions, gpus)}, got {self.machines.shape}")
        check_within(self, "(0, 1]", "epsilon")
        if self.fewest < 0 or (self.most is not None and self.most < self.fewest):
            raise ValueError(f"fewest must lie between 0 and most ({self.most}), got {self.fewest}")
        for name in ("instances", "demand_tps", "capacity_tps", "vm_cost", "start_cost"):
            values = getattr(self, name)
            if not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"{name} must be finite and not negative")


@dataclass(frozen=True, eq=False)
class CapacityPlan:
    """What is to change.

    Attributes:
        delta: (L, R, G), instances more or, negative, fewer.
        cost: gamma + mu.
        seconds: What it took to find.
    """

    delta: IntArray
    cost: float
    seconds: float = field(compare=False)


@dataclass(frozen=True)
class SolverConfig:
    """How far a solution is sought.

    Attributes:
        time_limit_s: After which the best one found is taken. Source: ours.
        gap: Distance to the optimum that is good enough, as a share of the fleet's cost. Source: ours.
    """

    time_limit_s: float = 30.0
    gap: float = 1e-3

    def __post_init__(self) -> None:
        check_positive(self, "time_limit_s")
        check_not_negative(self, "gap")


def solve(problem: CapacityProblem, config: SolverConfig | None = None) -> CapacityPlan:
    """The cheapest change that covers the demand.

    Args:
        problem: The problem.
        config: How far a solution is sought; None: the defaults.

    Raises:
        ValueError: Machines do not suffice for the fewest instances, or no plan was found in the time given.
    """
    began = time.perf_counter()  # for the report alone: no decision looks at it
    config = config or SolverConfig()
    after = _by_model(problem, config)
    if after is None:
        after = _by_machines(problem, config)
    delta = after - problem.instances
    cost = (problem.vm_cost * delta).sum() + (problem.start_cost[:, None] * np.maximum(delta, 0)).sum()
    return CapacityPlan(delta, float(cost), time.perf_counter() - began)


def _by_model(problem: CapacityProblem, config: SolverConfig) -> IntArray | None:
    """(L, R, G), each model by itself; None: it cannot be, or asks for more machines than there are."""
    parts: list[IntArray] = []
    for model in range(len(problem.instances)):
        alone = replace(
            problem,
            instances=problem.instances[model : model + 1],
            demand_tps=problem.demand_tps[model : model + 1],
            capacity_tps=problem.capacity_tps[model : model + 1],
            start_cost=problem.start_cost[model : model + 1],
            machines=None,
        )
        part = _by_region(alone, config)
        if part is None:
            return None
        parts.append(part)
    after = np.concatenate(parts)
    fits = problem.machines is None or (after.sum(axis=0) <= problem.machines).all()
    return after if fits else None


def _by_region(problem: CapacityProblem, config: SolverConfig) -> IntArray | None:
    """(1, R, G) of one model: region by region where what each serves itself is enough for all."""
    if not _regions_alone(problem):
        return _cheapest(problem, *_demand(problem), config)
    parts = [_cheapest(part, *_local_demand(part), config) for part in _regions_of(problem)]
    found = [part for part in parts if part is not None]
    return np.concatenate(found, axis=1) if len(found) == len(parts) else None


def _by_machines(problem: CapacityProblem, config: SolverConfig) -> IntArray:
    """(L, R, G), models that share machines."""
    if not _regions_alone(problem):
        return _together(problem, *_demand(problem), config)
    parts = [_together(part, *_local_demand(part), config) for part in _regions_of(problem)]
    return np.concatenate(parts, axis=1)


def _regions_alone(problem: CapacityProblem) -> bool:
    """Whether what each region serves itself is enough for all, of every model."""
    models, regions, _ = problem.instances.shape
    _, need = _demand(problem)
    local, overall = need[: models * regions].reshape(models, regions), need[models * regions :]
    return bool((local.sum(axis=1) >= overall).all())


def _regions_of(problem: CapacityProblem) -> list[CapacityProblem]:
    """The problem of each region."""
    parts = []
    for region in range(problem.instances.shape[1]):
        own = slice(region, region + 1)
        parts.append(
            replace(
                problem,
                instances=problem.instances[:, own],
                demand_tps=problem.demand_tps[:, own],
                machines=None if problem.machines is None else problem.machines[own],
            )
        )
    return parts


def _together(
    problem: CapacityProblem, rows: sparse.csr_array, need: FloatArray, config: SolverConfig
) -> IntArray:
    """(L, R, G), all models at once; where machines do not suffice, as little as may be is left uncovered."""
    after = _cheapest(problem, rows, need, config)
    if after is None:
        short = _least_short(problem, rows, need, config)
        after = _cheapest(problem, rows, need - short - _TOLERANCE * np.maximum(need, 1.0), config)
        assert after is not None  # what cannot be covered was taken off
    return after


def _flat(problem: CapacityProblem, by_model_and_gpu: FloatArray) -> FloatArray:
    """Coefficients (L or 1, G) of every variable, in the order of x."""
    return np.broadcast_to(by_model_and_gpu[:, None], problem.instances.shape).ravel()


def _demand(problem: CapacityProblem) -> tuple[sparse.csr_array, FloatArray]:
    """Coefficients of x in the demand constraints and what they must reach: endpoints, then models."""
    models, regions, gpus = problem.instances.shape
    theta = _flat(problem, problem.capacity_tps)
    columns = np.arange(problem.instances.size)
    endpoint, model = columns // gpus, columns // (regions * gpus)
    local = sparse.csr_array((theta, (endpoint, columns)), shape=(models * regions, len(columns)))
    overall = sparse.csr_array((theta, (model, columns)), shape=(models, len(columns)))
    own = problem.epsilon * problem.demand_tps.max(axis=2).ravel()
    return sparse.vstack([local, overall], format="csr"), np.concatenate(
        [own, problem.demand_tps.sum(axis=1).max(axis=1)]
    )


def _local_demand(problem: CapacityProblem) -> tuple[sparse.csr_array, FloatArray]:
    """The same of endpoints alone."""
    rows, need = _demand(problem)
    endpoints = problem.instances.shape[0] * problem.instances.shape[1]
    return rows[:endpoints], need[:endpoints]


def _limits(problem: CapacityProblem) -> LinearConstraint:
    """Fewest and most instances of an endpoint, and machines of a region."""
    models, regions, gpus = problem.instances.shape
    columns = np.arange(problem.instances.size)
    ones = np.ones(len(columns))
    endpoints = models * regions
    rows = sparse.csr_array((ones, (columns // gpus, columns)), shape=(endpoints, len(columns)))
    low = np.full(endpoints, float(problem.fewest))
    high = np.full(endpoints, np.inf if problem.most is None else float(problem.most))
    if problem.machines is not None:
        places = regions * gpus
        kind = sparse.csr_array((ones, (columns % places, columns)), shape=(places, len(columns)))
        rows = sparse.vstack([rows, kind], format="csr")
        low = np.concatenate([low, np.full(places, -np.inf)])
        high = np.concatenate([high, problem.machines.ravel().astype(float)])
    return LinearConstraint(rows, low, high)


def _twice(rows: sparse.csr_array) -> sparse.csr_array:
    """Constraints on instances, of kept and of started ones."""
    return sparse.hstack([rows, rows], format="csr")


def _startable(problem: CapacityProblem) -> FloatArray:
    """Most instances that start: none where the model does not run."""
    return np.where(_flat(problem, problem.capacity_tps) > 0, np.inf, 0.0)


def _cheapest(
    problem: CapacityProblem, rows: sparse.csr_array, need: FloatArray, config: SolverConfig
) -> IntArray | None:
    """(L, R, G) instances at the least cost; None: nothing is feasible."""
    size = problem.instances.size
    keep, start = _flat(problem, problem.vm_cost[None]), _flat(problem, problem.start_cost)
    limits = _limits(problem)
    result = milp(
        np.concatenate([keep, keep + start]),
        integrality=np.ones(2 * size),
        bounds=Bounds(np.zeros(2 * size), np.concatenate([problem.instances.ravel(), _startable(problem)])),
        constraints=[
            LinearConstraint(_twice(rows), lb=need),
            LinearConstraint(_twice(limits.A), limits.lb, limits.ub),
        ],
        options={"time_limit": config.time_limit_s, "mip_rel_gap": config.gap},
    )
    if result.x is None and result.status != _INFEASIBLE:
        raise ValueError(f"no plan was found within {config.time_limit_s:g} s: {result.message}")
    if result.x is None:
        return None
    kept, started = np.rint(result.x).astype(np.int64).reshape(2, *problem.instances.shape)
    return kept + started


def _least_short(
    problem: CapacityProblem, rows: sparse.csr_array, need: FloatArray, config: SolverConfig
) -> FloatArray:
    """How much of each demand constraint must be given up, at the least sum."""
    size, count = problem.instances.size, len(need)
    limits = _limits(problem)
    result = milp(
        np.concatenate([np.zeros(size), np.ones(count)]),
        integrality=np.concatenate([np.ones(size), np.zeros(count)]),
        bounds=Bounds(
            np.zeros(size + count),
            np.concatenate([problem.instances.ravel() + _startable(problem), np.full(count, np.inf)]),
        ),
        constraints=[
            LinearConstraint(sparse.hstack([rows, sparse.eye_array(count)]), lb=need),
            LinearConstraint(
                sparse.hstack([limits.A, sparse.csr_array((limits.A.shape[0], count))]), limits.lb, limits.ub
            ),
        ],
        options={"time_limit": config.time_limit_s, "mip_rel_gap": config.gap},
    )
    if result.x is None:
        raise ValueError("no plan was found: machines do not suffice for the fewest instances")
    return np.asarray(result.x[size:], np.float64)
