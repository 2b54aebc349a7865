"""Gradient-boosted regression trees that predict a few rows fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_LEAF = -1


@dataclass(frozen=True)
class BoostedTrees:
    """Trees as arrays over their nodes.

    Attributes:
        feature: (nodes,) column that a node compares; -1 in a leaf.
        threshold: (nodes,) values up to it go left.
        left: (nodes,) node that is next on the left.
        right: (nodes,) on the right.
        value: (nodes,) of a leaf.
        roots: (trees,) first nodes.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float64]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float64]
    roots: NDArray[np.int32]

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """(N,), of (N, features)."""
        predicted = np.empty(len(rows))
        _predict(rows, self.feature, self.threshold, self.left, self.right, self.value, self.roots, predicted)
        return predicted


def fit_trees(
    rows: NDArray[np.float64], target: NDArray[np.float64], quantile: float, seed: int
) -> BoostedTrees:
    """Trees of LightGBM for a quantile, or for the mean.

    Hyperparameters are those of llm-d-latency-predictor's training server (`training_server.py`, 2026): 200 trees of
    depth 6, learning rate 0.05, 80 % of rows and columns for each tree, L1 and L2 of 0.1.

    Args:
        rows: (N, features).
        target: (N,).
        quantile: Between 0 and 1; 0: the mean.
        seed: Of the draws of rows and columns.
    """
    import lightgbm

    params: dict[str, Any] = {
        "objective": "quantile" if quantile > 0 else "regression",
        "learning_rate": 0.05,
        "max_depth": 6,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "feature_fraction": 0.8,
        "min_data_in_leaf": 20,
        "lambda_l1": 0.1,
        "lambda_l2": 0.1,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": seed,
        "verbosity": -1,
    }
    if quantile > 0:
        params["alpha"] = quantile
    booster = lightgbm.train(params, lightgbm.Dataset(rows, target), num_boost_round=200)
    return _as_arrays(booster.dump_model()["tree_info"])


def _as_arrays(trees: list[dict[str, Any]]) -> BoostedTrees:
    """The trees of LightGBM's dump."""
    feature: list[int] = []
    threshold: list[float] = []
    children: list[list[int]] = []
    value: list[float] = []

    def add(node: dict[str, Any]) -> int:
        at = len(feature)
        split = "split_feature" in node
        feature.append(node["split_feature"] if split else _LEAF)
        threshold.append(node["threshold"] if split else 0.0)
        value.append(0.0 if split else node["leaf_value"])
        children.append([at, at])
        if split:
            children[at] = [add(node["left_child"]), add(node["right_child"])]
        return at

    roots = [add(tree["tree_structure"]) for tree in trees]
    sides = np.array(children, np.int32).reshape(-1, 2)
    return BoostedTrees(
        np.array(feature, np.int32),
        np.array(threshold),
        np.ascontiguousarray(sides[:, 0]),
        np.ascontiguousarray(sides[:, 1]),
        np.array(value),
        np.array(roots, np.int32),
    )


@njit(cache=True)
def _predict(
    rows: NDArray[np.float64],
    feature: NDArray[np.int32],
    threshold: NDArray[np.float64],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    value: NDArray[np.float64],
    roots: NDArray[np.int32],
    predicted: NDArray[np.float64],
) -> None:
    predicted[:] = 0.0
    for root in roots:  # a tree at a time stays in the processor's cache
        for row in range(len(rows)):
            node = root
            while feature[node] >= 0:
                node = left[node] if rows[row, feature[node]] <= threshold[node] else right[node]
            predicted[row] += value[node]
