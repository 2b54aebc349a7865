"""OServe as a policy (section 3): every span it forecasts the next, schedules for it, and switches.

Readings. The text switches whenever the scheduler gives another strategy; as Algorithm 1 draws at random, equally good
deployments would then follow each other for nothing. Here a deployment is replaced where the new one reaches more by
`min_gain` (source: ours), at the first decision, which is free, where it reaches more at all; the assignment always
follows the forecast. Before the first span of an episode there is nothing to forecast from: the environment's own
forecast, the mean of the training episode, stands in. A forecaster is fitted once, to the training episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.common.deploying import DeployingPolicy, worth_it
from baselines.oserve.exhaustive import optimal_plan
from baselines.oserve.forecast import HISTORY, Forecaster, MovingAverage
from baselines.oserve.generation import GenerationConfig, generate
from baselines.oserve.scheduler import strategy_of
from baselines.policy import Action, PolicySpec, Tunable
from envs.deployment.state import Deploy, DeploymentSetting, DeploymentState
from envs.workload.registry import check_choice

FloatArray = NDArray[np.float64]

FORECASTERS = ("type_lstm", "total_lstm", "moving_average", "environment")
SEARCHES = ("algorithm_1", "optimal")


@dataclass(frozen=True)
class OServeConfig:
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
        switch: "ad_hoc" (section 5.2) or "reload".
    """

    forecaster: str = "type_lstm"
    history: int = HISTORY
    search: str = "algorithm_1"
    idle_iterations: int = 20
    max_iterations: int = 1000
    restarts: int = 64
    min_gain: float = 0.05
    switch: str = "ad_hoc"

    def __post_init__(self) -> None:
        check_choice("forecaster", self.forecaster, FORECASTERS)
        check_choice("search", self.search, SEARCHES)
        check_choice("switch", self.switch, ("ad_hoc", "reload"))
        if self.history < 1:
            raise ValueError(f"history must be at least 1, got {self.history}")
        if not 0 <= self.min_gain < float("inf"):
            raise ValueError(f"min_gain must be finite and not negative, got {self.min_gain}")
        _ = self.generation

    @property
    def generation(self) -> GenerationConfig:
        """Constants of Algorithm 1."""
        return GenerationConfig(self.idle_iterations, self.max_iterations, self.restarts)

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {"min_gain": Tunable(0.0, 1.0)}


class OServePolicy(DeployingPolicy):
    """OServe.

    Args:
        config: Its constants; None: the defaults.
    """

    name = "oserve"

    def __init__(self, config: OServeConfig | None = None) -> None:
        self.config = config or OServeConfig()
        self._fitted: tuple[bytes, Forecaster | None] | None = None

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Fits the forecaster, unless it is fitted to the same past already.

        Raises:
            ValueError: the past has too few spans for the forecaster.
        """
        super().reset(spec, seed)
        self.seed, self.decisions = seed, 0
        past = self.setting.past
        if self._fitted is None or self._fitted[0] != past.tobytes():
            self._fitted = (past.tobytes(), make_forecaster(self.config, self.setting))

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The strategy for the next span."""
        self.decisions += 1
        worth = self.setting.worth(self.forecast(state))
        if worth.demand.sum() <= 0:
            return None
        present = worth.plan(state.deployment.kinds)
        if self.config.search == "optimal":
            found = optimal_plan(worth)
        else:
            found = generate(worth, self.config.generation, self.seed + self.decisions).plan
        plan = found if worth_it(found, present, state, self.config.min_gain) else present
        strategy = strategy_of(worth, plan, state.deployment)
        return Deploy(strategy.deployment, strategy.assignment.routing(), self.config.switch)

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
        from baselines.oserve.lstm import LstmConfig, TotalLstm, TypeLstm

        if len(setting.past) <= config.history:
            raise ValueError(
                f"forecaster {config.forecaster} needs more than history={config.history} spans of the past and has "
                f"{len(setting.past)}; raise env.past_spans or choose forecaster=moving_average"
            )
        lstm = LstmConfig(history=config.history)
        forecaster = TypeLstm(lstm) if config.forecaster == "type_lstm" else TotalLstm(lstm)
    forecaster.fit(setting.past)
    return forecaster
