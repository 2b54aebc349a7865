"""Features of a cluster: every engine seen through the same small network, then all of them together, then in order."""

from __future__ import annotations

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class SetFeatures(BaseFeaturesExtractor):
    """Encodes `Dict(engines=(E, F), cluster=(G,))`.

    One network is shared by all engine rows; its outputs are averaged and maximised over the engines (what the node as
    a whole is like), and a narrow projection of each row is kept in order (a layout names places, so they matter).

    Args:
        observation_space: The environment's.
        row_width: Width of the shared network.
        place_width: Numbers kept of each row in order.
    """

    def __init__(self, observation_space: spaces.Dict, row_width: int = 32, place_width: int = 4) -> None:
        num_rows, num_features = observation_space["engines"].shape  # type: ignore[misc]
        (num_cluster,) = observation_space["cluster"].shape  # type: ignore[misc]
        super().__init__(observation_space, 2 * row_width + num_rows * place_width + num_cluster)
        self.row = nn.Sequential(
            nn.Linear(num_features + num_cluster, row_width),
            nn.Tanh(),
            nn.Linear(row_width, row_width),
            nn.Tanh(),
        )
        self.place = nn.Linear(row_width, place_width)

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """(batch, features_dim)."""
        engines, cluster = observation["engines"], observation["cluster"]
        context = cluster.unsqueeze(1).expand(-1, engines.shape[1], -1)
        rows = self.row(torch.cat([engines, context], dim=2))
        places = self.place(rows).flatten(1)
        return torch.cat([rows.mean(dim=1), rows.amax(dim=1), places, cluster], dim=1)
