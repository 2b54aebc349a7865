"""What recurrent forecasters of a series have in common: their sizes, and how they are trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

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
        for name in ("history", "hidden", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")


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
