"""Weights of the reward terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice


@dataclass(frozen=True)
class Objective:
    """Weights of the reward terms. Every term is reported whatever its weight.

    Attributes:
        latency: Weight of minus the sum over requests of TTFT / SLO + TPOT / SLO, accrued while they are in the system
            (Little's law), so that the cost of a decision is charged in the interval in which it arises.
        ttft_attainment: Weight of minus the number of requests that miss their TTFT SLO.
        tpot_attainment: Weight of minus the number of requests that miss their TPOT SLO.
        goodput: Weight of the number of requests finished within both SLOs.
        switch: Weight of minus the number of base engines that begin a reconfiguration.
        abandoned: Weight of minus the number of requests refused, failed or unfinished at the end. With the two
            SLO misses, giving up a request costs more than serving it late.
        refused: Weight of minus the number of requests refused, in addition to `abandoned` and the two SLO misses.
        class_weights: Factor on the SLO misses and the refusals of a request class, by its name; 1 for others.
        gpu_usd: Weight of minus the price of machines whose instances serve, start or drain, USD (autoscaling).
        startup_usd: Weight of minus the part of `gpu_usd` during which instances start, in addition.
        backlog_usd: Weight of minus the price of the machine time of non-interactive requests that are queued when
            an episode ends, at the benchmarked capacity, USD.
        spot_rent_usd: Weight of minus the price of machines that are leased to others as spot instances. 0: a sunk
            cost.
        spot_revenue_usd: Weight of the revenue of spot instances, USD.
        scale: Factor on the whole reward.
    """

    latency: float = 1.0
    ttft_attainment: float = 1.0
    tpot_attainment: float = 1.0
    goodput: float = 0.0
    switch: float = 0.02
    abandoned: float = 100.0
    refused: float = 0.0
    class_weights: dict[str, float] = field(default_factory=dict)
    gpu_usd: float = 0.0
    startup_usd: float = 0.0
    backlog_usd: float = 0.0
    spot_rent_usd: float = 0.0
    spot_revenue_usd: float = 0.0
    scale: float = 0.1

    def __post_init__(self) -> None:
        weights = {
            item.name: getattr(self, item.name) for item in fields(self) if item.name != "class_weights"
        }
        weights |= {f"class_weights.{name}": weight for name, weight in self.class_weights.items()}
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"objective.{name} must be finite and not negative, got {weight}")

    def check_classes(self, classes: Sequence[str]) -> None:
        """Checks that weights are for classes that there are.

        Args:
            classes: Names of the request classes.

        Raises:
            ValueError: one is not.
        """
        for name in self.class_weights:
            check_choice("request class of objective.class_weights", name, classes)

    def factors(self, classes: Sequence[str]) -> NDArray[np.float64]:
        """(C,), factor on the SLO misses and the refusals of each class."""
        return np.array([self.class_weights.get(name, 1.0) for name in classes])

    def term_weights(self, classes: Sequence[str]) -> dict[str, float]:
        """Weights of the reward terms that every environment has, by their names; without `scale`.

        Args:
            classes: Names of the request classes.
        """
        weights = {"latency": self.latency}
        for name, factor in zip(classes, self.factors(classes).tolist(), strict=True):
            weights[f"ttft_attainment/{name}"] = self.ttft_attainment * factor
            weights[f"tpot_attainment/{name}"] = self.tpot_attainment * factor
        return weights | {"goodput": self.goodput, "switch": self.switch, "abandoned": self.abandoned}

    def refusal_weights(self, classes: Sequence[str]) -> dict[str, float]:
        """Weights of the terms `refused/CLASS`, where admission is a decision; without `scale`.

        Args:
            classes: Names of the request classes.
        """
        factors = self.factors(classes).tolist()
        return {
            f"refused/{name}": self.refused * factor for name, factor in zip(classes, factors, strict=True)
        }
