"""Off-policy estimates of a policy's mean cost from logged decisions of another one.

Each decision is taken as one draw of a contextual bandit: the state as logged, the choice, and the cost of the request
it is about. What a choice does to later requests is not counted (`runners.replaying.twin` counts it, in simulation).

Three estimates of the mean cost of policy pi with logged actions a, costs y, propensities p and a model q:

* importance-weighted, self-normalised (Swaminathan and Joachims, 2015): sum(w y) / sum(w), w = 1[a = pi] / p, clipped;
* direct: mean(q(pi));
* doubly robust (Dudik, Langford and Li, 2011): mean(q(pi) + w (y - q(a))).

The model is cross-fitted: what it predicts of a stretch of the log it has not seen in training (Chernozhukov et al.,
2018). Intervals are of a bootstrap that draws blocks of consecutive decisions, as neighbours share queues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MODELS = ("lightgbm", "ridge")
_FOLDS = 5
_DRAWS = 2_000
_LEVEL = (2.5, 97.5)
_RIDGE = 1.0  # penalty on standardised coefficients, relative to the number of rows / 100
_WELL_SUPPORTED = 0.8


class _Model(Protocol):
    def fit(self, features: Floats, cost: Floats) -> Any: ...

    def predict(self, features: Floats) -> Floats: ...


@dataclass(frozen=True)
class Settings:
    """How estimates are made.

    Attributes:
        model: "lightgbm" or "ridge".
        clip: Largest weight.
        seed: Of model and bootstrap.
    """

    model: str = "lightgbm"
    clip: float = 20.0
    seed: int = 0


@dataclass(frozen=True)
class Logged:
    """Logged decisions with known costs.

    Attributes:
        cost: (N,), cost of each.
        taken: (N,), action that was carried out.
        propensity: (N,), its probability; NaN: unknown.
        episode: (N,), episode of each, in order.
        features: (N, F), features of the actions taken.
    """

    cost: Floats
    taken: NDArray[np.int64]
    propensity: Floats
    episode: NDArray[np.int64]
    features: Floats

    @property
    def is_deterministic(self) -> bool:
        """Whether no decision is known to have been random."""
        return not bool(np.any(self.propensity < 1.0 - 1e-9))


def estimates(
    logged: Logged,
    chosen: Mapping[str, tuple[NDArray[np.int64], Floats]],
    settings: Settings,
    versus: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Estimates for each policy.

    Args:
        logged: The log.
        chosen: By policy, its actions (N,) and their features (N, F).
        settings: How.
        versus: One of the policies, over which the others' gains are estimated too; None: over the log alone.

    Returns:
        By policy: `agreement`, mean costs by `value`, gains over the log as shares of its mean cost by `gain`, each of
        `ips`, `direct` and `doubly_robust` with `ci95`; `effective_sample_size`, `clipped`, `supported_ratio`, and
        `note`, a sentence where the estimate rests on the model. `ips` is None where the log is deterministic.
        `over` has the doubly robust gain over the policy `versus`.
    """
    own, predicted = _cross_fitted(
        logged, {name: features for name, (_, features) in chosen.items()}, settings
    )
    blocks = _Bootstrap(logged.episode, settings.seed)
    found = {
        name: _estimate(logged, actions, own, predicted[name], blocks, settings.clip)
        for name, (actions, _) in chosen.items()
    }
    if versus is not None:
        ones = np.ones_like(logged.cost)
        values = {
            name: _corrected(logged, actions, own, predicted[name], settings.clip)
            for name, (actions, _) in chosen.items()
        }
        for name, entry in found.items():
            value, interval = blocks.ratio(values[name], ones, values[versus])
            entry["over"] = {
                "policy": versus,
                "mean": 1.0 - value / float(values[versus].mean()),
                "ci95": interval,
            }
    return found


def _corrected(
    logged: Logged, actions: NDArray[np.int64], own: Floats, predicted: Floats, clip: float
) -> Floats:
    """The doubly robust estimate of each decision's cost, (N,)."""
    return predicted + np.minimum(_weights(logged, actions), clip) * (logged.cost - own)


def _weights(logged: Logged, actions: NDArray[np.int64]) -> Floats:
    """Importance weights, (N,); 0 where the propensity is not known."""
    agrees = (actions == logged.taken) & ~np.isnan(logged.propensity)
    return np.divide(1.0, logged.propensity, out=np.zeros(len(agrees)), where=agrees)


def _estimate(
    logged: Logged,
    actions: NDArray[np.int64],
    own: Floats,
    predicted: Floats,
    blocks: _Bootstrap,
    clip: float,
) -> dict[str, Any]:
    exact = _weights(logged, actions)
    weights = np.minimum(exact, clip)
    cost, mean = logged.cost, float(logged.cost.mean())
    corrected = _corrected(logged, actions, own, predicted, clip)
    known = ~np.isnan(logged.propensity)
    supported = min(float(exact[known].mean()), 1.0) if known.any() else 0.0
    parts: dict[str, Any] = {
        "direct": blocks.ratio(predicted, np.ones_like(cost), cost),
        "doubly_robust": blocks.ratio(corrected, np.ones_like(cost), cost),
        "ips": None
        if logged.is_deterministic or not weights.any()
        else blocks.ratio(weights * cost, weights, cost),
    }
    return {
        "agreement": float((actions == logged.taken).mean()),
        "value": {key: None if part is None else part[0] for key, part in parts.items()},
        "gain": {
            key: None if part is None else {"mean": 1.0 - part[0] / mean, "ci95": part[1]}
            for key, part in parts.items()
        },
        "effective_sample_size": float(weights.sum() ** 2 / max((weights**2).sum(), 1e-12)),
        "clipped": int((exact > clip).sum()),
        "supported_ratio": supported,
        "note": _note(logged, supported),
    }


def _note(logged: Logged, supported: float) -> str:
    if np.isnan(logged.propensity).all():
        return (
            "The log does not tell how likely its decisions were, so the estimate rests on the model alone."
        )
    if logged.is_deterministic:
        return (
            f"The log has no random decisions, so for the {1.0 - supported:.0%} of choices that differ from it the "
            "estimate rests on the model alone."
        )
    if supported < _WELL_SUPPORTED:
        return (
            f"The log takes about {supported:.0%} of these choices with any probability; for the others the estimate "
            "rests on the model alone."
        )
    return ""


def _cross_fitted(
    logged: Logged, chosen: Mapping[str, Floats], settings: Settings
) -> tuple[Floats, dict[str, Floats]]:
    """Predicted costs of the actions taken, and by policy of those chosen, each from a model that has not seen them."""
    count = len(logged.cost)
    own = np.zeros(count)
    predicted = {name: np.zeros(count) for name in chosen}
    for held in np.array_split(np.arange(count), min(_FOLDS, count)):
        rest = np.ones(count, bool)
        rest[held] = False
        if not rest.any():
            rest[:] = True
        model = _model(settings)
        model.fit(logged.features[rest], logged.cost[rest])
        own[held] = model.predict(logged.features[held])
        for name, features in chosen.items():
            predicted[name][held] = model.predict(features[held])
    return own, predicted


def _model(settings: Settings) -> _Model:
    if settings.model == "ridge":
        return _Ridge()
    return _Trees(settings.seed)


class _Trees:
    """Gradient-boosted trees."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def fit(self, features: Floats, cost: Floats) -> None:
        import lightgbm

        words = {
            "objective": "regression",
            "num_leaves": 15,
            "learning_rate": 0.05,
            "min_data_in_leaf": 20,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "seed": self.seed,
            "verbose": -1,
        }
        data = lightgbm.Dataset(features, cost, params={"verbose": -1})
        self._booster = lightgbm.train(words, data, num_boost_round=150)

    def predict(self, features: Floats) -> Floats:
        return np.asarray(self._booster.predict(features, num_threads=1), np.float64)


class _Ridge:
    """Ridge regression on standardised features."""

    def fit(self, features: Floats, cost: Floats) -> None:
        self._mean, spread = features.mean(axis=0), features.std(axis=0)
        self._spread = np.where(spread > 1e-9, spread, np.inf)
        scaled = (features - self._mean) / self._spread
        self._level = float(cost.mean())
        penalty = _RIDGE * len(cost) / 100.0 * np.eye(features.shape[1])
        self._slopes = np.linalg.solve(scaled.T @ scaled + penalty, scaled.T @ (cost - self._level))

    def predict(self, features: Floats) -> Floats:
        return self._level + (features - self._mean) / self._spread @ self._slopes


class _Bootstrap:
    """Draws circular blocks of consecutive decisions inside each episode, of about the square root of its length.

    Args:
        episode: (N,), episode of each decision, in order.
        seed: Of the draws.
    """

    def __init__(self, episode: NDArray[np.int64], seed: int) -> None:
        random = np.random.default_rng(seed)
        self._parts = []
        for each in np.unique(episode):
            rows = np.flatnonzero(episode == each)
            length = max(round(math.sqrt(len(rows))), 1)
            starts = random.integers(0, len(rows), (_DRAWS, math.ceil(len(rows) / length)))
            self._parts.append((rows, length, starts))

    def ratio(self, above: Floats, below: Floats, cost: Floats) -> tuple[float, tuple[float, float]]:
        """Sum of `above` over that of `below`, and the interval of its gain over a mean cost.

        Args:
            above: (N,), numerator.
            below: (N,), denominator.
            cost: (N,), costs whose mean it is compared with.
        """
        columns = np.stack([above, below, cost, np.ones_like(cost)])
        sums = sum(self._sums(columns[:, rows], length, starts) for rows, length, starts in self._parts)
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = 1.0 - (sums[0] / sums[1]) / (sums[2] / sums[3])
        finite = gains[np.isfinite(gains)]
        low, high = np.percentile(finite, _LEVEL) if finite.size else (np.nan, np.nan)
        return float(above.sum() / below.sum()), (float(low), float(high))

    @staticmethod
    def _sums(columns: Floats, length: int, starts: NDArray[np.int64]) -> Any:
        """Sums of (K, n) columns over the blocks of each draw, (K, draws)."""
        wrapped = np.concatenate([columns, columns[:, :length]], axis=1)
        running = np.concatenate([np.zeros((len(columns), 1)), np.cumsum(wrapped, axis=1)], axis=1)
        return (running[:, starts + length] - running[:, starts]).sum(axis=2)
