"""Networks that encode an observation and score the actions.

Every learner runs on a `DecisionNetwork`: an actor's scores are logits, those of a Q-network values, those of a
distributional one quantiles. `RowNetwork` is for environments in which actions are rows of the observation,
`PooledNetwork` for the others. An environment may have one of its own (`agents.environments.dp_tp.layout_network`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from serving_gym.agents.config import NetworkConfig
from serving_gym.agents.networks.set_network import SetNetwork

Observation = Mapping[str, torch.Tensor]
Rows = tuple[torch.Tensor, ...]  # batch first
MASK, BASELINE = "action_mask", "baseline"  # parts that learners add to an observation
IMPOSSIBLE = -1e9  # logit
HOLD_BIAS = -4.0  # an untrained actor seldom takes an action that is no row
_LOW, _HIGH = "low_", "high_"  # before the name of a part: least and largest values of its features
_LOGIT_GAIN = 0.01  # of an actor's last layers, as Stable-Baselines3 has it


class DecisionNetwork(nn.Module):
    """Scores of actions.

    Attributes:
        pooled_size: Width of what `encode` makes of all together.
        activation: Between hidden layers, also in the value network beside it.
        any_length: Vectors of the observation that may have another length elsewhere.
    """

    pooled_size: int
    any_length: tuple[str, ...] = ()
    activation: type[nn.Module] = nn.Tanh

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """What is made of single actions, if anything, and of all together, (batch, pooled_size)."""
        raise NotImplementedError

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, actions, outputs).

        Args:
            rows: As `encode` gives them.
            pooled: As `encode` gives it; where the network has a memory, that comes behind.
        """
        raise NotImplementedError

    def forward(self, observation: Observation) -> torch.Tensor:
        """(batch, actions, outputs), without a memory."""
        return self.scores(*self.encode(observation))

    def last_layers(self) -> Iterable[nn.Module]:
        """Layers whose outputs are scores."""
        raise NotImplementedError

    def begin(self) -> None:
        """Makes the scores of an untrained actor nearly equal."""
        for layer in self.last_layers():
            assert isinstance(layer, nn.Linear)
            nn.init.orthogonal_(layer.weight, gain=_LOGIT_GAIN)
            nn.init.zeros_(layer.bias)


class Pooling(nn.Module):
    """Some parts of an observation as one vector: vectors as they are, and every matrix as a set of rows.

    The rows of a matrix are seen through one network, together with all vectors; what it makes of them is averaged and
    maximised, and a narrow projection of each row may be kept in order.

    Args:
        observation: The environment's.
        parts: Names of the parts.
        row_width: Width of the networks for rows.
        place_width: Numbers kept of each row in order.
    """

    def __init__(
        self, observation: spaces.Dict, parts: Iterable[str], row_width: int, place_width: int = 0
    ) -> None:
        super().__init__()
        shapes = {name: observation[name].shape or () for name in parts}
        self.vectors = [name for name, shape in shapes.items() if len(shape) == 1]
        self.sets = [name for name, shape in shapes.items() if len(shape) == 2]
        vector_size = sum(shapes[name][0] for name in self.vectors)
        self.rows, self.places = nn.ModuleDict(), nn.ModuleDict()
        self.size = vector_size
        for name in self.sets:
            num_rows, row_size = shapes[name]
            self.rows[name] = nn.Sequential(
                nn.Linear(row_size + vector_size, row_width),
                nn.Tanh(),
                nn.Linear(row_width, row_width),
                nn.Tanh(),
            )
            self.size += 2 * row_width
            if place_width:
                self.places[name] = nn.Linear(row_width, place_width)
                self.size += num_rows * place_width

    def forward(self, observation: Observation) -> torch.Tensor:
        """(batch, size)."""
        vectors = [observation[name] for name in self.vectors]
        pooled = []
        for name in self.sets:
            rows = observation[name]
            context = [vector.unsqueeze(1).expand(-1, rows.shape[1], -1) for vector in vectors]
            rows = self.rows[name](torch.cat([rows, *context], dim=2))
            pooled += [rows.mean(dim=1), rows.amax(dim=1)]
            if name in self.places:
                pooled.append(self.places[name](rows).flatten(1))
        return torch.cat([*pooled, *vectors], dim=1)


class PooledNetwork(DecisionNetwork):
    """A perceptron over everything pooled, with an output a number of a score.

    Args:
        observation: The observation.
        num_actions: Number of actions.
        config: Widths.
        outputs: Numbers that a score consists of.
        memory_size: Numbers that are given to `scores` besides.
    """

    def __init__(
        self,
        observation: spaces.Dict,
        num_actions: int,
        config: NetworkConfig,
        outputs: int = 1,
        memory_size: int = 0,
    ) -> None:
        super().__init__()
        self.num_actions, self.outputs = num_actions, outputs
        self.pooling = Pooling(observation, observation.spaces, config.row_width, config.place_width)
        self.pooled_size = self.pooling.size
        self.hidden = perceptron(self.pooled_size + memory_size, config.hidden_widths, self.activation)
        self.out = nn.Linear(config.hidden_widths[-1], num_actions * outputs)

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """Nothing of single actions, and everything pooled."""
        return (), self.pooling(observation)

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, actions, outputs)."""
        scores: torch.Tensor = self.out(self.hidden(pooled))
        return scores.reshape(len(scores), self.num_actions, self.outputs)

    def last_layers(self) -> Iterable[nn.Module]:
        """The one."""
        return (self.out,)


class RowNetwork(DecisionNetwork):
    """A set network over the rows that are actions or have levers; the rest of the observation is their context.

    Args:
        observation: The observation.
        num_actions: Number of actions: as many as there are rows, or one more.
        rows: Part of the observation whose rows are actions.
        present: Its column that is positive in a row that counts.
        config: Widths.
        outputs: Numbers that a score consists of.
        memory_size: Numbers that are given to `scores` besides.
        levers: Entries of each row, where an action has an entry of every row.
    """

    activation = nn.ReLU

    def __init__(
        self,
        observation: spaces.Dict,
        num_actions: int,
        rows: str,
        present: int,
        config: NetworkConfig,
        outputs: int = 1,
        memory_size: int = 0,
        levers: int = 1,
    ) -> None:
        super().__init__()
        num_rows, row_size = observation[rows].shape or (0, 0)
        self.part, self.holds = rows, num_actions > num_rows * levers
        self.outputs, self.levers = outputs, levers
        self.context = Pooling(observation, context_parts(observation, rows), config.row_width)
        self.network = SetNetwork(
            self.context.size,
            row_size,
            config.row_width,
            config.hidden_widths,
            present,
            memory_size,
            outputs * levers,
        )
        self.pooled_size = self.network.pooled_size

    def know(self, observation: Observation) -> None:
        """From now on, features count as no less and no more than they are in these observations.

        What never differed has taught the network nothing: its weights there are those that it began with. What lies
        beyond has not been seen.

        Args:
            observation: (N, ...) each.
        """
        for name, part in observation.items():
            flat = part.reshape(-1, part.shape[-1])
            low, high = flat.amin(dim=0), flat.amax(dim=0)
            if name == self.part:  # whether a row counts is no matter of degree
                low[self.network.present], high[self.network.present] = -torch.inf, torch.inf
            self.register_buffer(_LOW + name, low)
            self.register_buffer(_HIGH + name, high)

    def limits(self, name: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Least and largest values of the features of a part; None: there are no limits.

        Args:
            name: Of the part.
        """
        limits = (self._buffers.get(_LOW + name), self._buffers.get(_HIGH + name))
        return None if limits[0] is None or limits[1] is None else (limits[0], limits[1])

    def _within(self, observation: Observation) -> Observation:
        limits = {name: self.limits(name) for name in observation}
        return {
            name: part if (own := limits[name]) is None else part.clamp(*own)
            for name, part in observation.items()
        }

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Limits are there where the weights have some."""
        for key in [key for key in state_dict if key.startswith((prefix + _LOW, prefix + _HIGH))]:
            self.register_buffer(key.removeprefix(prefix), torch.zeros_like(state_dict[key]))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """What is made of each row, and of all."""
        known = self._within(observation)
        seen, pooled = self.network.encode(self.context(known), known[self.part])
        return (seen,), pooled

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, actions, outputs)."""
        if self.holds:
            return self.network.all_scores(rows[0], pooled)
        scores = self.network.row_scores(rows[0], pooled)
        return scores.reshape(len(scores), -1, self.outputs)

    def last_layers(self) -> Iterable[nn.Module]:
        """That of a row's score and that of the score of what is no row."""
        return self.network.score[-1], self.network.hold[-1]

    def begin(self) -> None:
        """Rows alike, what is no row unlikely."""
        super().begin()
        nn.init.constant_(self.network.hold[-1].bias, HOLD_BIAS)  # type: ignore[arg-type]


class MaskedNetwork(DecisionNetwork):
    """A network that is shown which actions are possible, as the part `MASK`, and gives the others no probability.

    Args:
        inner: Its scores are logits.
    """

    def __init__(self, inner: DecisionNetwork) -> None:
        super().__init__()
        self.inner, self.pooled_size, self.activation = inner, inner.pooled_size, inner.activation

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """As the inner network, and the mask."""
        rows, pooled = self.inner.encode(observation)
        return (*rows, observation[MASK]), pooled

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, actions, 1)."""
        *rest, mask = rows
        return self.inner.scores(tuple(rest), pooled).masked_fill(mask.unsqueeze(2) < 0.5, IMPOSSIBLE)

    def last_layers(self) -> Iterable[nn.Module]:
        """The inner network's."""
        return self.inner.last_layers()

    def begin(self) -> None:
        """As the inner network."""
        self.inner.begin()


class ResidualNetwork(DecisionNetwork):
    """A bounded correction of a baseline, whose choice is shown as the part `BASELINE`.

    The score of an action is `confidence` where the baseline would take it, plus a correction between `-bound` and
    `bound`. The baseline can be overruled only by corrections that differ by more than its confidence.

    Args:
        inner: Its scores, squashed, are the corrections.
        confidence: Logit of the baseline's choice.
        bound: Size of the largest correction.
    """

    def __init__(self, inner: DecisionNetwork, confidence: float, bound: float) -> None:
        super().__init__()
        self.inner, self.pooled_size, self.activation = inner, inner.pooled_size, inner.activation
        self.confidence, self.bound = confidence, bound

    def encode(self, observation: Observation) -> tuple[Rows, torch.Tensor]:
        """As the inner network, and the baseline's choice."""
        rows, pooled = self.inner.encode(observation)
        return (*rows, observation[BASELINE]), pooled

    def scores(self, rows: Rows, pooled: torch.Tensor) -> torch.Tensor:
        """(batch, actions, 1)."""
        *rest, baseline = rows
        correction = self.bound * torch.tanh(self.inner.scores(tuple(rest), pooled) / self.bound)
        return self.confidence * baseline.unsqueeze(2) + correction

    def last_layers(self) -> Iterable[nn.Module]:
        """The inner network's."""
        return self.inner.last_layers()


def context_parts(observation: spaces.Dict, rows: str) -> list[str]:
    """Names of all parts but one, in the order of the observation."""
    return [name for name in observation.spaces if name != rows]


def perceptron(size: int, widths: Iterable[int], activation: type[nn.Module]) -> nn.Sequential:
    """Hidden layers, each followed by its activation."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(size, width), activation()]
        size = width
    return nn.Sequential(*layers)
