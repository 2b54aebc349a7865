"""The multiplicative LSTM by which PreServe forecasts tokens of a service (section 4.1).

Krause et al. (arXiv 1609.07959): an intermediate state m_t = (W_mx x_t) * (W_mh h_{t-1}) takes the place of h_{t-1} in
every gate of an LSTM. PreServe's text gives windows of ten minutes, min-max normalisation and that k windows precede
the one that is forecast; k, the size of the network and its training are ours, and that it says by how much the next
window differs from the last one: on the training halves of real series it errs less so than without.

Algorithm 1 normalises, in its line 3, the k windows together with the one that is to be forecast. Online that one is
not known, so that minimum and maximum are those of all the training series here. Everything runs on one thread and from
its own random state: a seed gives the same forecasts whatever ran before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from serving_gym.baselines.common.forecasting.determinism import alone
from serving_gym.baselines.common.forecasting.recurrent import RecurrentConfig, train
from serving_gym.baselines.common.forecasting.series import FloatArray, as_series, filled


@dataclass(frozen=True)
class MlstmConfig(RecurrentConfig):
    """Network and training.

    Attributes:
        history: k, windows that a forecast looks back. Source: ours, six hours of ten-minute windows.
        hidden: Width of the state. Source: ours.
        epochs: Passes over the data. Source: ours.
        batch_size: Windows a step. Source: ours.
        learning_rate: Of Adam, falling to a tenth. Source: ours.
    """

    history: int = 36
    hidden: int = 32
    epochs: int = 60
    batch_size: int = 128
    learning_rate: float = 5e-3


class MlstmCell(nn.Module):
    """One step: (batch, inputs) and states (batch, hidden) to the next states.

    Args:
        inputs: Values a step.
        hidden: Width of the states.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, hidden, bias=False)  # W_mx
        self.from_state = nn.Linear(hidden, hidden, bias=False)  # W_mh
        self.gates_of_input = nn.Linear(inputs, 4 * hidden)  # W_hx, W_ix, W_fx, W_ox
        self.gates_of_product = nn.Linear(hidden, 4 * hidden, bias=False)  # W_hm, W_im, W_fm, W_om

    def forward(
        self, x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next hidden state and the next cell state."""
        product = self.from_input(x) * self.from_state(hidden)
        update, enter, forget, out = (self.gates_of_input(x) + self.gates_of_product(product)).chunk(4, dim=1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(update)
        return torch.sigmoid(out) * torch.tanh(cell), cell


class MlstmNetwork(nn.Module):
    """(batch, history) normalised values to (batch,) normalised values of the next window.

    Args:
        hidden: Width of the states.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = MlstmCell(1, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        """The last value and what the network adds to it.

        The state starts at one, as a state of zero would never multiply into anything else.
        """
        state = past.new_ones(len(past), self.hidden)
        cell = past.new_zeros(len(past), self.hidden)
        for step in range(past.shape[1]):
            state, cell = self.cell(past[:, step : step + 1], state, cell)
        change: torch.Tensor = self.out(state)[:, 0]
        return past[:, -1] + change


@lru_cache(maxsize=64)
def _trained(config: MlstmConfig, seed: int, series: bytes) -> MlstmNetwork:
    """A network trained on a normalised series of single precision; policies of one episode train on the same past."""
    normal = np.frombuffer(series, np.float32)
    view = np.lib.stride_tricks.sliding_window_view(normal[:-1], config.history)
    past = torch.from_numpy(np.ascontiguousarray(view))
    target = torch.from_numpy(normal[config.history :].copy())
    with alone(seed):
        network = MlstmNetwork(config.hidden)
        train(network, past, target, config)
    return network


class Mlstm:
    """A multiplicative LSTM of one series; further than one window ahead it looks by its own forecasts (Algorithm 2).

    Args:
        config: Network and training; None: the defaults.
        seed: Of the initial weights and the order of windows.
    """

    def __init__(self, config: MlstmConfig | None = None, seed: int = 0) -> None:
        self.config, self.seed = config or MlstmConfig(), seed
        self._low, self._span = 0.0, 1.0
        self._network: MlstmNetwork | None = None

    def fit(self, series: FloatArray) -> None:
        """Trains on all windows with k windows before them (Algorithm 1, lines 3 to 5 and 9).

        Raises:
            ValueError: There are not more than k values.
        """
        values = filled(as_series(series, self.config.history + 1))
        self._low = float(values.min())
        self._span = float(values.max() - self._low) or 1.0
        normal = ((values - self._low) / self._span).astype(np.float32)
        self._network = _trained(self.config, self.seed, normal.tobytes())

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), each window from what precedes it, forecasts included (Algorithm 2, lines 2 to 4).

        Where fewer than k values are known, the first one stands for those that are missing.

        Raises:
            ValueError: It is not fitted.
        """
        if self._network is None:
            raise ValueError("the forecaster is not fitted")
        known = filled(as_series(past))[-self.config.history :]
        missing = np.full(self.config.history - len(known), known[0])
        normal = (np.concatenate([missing, known]) - self._low) / self._span
        window = torch.from_numpy(normal.astype(np.float32))[None]
        ahead = np.empty(steps)
        with alone(self.seed), torch.no_grad():
            for step in range(steps):
                following = self._network(window)
                ahead[step] = float(following[0])
                window = torch.cat([window[:, 1:], following[:, None]], dim=1)
        return np.asarray(np.maximum(ahead * self._span + self._low, 0.0), np.float64)
