"""The action-value network: state and action vector in, one score out; trained in torch, run in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from agents.api.config import APIConfig

FloatArray = NDArray[np.float32]


@dataclass
class ScoreNetwork:
    """Two hidden layers; higher scores are better. The first layer is split so that the state is read once.

    Attributes:
        state_weight: (state_size, hidden).
        action_weight: (action_size, hidden).
        hidden_bias: (hidden,).
        middle_weight: (hidden, hidden).
        middle_bias: (hidden,).
        out_weight: (hidden,).
    """

    state_weight: FloatArray
    action_weight: FloatArray
    hidden_bias: FloatArray
    middle_weight: FloatArray
    middle_bias: FloatArray
    out_weight: FloatArray

    def scores(self, state: FloatArray, actions: FloatArray) -> FloatArray:
        """(num_actions,), one score an action.

        Args:
            state: (state_size,).
            actions: (num_actions, action_size).
        """
        hidden = np.maximum(
            actions @ self.action_weight + (state @ self.state_weight + self.hidden_bias), 0.0
        )
        hidden = np.maximum(hidden @ self.middle_weight + self.middle_bias, 0.0)
        result: FloatArray = hidden @ self.out_weight
        return result


class TrainableNetwork(nn.Module):
    """The same network in torch."""

    def __init__(self, state_size: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.state = nn.Linear(state_size, hidden)
        self.action = nn.Linear(action_size, hidden, bias=False)
        self.middle = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, state: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """(batch, num_actions) scores from (batch, state_size) and (batch, num_actions, action_size)."""
        hidden = torch.relu(self.state(state)[:, None, :] + self.action(actions))
        scores: torch.Tensor = self.out(torch.relu(self.middle(hidden))).squeeze(-1)
        return scores

    def export(self) -> ScoreNetwork:
        """A copy that runs without torch."""

        def array(parameter: torch.Tensor) -> FloatArray:
            return np.ascontiguousarray(parameter.detach().numpy().astype(np.float32))

        return ScoreNetwork(
            state_weight=array(self.state.weight.T),
            action_weight=array(self.action.weight.T),
            hidden_bias=array(self.state.bias),
            middle_weight=array(self.middle.weight.T),
            middle_bias=array(self.middle.bias),
            out_weight=array(self.out.weight[0]),
        )


def fit(
    network: TrainableNetwork,
    states: FloatArray,
    actions: FloatArray,
    advantages: FloatArray,
    valid: NDArray[np.bool_],
    config: APIConfig,
    generator: torch.Generator,
    batch_size: int = 256,
) -> float:
    """Makes the softmax of the scores maximise the expected advantage; returns the last epoch's mean of it.

    Every candidate's return is known at every sampled state, so the gain of a stochastic policy is an exact sum over
    candidates and its gradient has no sampling noise. Unlike a regression of returns this spends the network on what
    decides: a rare disaster is avoided as soon as it has no probability, however large it is.

    Args:
        network: What is trained.
        states: (num_states, state_size).
        actions: (num_states, num_candidates, action_size), padded.
        advantages: (num_states, num_candidates).
        valid: (num_states, num_candidates), which candidates are real.
        config: Epochs, learning rate (it falls to a tenth) and weights of the entropy. A policy that is sure too early
            stops learning where states differ, so the entropy's weight falls geometrically from first to last epoch.
        generator: Shuffles.
        batch_size: States a step.
    """
    x, a = torch.from_numpy(states), torch.from_numpy(actions)
    y, m = torch.from_numpy(advantages), torch.from_numpy(valid)
    optimizer = torch.optim.AdamW(network.parameters(), config.learning_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, config.epochs)
    total = 0.0
    for weight in np.geomspace(*config.entropy_weights, config.epochs):
        order = torch.randperm(len(x), generator=generator)
        total = 0.0
        for batch in torch.split(order, batch_size):
            log_probs = torch.log_softmax(network(x[batch], a[batch]).masked_fill(~m[batch], -1e9), dim=1)
            probs = log_probs.exp()
            gain = (probs * y[batch]).sum(1).mean()
            spread = -(probs * log_probs.masked_fill(~m[batch], 0.0)).sum(1).mean()
            optimizer.zero_grad()
            (-gain - float(weight) * spread).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            total += float(gain.detach()) * len(batch)
        schedule.step()
    return total / len(x)
