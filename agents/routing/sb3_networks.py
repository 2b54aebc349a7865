"""The set network as Stable-Baselines3 wants its policies."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.dqn.policies import MultiInputPolicy, QNetwork
from torch import nn

from agents.routing.set_network import HOLD_BIAS, SetNetwork

_LOGIT_GAIN = 0.01  # of the last layers of an actor, as Stable-Baselines3 has it


class FlatObservation(BaseFeaturesExtractor):
    """`Dict(places=(R, F), request=(Q,), cluster=(G,))` in one vector, which is what Stable-Baselines3 hands on."""

    def __init__(self, observation_space: spaces.Dict) -> None:
        sizes = {key: int(torch.Size(space.shape or ()).numel()) for key, space in observation_space.items()}
        super().__init__(observation_space, sum(sizes.values()))
        self.context_size = sizes["request"] + sizes["cluster"]
        self.num_rows, self.place_size = observation_space["places"].shape or (0, 0)

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """(batch, features_dim), the context first."""
        return torch.cat(
            [observation["request"], observation["cluster"], observation["places"].flatten(1)], dim=1
        )


class _Unflattened(nn.Module):
    """A set network behind `FlatObservation`."""

    def __init__(self, features: FlatObservation, row_width: int, hidden_widths: tuple[int, ...]) -> None:
        super().__init__()
        self.context_size, self.num_rows = features.context_size, features.num_rows
        self.network = SetNetwork(features.context_size, row_width, hidden_widths, features.place_size)

    def encode(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and pool of the set network."""
        context, places = features[:, : self.context_size], features[:, self.context_size :]
        return self.network.encode(context, places.reshape(len(features), self.num_rows, -1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(batch, R + 1) scores."""
        return self.network.all_scores(*self.encode(features))


class _ActorCritic(_Unflattened):
    """Logits and value; what follows it is the identity.

    Attributes:
        latent_dim_pi: Number of logits.
        latent_dim_vf: 1.
    """

    def __init__(self, features: FlatObservation, row_width: int, hidden_widths: tuple[int, ...]) -> None:
        super().__init__(features, row_width, hidden_widths)
        self.latent_dim_pi, self.latent_dim_vf = self.num_rows + 1, 1
        widths = (2 * row_width + self.context_size, *hidden_widths)
        layers: list[nn.Module] = []
        for width, following in zip(widths, hidden_widths, strict=False):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.value = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Logits (batch, R + 1) and values (batch, 1)."""
        rows, pooled = self.encode(features)
        return self.network.all_scores(rows, pooled), self.value(pooled)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        """Logits alone."""
        return self.network.all_scores(*self.encode(features))

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        """Values alone."""
        _, pooled = self.encode(features)
        value: torch.Tensor = self.value(pooled)
        return value


def _with_set_network(base: Any) -> Any:
    """One of Stable-Baselines3's actor-critics, made to hold a set network.

    The new class takes the width of its rows, `row_width`, and has the actor as `set_network`.
    """

    class SetActorCritic(base):
        def __init__(self, *args: Any, row_width: int = 32, **kwargs: Any) -> None:
            self.row_width = row_width
            kwargs["features_extractor_class"] = FlatObservation
            super().__init__(*args, **kwargs)

        @property
        def set_network(self) -> SetNetwork:
            network: SetNetwork = self.mlp_extractor.network
            return network

        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor = _ActorCritic(self.features_extractor, self.row_width, tuple(self.net_arch))

        def _build(self, lr_schedule: Any) -> None:
            super()._build(lr_schedule)
            self.action_net, self.value_net = nn.Identity(), nn.Identity()
            for head in (self.set_network.score, self.set_network.hold):
                self.init_weights(head[-1], gain=_LOGIT_GAIN)
            nn.init.constant_(self.set_network.hold[-1].bias, HOLD_BIAS)  # type: ignore[arg-type]
            self.optimizer = self.optimizer_class(
                self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
            )

        def _get_constructor_parameters(self) -> dict[str, Any]:
            return {**super()._get_constructor_parameters(), "row_width": self.row_width}

    return SetActorCritic


SetActorCriticPolicy = _with_set_network(MultiInputActorCriticPolicy)  # PPO's
MaskableSetActorCriticPolicy = _with_set_network(MaskableMultiInputActorCriticPolicy)  # MaskablePPO's


class SetQNetwork(QNetwork):
    """Values of sending the request to each place and of holding it."""

    def __init__(self, *args: Any, row_width: int = 32, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.features_extractor, FlatObservation)
        self.q_net = _Unflattened(self.features_extractor, row_width, tuple(self.net_arch))  # type: ignore[assignment]


class SetQPolicy(MultiInputPolicy):
    """DQN's policy for routing.

    Args:
        row_width: Of the set network.
    """

    def __init__(self, *args: Any, row_width: int = 32, **kwargs: Any) -> None:
        self.row_width = row_width
        kwargs["features_extractor_class"] = FlatObservation
        super().__init__(*args, **kwargs)

    @property
    def set_network(self) -> SetNetwork:
        """The network that acts."""
        network: SetNetwork = self.q_net.q_net.network  # type: ignore[assignment]
        return network

    def make_q_net(self) -> QNetwork:
        """The set network in place of a perceptron."""
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        return SetQNetwork(**arguments, row_width=self.row_width).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "row_width": self.row_width}
