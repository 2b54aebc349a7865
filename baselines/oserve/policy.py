"""OServe as a policy (section 3): every span it forecasts the next, schedules for it, and switches.

Readings. The text switches whenever the scheduler gives another strategy; as Algorithm 1 draws at random, equally good
deployments would then follow each other for nothing. Here a deployment is replaced where the new one reaches more by
`min_gain` (source: ours), at the first decision, which is free, where it reaches more by what the profile can tell
from no gain; the assignment always follows the forecast. Replicas whose KV memory does not hold the longest request are
not deployed, as vLLM does not start them. Before the first span there is nothing to forecast from: the environment's
own forecast, the mean of the training episode, stands in. A forecaster is fitted once, to the training episode.

Section 4.2 states constraints C1 to C3 and a flow network that cannot hold them (`flow_network`). The default solves
the constraints exactly; `solver` takes the maximum flow instead. It decides who serves what; the search compares
deployments by the exact programs with any solver, so that solvers are compared on the same deployments. The flow has no
completion time: `objective` then counts in the search alone.

Readings with a switch. The text profiles a throughput of each type and does not say in which company; the default,
`profiling="mixed"`, corrects capacities for the company that types keep, by which C3 is nearer to what replicas do, and
"measured" has each type alone. Appendix C minimises the completion time, the default, and section 4.2 maximises
requests, which gives up the types that are dear when not all can be served: `objective="throughput"`.
`configs/policy/oserve_literal.yaml` has the latter of both. `most_room` is not in the text (source: ours), and off
unless asked for: it is for hours in which every deployment has room, when throughput says nothing and few wide replicas
answer faster than many narrow ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.deploying import FIRST_GAIN, DeployingPolicy, worth_it
from serving_gym.baselines.oserve.exhaustive import optimal_plan
from serving_gym.baselines.oserve.forecast import HISTORY, Forecaster, MovingAverage
from serving_gym.baselines.oserve.generation import GenerationConfig, generate
from serving_gym.baselines.oserve.scheduler import SOLVERS, strategy_of
from serving_gym.baselines.oserve.uniform import of_holding, uniform_layouts
from serving_gym.baselines.policy import Action, Constants, PolicySpec, tunable, tunable_choice
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.deployment.profiling import METHODS, PRECISION
from serving_gym.envs.deployment.state import Deploy, DeploymentSetting, DeploymentState
from serving_gym.envs.deployment.strategies import OBJECTIVES, Plan, PlanEvaluator

FloatArray = NDArray[np.float64]

FORECASTERS = ("type_lstm", "total_lstm", "moving_average", "environment")
SEARCHES = ("algorithm_1", "optimal")
ASSIGNMENTS = ("apart", "even", "as_solved", "spread")


@dataclass(frozen=True)
class OServeConfig(Constants):
    """Constants of the policy.

    Attributes:
        forecaster: "type_lstm" (section 5.1), "total_lstm" or "moving_average" (section 6.3), or "environment", whose
            forecast every policy sees.
        history: Spans that a forecaster looks back. Source: section 5.1, 50.
        search: "algorithm_1" (section 4.3), or "optimal", its bound.
        idle_iterations: Of Algorithm 1. Source: section 4.3, 20.
        max_iterations: Of Algorithm 1. Source: ours.
        restarts: Of Algorithm 1. Source: ours.
        min_gain: Share by which a deployment must reach more than the present one to replace it. Source: ours.
        first_gain: The same at the first decision, which is free, if it is less. Source: ours, what the profile can
            tell from no gain.
        switch: "ad_hoc" (section 5.2) or "reload".
        assignment: Of the solver's solution, "apart", types are kept apart among replicas that are alike
            (`assignment.keep_apart`), "even", such replicas share all types, or "as_solved", each replica serves what
            the solver gives it (the exact one shares evenly); or "spread", every type goes to all replicas in
            proportion to what they can do of it, which is section 6.3's deployment without its assignment.
        solver: Of section 4.2's assignment of types to the replicas chosen: "exact", linear programs of C1 to C3; or
            the maximum flow by preflow-push, "flow_requests" on the network as drawn, "flow_units" in common units
            (`flow_network`).
        profiling: How capacities are worked out: "measured" (Appendix D), "mixed" or "closed_form"; or "environment",
            whose table every policy sees (`envs.deployment.profiling`).
        precision: Half of the 95 % interval of a capacity, share of it, at which profiling ends; two capacities then
            differ by less than any gain that `min_gain` asks for. Source: ours.
        keep_tpot: Whether capacities are those at which nine of ten requests keep the time between tokens that clients
            are promised, instead of those of saturated replicas. Source: ours; the text promises none and counts
            throughput and percentiles of latency, by which pipelines are better than by the time between tokens.
        objective: "throughput" (section 4.2) or "completion_time" (`strategies.PlanEvaluator`).
        most_room: Times the forecast that a deployment need reach at most: of those that do, and of the best uniform
            ones, the one of fewest replicas is taken. Source: ours; so large that it does not count.
        period_s: Between two decisions, seconds; None: each span of the environment (section 3, one minute).
    """

    forecaster: str = "type_lstm"
    history: int = HISTORY
    search: str = "algorithm_1"
    idle_iterations: int = 20
    max_iterations: int = 1000
    restarts: int = 64
    min_gain: float = tunable(0.05, 0.0, 1.0)
    first_gain: float = tunable(FIRST_GAIN, 0.0, 1.0)
    switch: str = "ad_hoc"
    assignment: str = "apart"
    solver: str = "exact"
    profiling: str = "mixed"
    precision: float = PRECISION
    keep_tpot: bool = tunable_choice(False, True)
    objective: str = "completion_time"
    most_room: float = tunable(100.0, 1.0, 100.0, log=True)
    period_s: float | None = None

    def __post_init__(self) -> None:
        check_choice("forecaster", self.forecaster, FORECASTERS)
        check_choice("search", self.search, SEARCHES)
        check_choice("switch", self.switch, ("ad_hoc", "reload"))
        check_choice("assignment", self.assignment, ASSIGNMENTS)
        check_choice("solver", self.solver, SOLVERS)
        check_choice("profiling", self.profiling, ("environment", *METHODS))
        check_choice("objective", self.objective, OBJECTIVES)
        check_at_least(self, 1, "most_room", finite=True)
        check_at_least(self, 1, "history")
        check_not_negative(self, "min_gain", "first_gain", finite=True)
        if self.keep_tpot and self.profiling not in ("measured", "mixed"):
            raise ValueError(f"keep_tpot needs profiling measured or mixed, got {self.profiling}")
        check_positive(self, "precision", "period_s", finite=True)
        _ = self.generation

    @property
    def generation(self) -> GenerationConfig:
        """Constants of Algorithm 1."""
        return GenerationConfig(self.idle_iterations, self.max_iterations, self.restarts)


class OServePolicy(DeployingPolicy):
    """OServe.

    Args:
        config: Its constants; None: the defaults.
    """

    name = "oserve"

    def __init__(self, config: OServeConfig | None = None) -> None:
        self.config = config or OServeConfig()
        self._fitted: tuple[bytes, Forecaster | None] | None = None

    @property
    def period_s(self) -> float | None:
        """Time between decisions."""
        return self.config.period_s

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Fits the forecaster, unless it is fitted to the same past already.

        Raises:
            ValueError: the past has too few spans for the forecaster.
        """
        super().reset(spec, seed)
        self.seed, self.decisions = seed, 0
        method = self.config.profiling
        own = method != "environment"
        tpot_s = min(slo.tpot_s for slo in spec.slos) if self.config.keep_tpot else None
        table = self.setting.profiled(method, self.config.precision, tpot_s) if own else self.setting.table
        self.table = of_holding(table.of_role("mixed"), self.setting)
        past = self.setting.past
        if self._fitted is None or self._fitted[0] != past.tobytes():
            self._fitted = (past.tobytes(), make_forecaster(self.config, self.setting))

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The strategy for the next span."""
        self.decisions += 1
        config = self.config
        evaluator = PlanEvaluator(self.setting.cluster, self.table, self.forecast(state), config.objective)
        if evaluator.demand.sum() <= 0:
            return None
        present = evaluator.plan(state.deployment.kinds)
        plan = self._chosen(evaluator, present, state)
        order = self.setting.order if config.assignment == "apart" else None
        share_alike = config.assignment != "as_solved"
        strategy = strategy_of(evaluator, plan, state.deployment, order, config.solver, share_alike)
        shares = strategy.assignment.routing()
        if config.assignment == "spread":
            shares = strategy.assignment.capacity
        return Deploy(strategy.deployment, shares, config.switch)

    def _chosen(self, evaluator: PlanEvaluator, present: Plan, state: DeploymentState) -> Plan:
        """What is to be deployed."""
        if self.config.search == "optimal":
            found = optimal_plan(evaluator)
        else:
            found = generate(evaluator, self.config.generation, self.seed + self.decisions).plan
        enough = self.config.most_room * float(evaluator.demand.sum())
        wide = [
            plan
            for plan in (
                evaluator.plan(kinds) for kinds in uniform_layouts(evaluator.cluster, evaluator.table.kinds)
            )
            if plan.max_requests >= enough
        ]
        if not wide:
            replaces = worth_it(found, present, state, self.config.min_gain, self.config.first_gain)
            return found if replaces else present
        best = min(wide, key=lambda plan: (len(plan.sizes), -plan.max_requests))
        stays = state.switch is not None or (
            present.max_requests >= enough and len(present.sizes) <= len(best.sizes)
        )
        return present if stays else best

    def forecast(self, state: DeploymentState) -> FloatArray:
        """(J,), requests of each type that the next span is expected to bring."""
        forecaster = self._fitted[1] if self._fitted is not None else None
        if forecaster is None or not len(state.history):
            return state.forecast
        return forecaster.predict(state.history)


def make_forecaster(config: OServeConfig, setting: DeploymentSetting) -> Forecaster | None:
    """A forecaster fitted to the past; None: the environment's is used.

    Raises:
        ValueError: the past has too few spans.
    """
    if config.forecaster == "environment":
        return None
    forecaster: Forecaster = MovingAverage(config.history)
    if config.forecaster != "moving_average":
        from serving_gym.baselines.oserve.lstm import LstmConfig, TotalLstm, TypeLstm

        if len(setting.past) <= config.history:
            raise ValueError(
                f"forecaster {config.forecaster} needs more than history={config.history} spans of the past and has "
                f"{len(setting.past)}; raise env.past_spans or choose forecaster=moving_average"
            )
        lstm = LstmConfig(history=config.history)
        forecaster = TypeLstm(lstm) if config.forecaster == "type_lstm" else TotalLstm(lstm)
    forecaster.fit(setting.past)
    return forecaster
