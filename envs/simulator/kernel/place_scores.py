"""Scores of places that the kernel can compute: a weighted sum of features, a small network over their set, or both.

The network is that of `agents.networks.set_network.SetScorer` with one hidden layer behind the rows: every
place is seen through
the same two layers, with the context; their mean and maximum over the places in service and what became of a place
itself give its score. A guard may leave places out beforehand (`place_guard`).

Where admission is a decision, a score may know three rows more, behind the places: to hold, to refuse and to defer the
request. Each is described by a 1 in a column of its own behind those of places, which has no other features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import entry, inlined, int64
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES
from serving_gym.envs.simulator.kernel.place_guard import narrow

VERDICTS = (
    "hold",
    "reject",
    "defer",
)  # rows behind the places, and their columns behind the places' features
_IN_SERVICE = PLACE_FEATURES.index("in_service")
_NONE = np.zeros(0, np.float32)
_NO_GUARD = np.zeros(0)
_NO_LAYER = np.zeros((0, 0), np.float32)

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]


class PlaceScore(NamedTuple):
    """How places are scored; the highest that can take the request is chosen, ties to the first.

    F features of a place, C of the context (the request's, those of admission if any, the cluster's), widths W and H.
    Where it decides about admission too, F is greater by the columns of `VERDICTS`.
    """

    weights: Vector  # (F,) of a sum; empty: none
    row_place: Matrix = _NO_LAYER  # (F, W)
    row_context: Matrix = _NO_LAYER  # (C, W)
    row_context_bias: Vector = _NONE  # (W,)
    row: Matrix = _NO_LAYER  # (W, W)
    row_bias: Vector = _NONE  # (W,)
    score_row: Matrix = _NO_LAYER  # (W, H)
    score_pool: Matrix = _NO_LAYER  # (2 W + C, H): mean, maximum, context
    score_pool_bias: Vector = _NONE  # (H,)
    score: Vector = _NONE  # (H,); empty: there is no network
    guard: NDArray[np.float64] = (
        _NO_GUARD  # (len(GUARD),); empty: all places that can take the request are compared
    )


def knows_verdicts(score: PlaceScore) -> bool:
    """Whether a score has rows for `VERDICTS`, and sees what is shown for admission."""
    return max(len(score.weights), len(score.row_place)) > len(PLACE_FEATURES)


def with_verdicts(places: Matrix) -> Matrix:
    """Rows of places, and behind them those of `VERDICTS`.

    Args:
        places: (..., R, F).

    Returns:
        (..., R + 3, F + 3).
    """
    *before, rows, features = places.shape
    number = len(VERDICTS)
    extended = np.zeros((*before, rows + number, features + number), np.float32)
    extended[..., :rows, :features] = places
    extended[..., rows:, features:] = np.eye(number, dtype=np.float32)
    return extended


class ScoreSpace(NamedTuple):
    """Where the kernel computes scores; R rows for places."""

    context: Vector  # (W,)
    first: Vector  # (W,)
    rows: Matrix  # (R, W)
    pooled: Vector  # (2 W + C,)
    common: Vector  # (H,)
    hidden: Vector  # (H,)


def score_space(score: PlaceScore, num_rows: int) -> ScoreSpace:
    """Room for the scores of at most `num_rows` rows."""
    width, hidden = len(score.row_bias), len(score.score)
    sizes = (width, width, (num_rows, width), len(score.score_pool), hidden, hidden)
    return ScoreSpace(*(np.zeros(size, np.float32) for size in sizes))


@inlined
def _add(inputs: Vector, begin: int, weights: Matrix, outputs: Vector) -> None:
    """Adds inputs @ weights[begin : begin + len(inputs)]."""
    for i in range(len(inputs)):
        value = inputs[i]
        if value != 0.0:
            for j in range(len(outputs)):
                outputs[j] += value * weights[begin + i, j]


@inlined
def _copy(values: Vector, outputs: Vector) -> None:
    for j in range(len(outputs)):
        outputs[j] = values[j]


@inlined
def _rectify(values: Vector) -> None:
    for j in range(len(values)):
        values[j] = max(values[j], np.float32(0.0))


@inlined
def _see_places(
    score: PlaceScore, space: ScoreSpace, places: Matrix, request: Vector, admission: Vector, cluster: Vector
) -> None:
    """What the network makes of each place, and of all of them."""
    width = len(score.row_bias)
    _copy(score.row_context_bias, space.context)
    _add(request, int64(0), score.row_context, space.context)
    _add(admission, int64(len(request)), score.row_context, space.context)
    _add(cluster, int64(len(request) + len(admission)), score.row_context, space.context)
    space.pooled[:] = 0.0
    present = 0
    for e in range(len(places)):
        _copy(space.context, space.first)
        _add(places[e], int64(0), score.row_place, space.first)
        _rectify(space.first)
        _copy(score.row_bias, space.rows[e])
        _add(space.first, int64(0), score.row, space.rows[e])
        _rectify(space.rows[e])
        if places[e, _IN_SERVICE] > 0:
            present += 1
            for j in range(width):
                space.pooled[j] += space.rows[e, j]
                space.pooled[width + j] = max(space.pooled[width + j], space.rows[e, j])
    for j in range(width):
        space.pooled[j] /= np.float32(max(present, 1))
    for j in range(len(request)):
        space.pooled[2 * width + j] = request[j]
    for j in range(len(admission)):
        space.pooled[2 * width + len(request) + j] = admission[j]
    for j in range(len(cluster)):
        space.pooled[2 * width + len(request) + len(admission) + j] = cluster[j]
    _copy(score.score_pool_bias, space.common)
    _add(space.pooled, int64(0), score.score_pool, space.common)


@inlined
def _network_score(score: PlaceScore, space: ScoreSpace, e: int) -> float:
    _copy(space.common, space.hidden)
    _add(space.rows[e], int64(0), score.score_row, space.hidden)
    total = 0.0
    for j in range(len(score.score)):
        total += max(space.hidden[j], 0.0) * score.score[j]
    return total


@inlined
def best_place(
    score: PlaceScore,
    space: ScoreSpace,
    places: Matrix,
    request: Vector,
    admission: Vector,
    cluster: Vector,
    mask: NDArray[np.bool_],
    nowhere: int,
) -> int:
    """The place with the highest score among those that can take the request and pass the guard.

    Args:
        score: How places are scored.
        space: Where.
        places: (R, F), those of `VERDICTS` included where the score knows them.
        request: (features,).
        admission: (features,), none where the score does not know them.
        cluster: (features,).
        mask: (at least R,), the places that can take the request; those that do not pass are taken out.
        nowhere: What to return where none can.
    """
    if len(score.guard) > 0:
        narrow(score.guard, places, request, cluster, mask)
    network = len(score.score) > 0
    if network:
        _see_places(score, space, places, request, admission, cluster)
    best, highest = int64(nowhere), -np.inf
    for e in range(len(places)):
        if not mask[e]:
            continue
        value = 0.0
        for k in range(len(score.weights)):
            value += score.weights[k] * places[e, k]
        if network:
            value += _network_score(score, space, int64(e))
        if value > highest:
            best, highest = int64(e), value
    return best


@entry
def choose_place(
    score: PlaceScore,
    space: ScoreSpace,
    places: Matrix,
    request: Vector,
    admission: Vector,
    cluster: Vector,
    mask: NDArray[np.bool_],
) -> int:
    """`best_place` of one decision, and the number of places where none can take the request."""
    return best_place(score, space, places, request, admission, cluster, mask, int64(len(places)))
