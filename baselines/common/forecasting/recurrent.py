"""What recurrent forecasters of a series have in common: their sizes, and how they are trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from serving_gym.calibration.fields import check_at_least, check_positive

_GRADIENT_NORM = 1.0
_LAST_RATE = 0.1  # share of the learning rate at the end


@dataclass(frozen=True)
class RecurrentConfig:
    """Network and training.

    Attributes:
        history: Steps that a forecast looks back.
        hidden: Width of the state.
        epochs: Passes over the data.
        batch_size: Windows a step.
        learning_rate: Of Adam, falling to a tenth.
    """

    history: int
    hidden: int
    epochs: int
    batch_size: int
    learning_rate: float

    def __post_init__(self) -> None:
        check_at_least(self, 1, "history", "hidden", "epochs", "batch_size")
        check_positive(self, "learning_rate")


def train(network: nn.Module, past: torch.Tensor, target: torch.Tensor, config: RecurrentConfig) -> None:
    """Least squares of the next step, by Adam over shuffled windows.

    Args:
        network: (batch, history) to (batch,).
        past: (N, history), normalised.
        target: (N,), normalised.
        config: Training.
    """
    optimizer = torch.optim.Adam(network.parameters(), config.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, _LAST_RATE, config.epochs)
    for _ in range(config.epochs):
        for batch in torch.split(torch.randperm(len(past)), config.batch_size):
            loss = nn.functional.mse_loss(network(past[batch]), target[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), _GRADIENT_NORM)
            optimizer.step()
        schedule.step()
