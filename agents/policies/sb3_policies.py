"""Policies of Stable-Baselines3 and sb3-contrib built on a `DecisionNetwork`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.qrdqn.policies import MultiInputPolicy as QRDQNPolicy
from sb3_contrib.qrdqn.policies import QuantileNetwork
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.dqn.policies import MultiInputPolicy as DQNPolicy
from stable_baselines3.dqn.policies import QNetwork
from torch import nn

from serving_gym.agents.networks.networks import DecisionNetwork, Rows, perceptron

MakeNetwork = Callable[[], DecisionNetwork]


class PooledObservation(BaseFeaturesExtractor):
    """What a network makes of all of an observation together.

    Args:
        observation_space: What is seen.
        make_network: The network.
    """

    def __init__(self, observation_space: spaces.Dict, make_network: MakeNetwork) -> None:
        network = make_network()
        super().__init__(observation_space, network.pooled_size)
        self.network = network

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """(batch, pooled_size)."""
        return self.network.encode(observation)[1]


class EncodedObservation(BaseFeaturesExtractor):
    """What a network makes of an observation, in one vector, which is what Stable-Baselines3 hands on.

    Args:
        observation_space: What is seen.
        make_network: The network.
    """

    def __init__(self, observation_space: spaces.Dict, make_network: MakeNetwork) -> None:
        network = make_network()
        with torch.no_grad():
            nothing = {key: torch.zeros(1, *(part.shape or ())) for key, part in observation_space.items()}
            rows, _ = network.encode(nothing)
        shapes = [tuple(part.shape[1:]) for part in rows]
        sizes = [int(torch.Size(shape).numel()) for shape in shapes]
        super().__init__(observation_space, network.pooled_size + sum(sizes))
        self.network, self.shapes, self.sizes = network, shapes, sizes

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """(batch, features_dim), what is pooled first."""
        rows, pooled = self.network.encode(observation)
        return torch.cat([pooled, *(part.flatten(1) for part in rows)], dim=1)

    def restored(self, features: torch.Tensor) -> tuple[Rows, torch.Tensor]:
        """What `encode` gave."""
        pooled, *parts = torch.split(features, [self.network.pooled_size, *self.sizes], dim=1)
        return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)), pooled


class _ActorCritic(nn.Module):
    """Logits and value; what Stable-Baselines3 puts behind it is the identity.

    Attributes:
        latent_dim_pi: 1, for the identity.
        latent_dim_vf: 1.
    """

    def __init__(self, extractor: EncodedObservation, widths: tuple[int, ...], memory_size: int = 0) -> None:
        super().__init__()
        self._extractor = (extractor,)  # in a tuple, so that its parameters are not counted twice
        self.latent_dim_pi, self.latent_dim_vf, self.memory_size = 1, 1, memory_size
        network = extractor.network
        size = network.pooled_size + memory_size
        self.value = nn.Sequential(*perceptron(size, widths, network.activation), nn.Linear(widths[-1], 1))

    def _encoded(self, features: torch.Tensor) -> tuple[Rows, torch.Tensor]:
        """Rows, and what is pooled with the memory behind it, which stands first in `features`."""
        memory, features = features[:, : self.memory_size], features[:, self.memory_size :]
        rows, pooled = self._extractor[0].restored(features)
        return rows, torch.cat([pooled, memory], dim=1)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, (batch, actions), and values, (batch, 1)."""
        rows, pooled = self._encoded(features)
        return self._extractor[0].network.scores(rows, pooled).squeeze(2), self.value(pooled)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        """Logits alone."""
        return self._extractor[0].network.scores(*self._encoded(features)).squeeze(2)

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        """Values alone."""
        value: torch.Tensor = self.value(self._encoded(features)[1])
        return value


def _deciding(base: Any) -> Any:
    """One of the actor-critics of Stable-Baselines3, made to hold a `DecisionNetwork`.

    The new class takes `make_network`; `net_arch` is the value network's widths.
    """

    class DecidingActorCritic(base):
        def __init__(self, *args: Any, make_network: MakeNetwork, **kwargs: Any) -> None:
            kwargs["features_extractor_class"] = EncodedObservation
            kwargs["features_extractor_kwargs"] = {"make_network": make_network}
            super().__init__(*args, **kwargs)

        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor = _ActorCritic(
                self.features_extractor, tuple(self.net_arch), getattr(self, "lstm_output_dim", 0)
            )
            if hasattr(self, "lstm_output_dim"):
                self.features_dim = self.features_extractor.network.pooled_size  # what the memory is fed with

        def _build(self, lr_schedule: Any) -> None:
            super()._build(lr_schedule)
            self.action_net, self.value_net = nn.Identity(), nn.Identity()
            self.init_weights(self.mlp_extractor.value[-1], gain=1.0)
            self.features_extractor.network.begin()
            self.optimizer = self.optimizer_class(
                self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
            )

    return DecidingActorCritic


ActorCriticPolicy = _deciding(MultiInputActorCriticPolicy)  # PPO's
MaskableActorCriticPolicy = _deciding(MaskableMultiInputActorCriticPolicy)  # MaskablePPO's


class RecurrentPolicy(_deciding(RecurrentActorCriticPolicy)):  # type: ignore[misc]
    """RecurrentPPO's: an LSTM over what is pooled; what it remembers is given to the scores and to the value."""

    def _process_sequence(
        self,
        features: torch.Tensor,
        lstm_states: tuple[torch.Tensor, torch.Tensor],
        episode_starts: torch.Tensor,
        lstm: nn.LSTM,
    ) -> tuple[torch.Tensor, Any]:
        """What is remembered, in front of what is seen, and the state of the memory."""
        memory, states = RecurrentActorCriticPolicy._process_sequence(
            features[:, : lstm.input_size], lstm_states, episode_starts, lstm
        )
        return torch.cat([memory, features], dim=1), states


class _Values(nn.Module):
    """A Q-network's last part: scores from what `EncodedObservation` gives, outputs before actions."""

    def __init__(self, extractor: EncodedObservation) -> None:
        super().__init__()
        self._extractor = (extractor,)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(batch, outputs x actions)."""
        extractor = self._extractor[0]
        return extractor.network.scores(*extractor.restored(features)).transpose(1, 2).flatten(1)


class _EncodedPolicy:
    """A policy of Stable-Baselines3 whose features are what a `DecisionNetwork` encodes.

    Args:
        make_network: The network, whose scores are values or quantiles.
    """

    def __init__(self, *args: Any, make_network: MakeNetwork, **kwargs: Any) -> None:
        kwargs["features_extractor_class"] = EncodedObservation
        kwargs["features_extractor_kwargs"] = {"make_network": make_network}
        super().__init__(*args, **kwargs)


class DecidingQPolicy(_EncodedPolicy, DQNPolicy):
    """DQN's policy."""

    def make_q_net(self) -> QNetwork:
        """The network in place of a perceptron."""
        network = QNetwork(**self._update_features_extractor(self.net_args, features_extractor=None))
        assert isinstance(network.features_extractor, EncodedObservation)
        network.q_net = _Values(network.features_extractor)  # type: ignore[assignment]
        return network.to(self.device)


class DecidingQuantilePolicy(_EncodedPolicy, QRDQNPolicy):
    """QR-DQN's policy."""

    def make_quantile_net(self) -> QuantileNetwork:
        """The network in place of a perceptron."""
        network = QuantileNetwork(**self._update_features_extractor(self.net_args, features_extractor=None))
        assert isinstance(network.features_extractor, EncodedObservation)
        network.quantile_net = _Values(network.features_extractor)  # type: ignore[assignment]
        return network.to(self.device)


def network_in(policy: Any) -> DecisionNetwork:
    """The network that decides in one of these policies."""
    for name in ("q_net", "quantile_net", "actor"):
        if getattr(policy, name, None) is not None:
            policy = getattr(policy, name)
    network: DecisionNetwork = policy.features_extractor.network
    return network
