"""The action-value network: state and action vector in, one score out; trained in torch, run in NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

FloatArray = NDArray[np.float32]
NEVER = 1e6  # a margin that no score exceeds: the action of the start always has the highest one
_BEYOND = 0.25  # of a feature's range in training; what is further outside is strange
_LEAST_ROOM = 0.1  # of features whose scales make 1 a lot


class Scores(Protocol):
    """What tells actions apart."""

    def scores(self, state: FloatArray, actions: FloatArray) -> FloatArray:
        """(num_actions,), one score an action; higher ones are better.

        Args:
            state: (state_size,).
            actions: (num_actions, action_size).
        """
        ...


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
        margin: Added to the score of the action whose last feature is 1: what others must promise beyond it.
        low: (state_size,); where a feature of the state lies below, that action has the highest score. None: no limits.
        high: (state_size,), likewise above.
    """

    state_weight: FloatArray
    action_weight: FloatArray
    hidden_bias: FloatArray
    middle_weight: FloatArray
    middle_bias: FloatArray
    out_weight: FloatArray
    margin: float = 0.0
    low: FloatArray | None = None
    high: FloatArray | None = None

    def scores(self, state: FloatArray, actions: FloatArray) -> FloatArray:
        """(num_actions,), one score an action.

        Args:
            state: (state_size,).
            actions: (num_actions, action_size).
        """
        if self.margin >= NEVER or (
            self.low is not None
            and self.high is not None
            and ((state < self.low) | (state > self.high)).any()
        ):
            return actions[:, -1]
        hidden = np.maximum(
            actions @ self.action_weight + (state @ self.state_weight + self.hidden_bias), 0.0
        )
        hidden = np.maximum(hidden @ self.middle_weight + self.middle_bias, 0.0)
        result: FloatArray = hidden @ self.out_weight
        return result + self.margin * actions[:, -1] if self.margin else result


@dataclass
class ScoreCommittee:
    """Several such networks of one size, whose scores are averaged; all run at once.

    Attributes:
        state_weight: (state_size, members * hidden).
        action_weight: (action_size, members * hidden).
        hidden_bias: (members * hidden,).
        middle_weight: (members, hidden, hidden).
        middle_bias: (members, 1, hidden).
        out_weight: (members, hidden, 1).
        margin: (members,), as of one network.
        low: (members, state_size), likewise. None: no limits.
        high: (members, state_size).
    """

    state_weight: FloatArray
    action_weight: FloatArray
    hidden_bias: FloatArray
    middle_weight: FloatArray
    middle_bias: FloatArray
    out_weight: FloatArray
    margin: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None

    def scores(self, state: FloatArray, actions: FloatArray) -> FloatArray:
        """(num_actions,), as of one network."""
        members, width = self.middle_weight.shape[:2]
        hidden = np.maximum(
            actions @ self.action_weight + (state @ self.state_weight + self.hidden_bias), 0.0
        )
        apart = hidden.reshape(len(actions), members, width).transpose(1, 0, 2)
        apart = np.maximum(apart @ self.middle_weight + self.middle_bias, 0.0)
        each: FloatArray = (apart @ self.out_weight)[:, :, 0]
        if self.low is not None and self.high is not None:
            usual = actions[:, -1]
            strange = np.asarray(((state < self.low) | (state > self.high)).any(axis=1))
            strange |= self.margin >= NEVER
            each = np.where(strange[:, None], usual, each + self.margin[:, None] * usual)
        result: FloatArray = each.mean(axis=0)
        return result


class TrainableNetwork(nn.Module):
    """The same network in torch.

    Args:
        state_size: Length of a state vector.
        action_size: Length of an action vector.
        hidden: Width.
        started: Whether the last feature of an action says that the policy that was started from would do it. The
            network then has a margin in its favour, which is set and not trained, and does as it does in states that
            are unlike all that it was trained on.
    """

    margin: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, state_size: int, action_size: int, hidden: int, started: bool = False) -> None:
        super().__init__()
        self.started = started
        if started:
            self.register_buffer("margin", torch.zeros(()))
            self.register_buffer("low", torch.full((state_size,), -torch.inf))
            self.register_buffer("high", torch.full((state_size,), torch.inf))
        self.state = nn.Linear(state_size, hidden)
        self.action = nn.Linear(action_size, hidden, bias=False)
        self.middle = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, state: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """(batch, num_actions) scores from (batch, state_size) and (batch, num_actions, action_size)."""
        hidden = torch.relu(self.state(state)[:, None, :] + self.action(actions))
        scores: torch.Tensor = self.out(torch.relu(self.middle(hidden))).squeeze(-1)
        if not self.started:
            return scores
        usual = actions[:, :, -1]
        strange = ((state < self.low) | (state > self.high)).any(dim=1, keepdim=True) | (self.margin >= NEVER)
        return torch.where(strange, usual, scores + self.margin * usual)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Weights without limits have none."""
        if self.started:
            for name in ("low", "high"):
                state_dict.setdefault(prefix + name, getattr(self, name))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def know(self, states: FloatArray) -> None:
        """From now on, states are strange that have a feature far beyond its range in these.

        Args:
            states: (N, state_size).
        """
        low, high = states.min(axis=0), states.max(axis=0)
        room = _BEYOND * (high - low) + _LEAST_ROOM
        self.low.copy_(torch.from_numpy(low - room))
        self.high.copy_(torch.from_numpy(high + room))

    @torch.no_grad()
    def weigh(self, factor: float) -> None:
        """Multiplies all scores, in states that are not strange."""
        self.out.weight.mul_(factor)
        if self.started and self.margin < NEVER:
            self.margin.mul_(factor)

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
            margin=float(self.margin) if self.started else 0.0,
            low=self.low.numpy().copy() if self.started else None,
            high=self.high.numpy().copy() if self.started else None,
        )


class Committee(nn.Module):
    """Networks that decide together, by the mean of their scores.

    Args:
        networks: At least one, all of the same sizes, all with a start or none.
    """

    def __init__(self, networks: Iterable[TrainableNetwork]) -> None:
        super().__init__()
        self.networks = tuple(networks)
        self.members = nn.ModuleList(self.networks)

    def forward(self, state: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """As of one network."""
        return torch.stack([network(state, actions) for network in self.networks]).mean(dim=0)

    def export(self) -> ScoreCommittee:
        """A copy that runs without torch."""
        each = [network.export() for network in self.networks]
        return ScoreCommittee(
            state_weight=np.concatenate([one.state_weight for one in each], axis=1),
            action_weight=np.concatenate([one.action_weight for one in each], axis=1),
            hidden_bias=np.concatenate([one.hidden_bias for one in each]),
            middle_weight=np.stack([one.middle_weight for one in each]),
            middle_bias=np.stack([one.middle_bias for one in each])[:, None, :],
            out_weight=np.stack([one.out_weight for one in each])[:, :, None],
            margin=np.array([one.margin for one in each], np.float32),
            low=_stacked(one.low for one in each),
            high=_stacked(one.high for one in each),
        )


def _stacked(limits: Iterable[FloatArray | None]) -> FloatArray | None:
    there = [limit for limit in limits if limit is not None]
    return np.stack(there) if there else None
