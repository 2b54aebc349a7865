"""A network that knows what a layout is and that staying is the usual thing to do.

The scores of the 78 actions are not free numbers: the score of a layout adds up, over the base engines, what it gives
each of them (a group of length 1, 2, 4 or 8), so that layouts which agree in a part of the node learn from each other;
each action has a small term of its own besides. The action that keeps the present target layout starts with a bonus:
an untrained actor switches now and then, not at every decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.config import NetworkConfig
from serving_gym.agents.networks.networks import DecisionNetwork, Observation, Pooling, Rows, perceptron
from serving_gym.envs.dp_tp.action import NUM_MODES
from serving_gym.envs.dp_tp.observation import ENGINE_FEATURES
from serving_gym.envs.interface.layout import all_layouts, groups_of

_TARGET_WIDTH = ENGINE_FEATURES.index("target_width")


def layout_ranks(num_base: int) -> NDArray[np.int64]:
    """(layouts, base engines), log2 of the length of the group that each base engine belongs to."""
    return np.array(
        [
            [int(math.log2(group.length)) for group in groups_of(layout) for _ in group.members]
            for layout in all_layouts(num_base)
        ]
    )


class LayoutNetwork(DecisionNetwork):
    """Scores of layouts and of the ways to get there.

    Args:
        observation: What is seen: `engines` and `cluster`.
        config: Widths, and the probability with which an untrained actor keeps the layout.
        memory_size: Numbers that are given to `scores` besides.
    """

    def __init__(self, observation: spaces.Dict, config: NetworkConfig, memory_size: int = 0) -> None:
        super().__init__()
        num_base = (observation["engines"].shape or (0,))[0]
        self.pooling = Pooling(observation, ("engines", "cluster"), config.row_width, config.place_width)
        self.pooled_size = self.pooling.size
        self.hidden = perceptron(self.pooled_size + memory_size, config.hidden_widths, self.activation)
        self.ranks: torch.Tensor
        self.parts: torch.Tensor
        ranks = layout_ranks(num_base)
        num_ranks = int(ranks.max()) + 1
        self.register_buffer("ranks", torch.as_tensor(ranks / max(num_ranks - 1, 1), dtype=torch.float32))
        self.register_buffer("parts", torch.as_tensor(_parts(ranks), dtype=torch.float32))
        width = config.hidden_widths[-1]
        self.of_parts = nn.Linear(width, len(_parts(ranks)) + NUM_MODES)
        self.own = nn.Linear(width, len(ranks) * NUM_MODES)
        num_others = len(ranks) * NUM_MODES - 1
        bonus = math.log(config.stay_probability / (1.0 - config.stay_probability) * num_others)
        self.stay = nn.Parameter(torch.tensor(bonus, dtype=torch.float32))

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """The target width of every base engine, (batch, base engines), and everything pooled."""
        return (observation["engines"][:, :, _TARGET_WIDTH],), self.pooling(observation)

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, actions, 1)."""
        (widths,) = rows
        hidden = self.hidden(pooled)
        of_parts = self.of_parts(hidden)
        layouts = of_parts[:, :-NUM_MODES] @ self.parts
        scores = layouts.unsqueeze(2) + of_parts[:, -NUM_MODES:].unsqueeze(1)
        present = (widths.unsqueeze(1) - self.ranks).abs().amax(dim=2) < 1e-3
        # the bonus is for the sequential mode alone: with the present layout, that is to stay
        staying = torch.stack([present, torch.zeros_like(present), torch.zeros_like(present)], dim=2)
        all_scores: torch.Tensor = (scores + self.stay * staying).flatten(1) + self.own(hidden)
        return all_scores.unsqueeze(2)

    def last_layers(self) -> Iterable[nn.Module]:
        """Those of the parts of layouts and of single actions."""
        return self.of_parts, self.own


def _parts(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """(parts, layouts): for each place and length, whether a layout has it; for each length, its share of the node."""
    num_ranks = int(ranks.max()) + 1
    places = (ranks[:, :, None] == np.arange(num_ranks)).astype(np.float64)
    return np.concatenate([places.reshape(len(ranks), -1) / ranks.shape[1], places.mean(axis=1)], axis=1).T
