"""A network over a set of rows that are actions, for any number of them: permuting the rows permutes its scores.

Every row (a place of a fleet, a candidate deployment) is seen through the same small network, with the context; what it
makes of the rows that count is averaged and maximised (Zaheer et al. 2017, "Deep Sets"), and a second network
scores each row by what was made of it and of all of them. An action that is no row (to hold a request) is scored, and
the state valued, by all of them alone.

Trained in torch, run in NumPy.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from serving_gym.envs.simulator.kernel.place_scores import PlaceScore

FloatArray = NDArray[np.float32]


class SetNetwork(nn.Module):
    """Scores of rows.

    Args:
        context_size: Features of all that is no row.
        row_size: Features of a row.
        row_width: Width of the network through which every row is seen.
        hidden_widths: Widths of the hidden layers behind it, at least one.
        present: Feature that is positive in a row that counts.
        memory_size: Numbers that are given to `row_scores` and `hold_score` besides, behind what `encode` gives.
        outputs: Numbers that a score consists of.
        direct: Whether a weighted sum of a row's features is added to its score (`lean_on`); such a network scores rows
            alone.
    """

    def __init__(
        self,
        context_size: int,
        row_size: int,
        row_width: int,
        hidden_widths: tuple[int, ...],
        present: int,
        memory_size: int = 0,
        outputs: int = 1,
        direct: bool = False,
    ) -> None:
        super().__init__()
        self.present = present
        self.row_place = nn.Linear(row_size, row_width, bias=False)
        self.row_context = nn.Linear(context_size, row_width)
        self.row = nn.Linear(row_width, row_width)
        self.pooled_size = 2 * row_width + context_size
        pooled_size = self.pooled_size + memory_size
        self.score_row = nn.Linear(row_width, hidden_widths[0], bias=False)
        self.score_pool = nn.Linear(pooled_size, hidden_widths[0])
        self.score = _head(hidden_widths, outputs)
        self.hold_pool = nn.Linear(pooled_size, hidden_widths[0])
        self.hold = _head(hidden_widths, outputs)
        self.direct = nn.Parameter(torch.zeros(row_size)) if direct else None

    def lean_on(self, weights: FloatArray) -> None:
        """Makes a weighted sum of features all of the score, to begin with.

        Args:
            weights: (row_size,).
        """
        assert self.direct is not None
        last = self.score[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            self.direct.copy_(torch.from_numpy(weights))
            last.weight.zero_()
            last.bias.zero_()

    def disregard(self, context: NDArray[np.intp], row: NDArray[np.intp]) -> None:
        """Takes away the weights of features, but for those of the direct sum.

        A feature that is zero in all that is learned from has no gradient: its weights would stay as they were drawn
        and decide by chance once it is seen.

        Args:
            context: Columns of all that is no row.
            row: Columns of a row.
        """
        behind = self.pooled_size - self.row_context.in_features
        with torch.no_grad():
            self.row_place.weight[:, row] = 0.0
            self.row_context.weight[:, context] = 0.0
            for layer in (self.score_pool, self.hold_pool):
                layer.weight[:, behind + context] = 0.0

    def adopt(self, score: PlaceScore) -> None:
        """Takes over the weights of what decides in the kernel; if that is of other widths, nothing changes.

        Args:
            score: What decides.
        """
        pairs = [
            (self.row_place.weight, score.row_place.T),
            (self.row_context.weight, score.row_context.T),
            (self.row_context.bias, score.row_context_bias),
            (self.row.weight, score.row.T),
            (self.row.bias, score.row_bias),
            (self.score_row.weight, score.score_row.T),
            (self.score_pool.weight, score.score_pool.T),
            (self.score_pool.bias, score.score_pool_bias),
            (next(self.score[-1].parameters()), score.score[None]),
        ]
        if self.direct is not None and len(score.weights):
            pairs.append((self.direct, score.weights))
        if all(own.shape == other.shape for own, other in pairs):
            with torch.no_grad():
                for own, other in pairs:
                    own.copy_(torch.from_numpy(np.ascontiguousarray(other)))

    def forward(self, context: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """(batch, R) scores of the rows, where a score is one number.

        Args:
            context: (batch, context_size).
            rows: (batch, R, row_size).
        """
        scores = self.row_scores(*self.encode(context, rows)).squeeze(2)
        return scores if self.direct is None else scores + rows @ self.direct

    def encode(self, context: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is made of each row, (batch, R, row_width), and of all, (batch, 2 row_width + context_size)."""
        seen = torch.relu(self.row_place(rows) + self.row_context(context).unsqueeze(1))
        seen = torch.relu(self.row(seen))
        present = (rows[:, :, self.present] > 0).unsqueeze(2)
        kept = seen * present
        mean = kept.sum(dim=1) / present.sum(dim=1).clamp(min=1)
        return seen, torch.cat([mean, kept.amax(dim=1), context], dim=1)

    def row_scores(self, seen: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, R, outputs), from what `encode` gives."""
        scores: torch.Tensor = self.score(self.score_row(seen) + self.score_pool(pooled).unsqueeze(1))
        return scores

    def hold_score(self, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, 1, outputs), from what `encode` gives."""
        score: torch.Tensor = self.hold(self.hold_pool(pooled)).unsqueeze(1)
        return score

    def all_scores(self, seen: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, R + 1, outputs), what is no row comes last."""
        return torch.cat([self.row_scores(seen, pooled), self.hold_score(pooled)], dim=1)

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
            present=self.present,
            direct=None if self.direct is None else _array(self.direct),
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Weights without a direct sum have one of zeros."""
        if self.direct is not None:
            state_dict.setdefault(prefix + "direct", torch.zeros_like(self.direct))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _head(widths: tuple[int, ...], outputs: int) -> nn.Sequential:
    """From the first hidden layer, before it is rectified, to a score."""
    layers: list[nn.Module] = [nn.ReLU()]
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


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
    """A `SetNetwork` whose scores are one number, in NumPy; the attributes are its layers."""

    row_place: FloatArray
    row_context: Layer
    row: Layer
    score_row: FloatArray
    score_pool: Layer
    score: tuple[Layer, ...]
    hold_pool: Layer
    hold: tuple[Layer, ...]
    present: int
    direct: FloatArray | None = None

    def scores(self, context: FloatArray, places: FloatArray, hold: bool) -> FloatArray:
        """(N, R) scores of the rows, or (N, R + 1) with that of the action which is no row.

        Args:
            context: (N, context_size).
            places: (N, R, row_size).
            hold: Whether to score that action.
        """
        number, num_rows, _ = places.shape
        flat = places.reshape(number * num_rows, -1)
        rows = _rectified(
            (flat @ self.row_place).reshape(number, num_rows, -1) + _apply(self.row_context, context)[:, None]
        )
        rows = _rectified(_apply(self.row, rows.reshape(number * num_rows, -1)))
        serving = places[:, :, self.present] > 0
        kept = rows.reshape(number, num_rows, -1) * serving[:, :, None]
        mean = kept.sum(axis=1) / np.maximum(serving.sum(axis=1), 1)[:, None].astype(np.float32)
        pooled = np.concatenate([mean, kept.max(axis=1), context], axis=1)
        hidden = (rows @ self.score_row).reshape(number, num_rows, -1) + _apply(self.score_pool, pooled)[
            :, None
        ]
        scores = _finish(self.score, hidden.reshape(number * num_rows, -1)).reshape(number, num_rows)
        if self.direct is not None:
            assert not hold, "what is no row has no features that a sum could weigh"
            scores += places @ self.direct
        if not hold:
            return scores
        return np.concatenate([scores, _finish(self.hold, _apply(self.hold_pool, pooled))], axis=1)

    def in_kernel(self) -> PlaceScore | None:
        """The same for the routing kernel, but for a constant; None: it has more layers than that knows."""
        if len(self.score) != 1:
            return None
        return PlaceScore(
            weights=np.zeros(0, np.float32) if self.direct is None else self.direct,
            row_place=self.row_place,
            row_context=self.row_context[0],
            row_context_bias=self.row_context[1],
            row=self.row[0],
            row_bias=self.row[1],
            score_row=self.score_row,
            score_pool=self.score_pool[0],
            score_pool_bias=self.score_pool[1],
            score=np.ascontiguousarray(self.score[0][0][:, 0]),
        )


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
