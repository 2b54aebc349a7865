"""A masked actor-critic whose actor knows what a layout is and that staying is the usual thing to do.

The logits of the 78 actions are not free numbers: the score of a layout adds up, over the base engines, what it gives
each of them (a group of length 1, 2, 4 or 8), so that layouts which agree in a part of the node learn from each other;
each action has a small term of its own besides. The action that keeps the present target layout starts with a bonus:
an untrained actor switches now and then, not at every decision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn

from agents.dp_tp.features import SetFeatures
from envs.dp_tp.action import NUM_MODES
from envs.dp_tp.observation import ENGINE_FEATURES
from envs.layout import all_layouts, groups_of

_TARGET_WIDTH = ENGINE_FEATURES.index("target_width")


def layout_ranks(num_base: int) -> NDArray[np.int64]:
    """(layouts, base engines), log2 of the length of the group that each base engine belongs to."""
    return np.array(
        [
            [int(math.log2(group.length)) for group in groups_of(layout) for _ in group.members]
            for layout in all_layouts(num_base)
        ]
    )


class LayoutFeatures(SetFeatures):
    """`SetFeatures`, preceded by the target width of every base engine, from which the present layout is recognised."""

    def __init__(self, observation_space: Any, **kwargs: int) -> None:
        super().__init__(observation_space, **kwargs)
        self.num_base = observation_space["engines"].shape[0]
        self._features_dim += self.num_base

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """(batch, features_dim)."""
        return torch.cat([observation["engines"][:, :, _TARGET_WIDTH], super().forward(observation)], dim=1)


class _PassingOn(nn.Module):
    """The usual two networks; the actor's output is followed by the target widths.

    Attributes:
        latent_dim_pi: Size of the actor's output.
        latent_dim_vf: Size of the critic's.
    """

    def __init__(self, num_base: int, networks: MlpExtractor) -> None:
        super().__init__()
        self.num_base, self.networks = num_base, networks
        self.latent_dim_pi = networks.latent_dim_pi + num_base
        self.latent_dim_vf = networks.latent_dim_vf

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.networks.forward_actor(features), features[:, : self.num_base]], dim=1)

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        return self.networks.forward_critic(features)


class LayoutHead(nn.Module):
    """Logits of the actions.

    Args:
        latent_dim: Size of the actor's output, target widths not counted.
        num_base: Base engines of the node.
        stay_probability: Probability with which an untrained actor keeps the layout.
    """

    def __init__(self, latent_dim: int, num_base: int, stay_probability: float) -> None:
        super().__init__()
        self.num_base = num_base
        self.ranks: torch.Tensor
        self.parts: torch.Tensor
        ranks = layout_ranks(num_base)
        num_ranks = int(ranks.max()) + 1
        self.register_buffer("ranks", torch.as_tensor(ranks / max(num_ranks - 1, 1), dtype=torch.float32))
        self.register_buffer("parts", torch.as_tensor(_parts(ranks), dtype=torch.float32))
        self.scores = nn.Linear(latent_dim, len(_parts(ranks)) + NUM_MODES)
        self.own = nn.Linear(latent_dim, len(ranks) * NUM_MODES)
        num_others = len(ranks) * NUM_MODES - 1
        bonus = math.log(stay_probability / (1.0 - stay_probability) * num_others)
        self.stay = nn.Parameter(torch.tensor(bonus, dtype=torch.float32))

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """(batch, actions)."""
        latent, widths = latent[:, : -self.num_base], latent[:, -self.num_base :]
        scores = self.scores(latent)
        layouts = scores[:, :-NUM_MODES] @ self.parts
        logits = layouts.unsqueeze(2) + scores[:, -NUM_MODES:].unsqueeze(1)
        present = (widths.unsqueeze(1) - self.ranks).abs().amax(dim=2) < 1e-3
        # the bonus is for the sequential mode alone: with the present layout, that is to stay
        staying = torch.stack([present, torch.zeros_like(present), torch.zeros_like(present)], dim=2)
        return (logits + self.stay * staying).flatten(1) + self.own(latent)


def _parts(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """(parts, layouts): for each place and length, whether a layout has it; for each length, its share of the node."""
    num_ranks = int(ranks.max()) + 1
    places = (ranks[:, :, None] == np.arange(num_ranks)).astype(np.float64)
    return np.concatenate([places.reshape(len(ranks), -1) / ranks.shape[1], places.mean(axis=1)], axis=1).T


class LayoutPolicy(MaskableMultiInputActorCriticPolicy):
    """MaskablePPO's policy for the DP/TP environment.

    Args:
        stay_probability: Probability with which an untrained actor keeps the layout.
    """

    def __init__(self, *args: Any, stay_probability: float = 0.9, **kwargs: Any) -> None:
        self.stay_probability = stay_probability
        kwargs["features_extractor_class"] = LayoutFeatures
        super().__init__(*args, **kwargs)

    def _build_mlp_extractor(self) -> None:
        super()._build_mlp_extractor()
        self.mlp_extractor = _PassingOn(self.features_extractor.num_base, self.mlp_extractor)  # type: ignore[assignment, arg-type]

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        num_base = int(self.features_extractor.num_base)  # type: ignore[arg-type]
        latent_dim = self.mlp_extractor.latent_dim_pi - num_base
        self.action_net = LayoutHead(latent_dim, num_base, self.stay_probability)
        for layer in (self.action_net.scores, self.action_net.own):
            self.init_weights(layer, gain=0.01)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "stay_probability": self.stay_probability}
