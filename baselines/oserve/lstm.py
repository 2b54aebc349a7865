"""LSTM forecasters (section 5.1, S2): one network a type, and one of the total alone as section 6.3 compares.

The text gives the sequence length and the split; size of the network and training are ours. A count is divided by the
root of the mean count, so that Poisson noise has one size whatever the rate, and centred; the network says by how much
the next span differs from the last one of the window. Everything runs on one thread and from its own random state: a
seed gives the same forecasts whatever ran before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from serving_gym.baselines.common.forecasting.determinism import alone
from serving_gym.baselines.common.forecasting.recurrent import RecurrentConfig, train
from serving_gym.baselines.oserve.forecast import HISTORY, padded, windows

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class LstmConfig(RecurrentConfig):
    """Network and training.

    Attributes:
        history: Spans that a forecast looks back. Source: section 5.1, 50.
        hidden: Width of the LSTM. Source: ours.
        epochs: Passes over the data. Source: ours.
        batch_size: Windows a step. Source: ours.
        learning_rate: Of Adam, falling to a tenth. Source: ours.
    """

    history: int = HISTORY
    hidden: int = 32
    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 3e-3


class SeriesNetwork(nn.Module):
    """(batch, history) normalised counts to (batch,) normalised counts of the next span."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        """The last count and what the network adds to it."""
        states, _ = self.lstm(past[..., None])
        change: torch.Tensor = self.out(states[:, -1])[:, 0]
        return past[:, -1] + change


class SeriesLstm:
    """An LSTM over one series.

    Args:
        config: Network and training.
        seed: Of the initial weights and the order of windows.
    """

    def __init__(self, config: LstmConfig, seed: int) -> None:
        self.config, self.seed = config, seed
        self.centre, self.scale = 0.0, 1.0
        with alone(seed):
            self.network = SeriesNetwork(config.hidden)

    def fit(self, series: FloatArray) -> None:
        """Trains on a series.

        Args:
            series: (T,), counts, more than `history` of them.
        """
        self.centre = float(series.mean())
        self.scale = max(float(np.sqrt(self.centre)), 1.0)
        normal = (series - self.centre) / self.scale
        past = torch.from_numpy(windows(normal[:, None], self.config.history)[:, :, 0].astype(np.float32))
        target = torch.from_numpy(normal[self.config.history :].astype(np.float32))
        with alone(self.seed):
            train(self.network, past, target, self.config)

    def predict(self, past: FloatArray) -> float:
        """The next count, not negative.

        Args:
            past: (history,), counts.
        """
        normal = torch.from_numpy(((past - self.centre) / self.scale).astype(np.float32))
        with alone(self.seed), torch.no_grad():
            ahead = float(self.network(normal[None])[0])
        return max(0.0, ahead * self.scale + self.centre)


class TypeLstm:
    """One LSTM for each workload type: OServe's predictor.

    Args:
        config: Network and training; None: the defaults.
        seed: Of all networks.
    """

    def __init__(self, config: LstmConfig | None = None, seed: int = 0) -> None:
        self.config, self.seed = config or LstmConfig(), seed
        self.history = self.config.history
        self.networks: list[SeriesLstm] = []

    def fit(self, counts: FloatArray) -> None:
        """Trains the network of every type.

        Args:
            counts: (T, J), more than `history` spans.
        """
        self.networks = [SeriesLstm(self.config, self.seed * 1000 + j) for j in range(counts.shape[1])]
        for network, series in zip(self.networks, np.asarray(counts, np.float64).T, strict=True):
            network.fit(series)

    def predict(self, past: FloatArray) -> FloatArray:
        """(J,), requests of each type in the next span.

        Raises:
            ValueError: It is not fitted, or to another number of types.
        """
        recent = padded(past, self.history)
        if len(self.networks) != recent.shape[1]:
            raise ValueError(
                f"the forecaster is fitted to {len(self.networks)} types, past has {recent.shape[1]}"
            )
        pairs = zip(self.networks, recent.T, strict=True)
        return np.array([network.predict(series) for network, series in pairs])


class TotalLstm:
    """One LSTM of all requests together, without types (section 6.3).

    Reading: the scheduler needs types; they get the shares of the total that they had in the history (source: ours).

    Args:
        config: Network and training; None: the defaults.
        seed: Of the network.
    """

    def __init__(self, config: LstmConfig | None = None, seed: int = 0) -> None:
        self.config = config or LstmConfig()
        self.history = self.config.history
        self.network = SeriesLstm(self.config, seed)

    def fit(self, counts: FloatArray) -> None:
        """Trains on the total.

        Args:
            counts: (T, J), more than `history` spans.
        """
        self.network.fit(np.asarray(counts, np.float64).sum(axis=1))

    def predict(self, past: FloatArray) -> FloatArray:
        """(J,), requests of each type in the next span."""
        recent = padded(past, self.history)
        by_type = recent.sum(axis=0)
        shares = by_type / by_type.sum() if by_type.sum() > 0 else np.full(len(by_type), 1 / len(by_type))
        return np.asarray(shares * self.network.predict(recent.sum(axis=1)), np.float64)
