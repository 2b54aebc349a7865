"""A network that says when a model is asked for again, and what it is worth to keep it until then.

Time is cut into spans; for each the network gives the probability that the model is asked for in it if it was not
before (a hazard; Gensheimer and Narasimhan 2019, "A scalable discrete-time survival model for neural networks"). To
keep an instance for a while buys a chance of a hit and costs the time that its memory is held. The most hits for a
second of holding that any while promises is its worth: the index of Gittins (1979), which for requests without memory
is their rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.learners.reuse.moments import DEMAND_FEATURES, Moments

# Ends of the spans, s; source: ours.
SPANS_S = np.array([2, 4, 8, 16, 30, 45, 60, 75, 100, 140, 200, 280, 400, 560, 800, 1200, 1800], np.float64)
_BEGINS_S = np.concatenate([[0.0], SPANS_S[:-1]])
_CENTRE, _SPREAD = 4.0, 2.0  # of what is seen, about

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


class ReuseNetwork(nn.Module):
    """Hazards of the spans.

    Args:
        width: Of the hidden layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(len(DEMAND_FEATURES), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, len(SPANS_S)),
        )

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        """(batch, spans), logits.

        Args:
            seen: (batch, features).
        """
        logits: torch.Tensor = self.layers((seen - _CENTRE) / _SPREAD)
        return logits

    def export(self) -> ReuseScorer:
        """A copy that runs without torch."""
        layers = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        return ReuseScorer(
            tuple(
                (layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy())
                for layer in layers
            )
        )


@dataclass(frozen=True)
class ReuseScorer:
    """A `ReuseNetwork` in NumPy.

    Attributes:
        layers: Weights and biases.
    """

    layers: tuple[Layer, ...]

    def hazards(self, seen: NDArray[np.float32]) -> NDArray[np.float64]:
        """(M, spans), probability to be asked for in each span if not before.

        Args:
            seen: (M, features).
        """
        values = (seen - np.float32(_CENTRE)) / np.float32(_SPREAD)
        for number, (weights, biases) in enumerate(self.layers):
            values = values @ weights + biases
            if number < len(self.layers) - 1:
                values = np.maximum(values, 0.0)
        return np.asarray(1.0 / (1.0 + np.exp(-values)), np.float64)

    def worth(self, seen: NDArray[np.float32]) -> NDArray[np.float64]:
        """(M,), hits for a second of keeping, 1/s.

        Args:
            seen: (M, features).
        """
        return gittins(self.hazards(seen))


def gittins(hazards: NDArray[np.float64]) -> NDArray[np.float64]:
    """(M,), the most hits for a second of holding, over all times to give up, 1/s.

    Args:
        hazards: (M, spans).
    """
    left = np.cumprod(1.0 - hazards, axis=1)  # not asked for until the end of a span
    before = np.concatenate([np.ones((len(left), 1)), left[:, :-1]], axis=1)
    held_s = np.cumsum((before + left) / 2.0 * (SPANS_S - _BEGINS_S), axis=1)
    index: NDArray[np.float64] = ((1.0 - left) / held_s).max(axis=1)
    return index


def targets(moments: Moments) -> tuple[torch.Tensor, torch.Tensor]:
    """What is learned: in which span each model was asked for, and which spans say something; (M, spans) each."""
    until_s, asked = moments.until_s[:, None], moments.asked[:, None]
    hit = asked & (until_s >= _BEGINS_S) & (until_s < SPANS_S)
    known = np.where(asked, until_s >= _BEGINS_S, until_s >= SPANS_S)
    return torch.from_numpy(hit.astype(np.float32)), torch.from_numpy(known.astype(np.float32))


def loss_of(logits: torch.Tensor, hit: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Minus the mean log-likelihood of a moment.

    Args:
        logits: (batch, spans).
        hit: As `targets` has them.
        known: Likewise.
    """
    each = nn.functional.binary_cross_entropy_with_logits(logits, hit, reduction="none")
    return (each * known).sum(dim=1).mean()
