"""Training of the score network."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.swa_utils import AveragedModel

from serving_gym.agents.learners.api.config import PolicyIterationConfig

Vary = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def fit(
    network: nn.Module,
    states: NDArray[np.float32],
    actions: NDArray[np.float32],
    advantages: NDArray[np.float32],
    valid: NDArray[np.bool_],
    config: PolicyIterationConfig,
    generator: torch.Generator,
    vary: Vary | None = None,
) -> float:
    """Makes the softmax of the scores maximise the expected advantage; returns the last epoch's mean of it.

    Every candidate's return is known at every sampled state, so the gain of a stochastic policy is an exact sum over
    candidates and its gradient has no sampling noise. Unlike a regression of returns this spends the network on what
    decides: a rare disaster is avoided as soon as it has no probability, however large it is.

    Args:
        network: What is trained; it takes states and actions and gives (num_states, num_candidates) scores.
        states: (num_states, state_size).
        actions: (num_states, num_candidates, action_size), padded.
        advantages: (num_states, num_candidates).
        valid: (num_states, num_candidates), which candidates are real.
        config: Epochs, states a step, learning rate (it falls to a tenth) and weights of the entropy. A policy that is
            sure too early stops learning where states differ, so the entropy's weight falls geometrically from first to
            last epoch. Where weights are averaged, it is the averages that the network has in the end.
        generator: Shuffles.
        vary: Gives other states, (B, state_size), for which the same actions are as good; None: there are none.
    """
    x, a = torch.from_numpy(states), torch.from_numpy(actions)
    y, m = torch.from_numpy(advantages), torch.from_numpy(valid)
    optimizer = torch.optim.AdamW(network.parameters(), config.learning_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, config.epochs)
    steps = config.epochs * math.ceil(len(x) / config.batch_size)
    averages, left = AveragedModel(network), steps
    total = 0.0
    for weight in np.geomspace(*config.entropy_weights, config.epochs):
        order = torch.randperm(len(x), generator=generator)
        total = 0.0
        for batch in torch.split(order, config.batch_size):
            seen = x[batch] if vary is None else vary(x[batch], generator)
            log_probs = torch.log_softmax(network(seen, a[batch]).masked_fill(~m[batch], -1e9), dim=1)
            probs = log_probs.exp()
            gain = (probs * y[batch]).sum(1).mean()
            spread = -(probs * log_probs.masked_fill(~m[batch], 0.0)).sum(1).mean()
            optimizer.zero_grad()
            (-gain - float(weight) * spread).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            left -= 1
            if left < config.averaged * steps:
                averages.update_parameters(network)
            total += float(gain.detach()) * len(batch)
        schedule.step()
    if config.averaged:
        network.load_state_dict(averages.module.state_dict())
    return total / len(x)
