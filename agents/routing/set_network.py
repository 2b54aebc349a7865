"""A network over the places of a fleet, for any number of them: permuting the places permutes its scores.

Every place is seen through the same small network, together with the request and the cluster; what it makes of the
places in service is averaged and maximised (Zaheer et al. 2017, "Deep Sets"), and a second network scores each place by
what was made of it and of all of them. To hold the request is scored, and the state valued, by all of them alone.

Trained in torch, run in NumPy.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.simulator.kernel.features import PLACE_FEATURES

FloatArray = NDArray[np.float32]
IN_SERVICE = PLACE_FEATURES.index("in_service")
HOLD_BIAS = -4.0  # an untrained actor seldom holds a request


class SetNetwork(nn.Module):
    """Scores of places.

    Args:
        context_size: Features of the request and the cluster.
        row_width: Width of the network through which every place is seen.
        hidden_widths: Widths of the hidden layers behind it, at least one.
        place_size: Features of a place.
    """

    def __init__(
        self,
        context_size: int,
        row_width: int,
        hidden_widths: tuple[int, ...],
        place_size: int = len(PLACE_FEATURES),
    ) -> None:
        super().__init__()
        self.row_place = nn.Linear(place_size, row_width, bias=False)
        self.row_context = nn.Linear(context_size, row_width)
        self.row = nn.Linear(row_width, row_width)
        pooled_size = 2 * row_width + context_size
        self.score_row = nn.Linear(row_width, hidden_widths[0], bias=False)
        self.score_pool = nn.Linear(pooled_size, hidden_widths[0])
        self.score = _head(hidden_widths)
        self.hold_pool = nn.Linear(pooled_size, hidden_widths[0])
        self.hold = _head(hidden_widths)

    def forward(self, context: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """(batch, R) scores of the places.

        Args:
            context: (batch, context_size).
            places: (batch, R, place_size).
        """
        return self.place_scores(*self.encode(context, places))

    def encode(self, context: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is made of each place, (batch, R, row_width), and of all, (batch, 2 row_width + context_size)."""
        rows = torch.relu(self.row_place(places) + self.row_context(context).unsqueeze(1))
        rows = torch.relu(self.row(rows))
        serving = (places[:, :, IN_SERVICE] > 0).unsqueeze(2)
        kept = rows * serving
        mean = kept.sum(dim=1) / serving.sum(dim=1).clamp(min=1)
        return rows, torch.cat([mean, kept.amax(dim=1), context], dim=1)

    def place_scores(self, rows: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, R), from what `encode` gives."""
        hidden = self.score_row(rows) + self.score_pool(pooled).unsqueeze(1)
        scores: torch.Tensor = self.score(hidden).squeeze(2)
        return scores

    def hold_score(self, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, 1), from what `encode` gives."""
        score: torch.Tensor = self.hold(self.hold_pool(pooled))
        return score

    def all_scores(self, rows: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, R + 1), to hold comes last."""
        return torch.cat([self.place_scores(rows, pooled), self.hold_score(pooled)], dim=1)

    def export(self) -> SetScorer:
        """A copy that runs without torch."""
        return SetScorer(
            row_place=_weight(self.row_place),
            row_context=_layer(self.row_context),
            row=_layer(self.row),
            score_row=_weight(self.score_row),
            score_pool=_layer(self.score_pool),
            score=_layers(self.score),
            hold_pool=_layer(self.hold_pool),
            hold=_layers(self.hold),
        )


def _head(widths: tuple[int, ...]) -> nn.Sequential:
    """From the first hidden layer, before it is rectified, to one number."""
    layers: list[nn.Module] = [nn.ReLU()]
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


Layer = tuple[FloatArray, FloatArray]  # (inputs, outputs) weights, (outputs,) biases


def _array(parameter: torch.Tensor) -> FloatArray:
    return np.ascontiguousarray(parameter.detach().numpy().astype(np.float32))


def _weight(layer: nn.Linear) -> FloatArray:
    return _array(layer.weight.T)


def _layer(layer: nn.Linear) -> Layer:
    return _weight(layer), _array(layer.bias)


def _layers(head: nn.Sequential) -> tuple[Layer, ...]:
    return tuple(_layer(layer) for layer in head if isinstance(layer, nn.Linear))


@dataclass(frozen=True)
class SetScorer:
    """`SetNetwork` in NumPy; the attributes are its layers."""

    row_place: FloatArray
    row_context: Layer
    row: Layer
    score_row: FloatArray
    score_pool: Layer
    score: tuple[Layer, ...]
    hold_pool: Layer
    hold: tuple[Layer, ...]

    def scores(self, context: FloatArray, places: FloatArray, hold: bool) -> FloatArray:
        """(N, R) scores of the places, or (N, R + 1) with that of holding.

        Args:
            context: (N, context_size).
            places: (N, R, place_size).
            hold: Whether to score holding.
        """
        number, num_rows, _ = places.shape
        flat = places.reshape(number * num_rows, -1)
        rows = _rectified(
            (flat @ self.row_place).reshape(number, num_rows, -1) + _apply(self.row_context, context)[:, None]
        )
        rows = _rectified(_apply(self.row, rows.reshape(number * num_rows, -1)))
        serving = places[:, :, IN_SERVICE] > 0
        kept = rows.reshape(number, num_rows, -1) * serving[:, :, None]
        mean = kept.sum(axis=1) / np.maximum(serving.sum(axis=1), 1)[:, None].astype(np.float32)
        pooled = np.concatenate([mean, kept.max(axis=1), context], axis=1)
        hidden = (rows @ self.score_row).reshape(number, num_rows, -1) + _apply(self.score_pool, pooled)[
            :, None
        ]
        scores = _finish(self.score, hidden.reshape(number * num_rows, -1)).reshape(number, num_rows)
        if not hold:
            return scores
        return np.concatenate([scores, _finish(self.hold, _apply(self.hold_pool, pooled))], axis=1)


def _rectified(values: FloatArray) -> FloatArray:
    return np.maximum(values, np.float32(0.0), out=values)


def _apply(layer: Layer, values: FloatArray) -> FloatArray:
    result: FloatArray = values @ layer[0]
    result += layer[1]
    return result


def _finish(head: tuple[Layer, ...], hidden: FloatArray) -> FloatArray:
    """(N, 1), what a head makes of its first hidden layer before it is rectified."""
    for layer in head:
        hidden = _apply(layer, _rectified(hidden))
    return hidden
