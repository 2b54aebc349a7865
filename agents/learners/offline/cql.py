"""Discrete conservative Q-learning by TorchRL (0.14, `torchrl/objectives/cql.py`, `DiscreteCQLLoss`)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.learners.learner import Task
from serving_gym.agents.learners.offline.config import CQLConfig
from serving_gym.agents.learners.offline.dataset import NOT_INSTALLED
from serving_gym.agents.learners.offline.learner import OfflineLearner
from serving_gym.agents.networks.networks import DecisionNetwork

_MASK, _VALUES = "action_mask", "action_value"
_LEAST_SCALE = 1e-9  # reward


class CQLLearner(OfflineLearner):
    """Conservative Q-learning; the scores of the network are the actions' values.

    Elapsed time counts in the discount, as TorchRL's number of steps to the next observation.

    Args:
        config: Settings.
        task: The training task.

    Raises:
        ValueError: TorchRL is missing, an action is several numbers, or the dataset does not fit.
    """

    config: CQLConfig

    def __init__(self, config: CQLConfig, task: Task) -> None:
        if find_spec("torchrl") is None:
            raise ValueError(NOT_INSTALLED.format("agent=cql", "torchrl"))
        super().__init__(config, task)

    def _prepare(self) -> None:
        from tensordict.nn import TensorDictModule
        from torchrl.modules import QValueActor
        from torchrl.objectives import DiscreteCQLLoss, SoftUpdate

        if not isinstance(self.action, spaces.Discrete):
            raise ValueError(
                f"agent=cql takes one number a decision, env {self.adapter.env!r} several; agent=offline_bc takes both"
            )
        names = list(self.observation.spaces)
        values = TensorDictModule(_Values(self.network, names), in_keys=names, out_keys=[_VALUES])
        actor = QValueActor(values, in_keys=names, action_space="categorical", action_mask_key=_MASK)
        self.losses = DiscreteCQLLoss(actor, action_space="categorical", delay_value=True)
        self.losses.make_value_estimator(gamma=self.config.discount)
        self.targets = SoftUpdate(self.losses, tau=self.config.target_rate)
        returns = self.data.returns(self.config.discount, self.interval_s)
        self.reward_scale = self.config.reward_scale or 1.0 / max(float(returns.std()), _LEAST_SCALE)
        ahead = self.data.ahead(self.config.n_step, self.config.discount, self.interval_s)
        self.after = ahead.at
        self.rewards = torch.from_numpy(ahead.rewards * np.float32(self.reward_scale)).unsqueeze(1)
        self.steps = torch.from_numpy(ahead.elapsed_s / np.float32(self.interval_s)).unsqueeze(1)
        self.over = torch.from_numpy(ahead.over).unsqueeze(1)

    def _weights(self) -> list[torch.nn.Parameter]:
        return list(self.losses.parameters())

    def _loss(self, drawn: NDArray[np.int64]) -> tuple[torch.Tensor, dict[str, float]]:
        from tensordict import TensorDict

        seen, masks = self._at(self.data.at[drawn])
        after, after_masks = self._at(self.after[drawn])
        batch = TensorDict(
            {
                **seen,
                _MASK: masks,
                "action": self.actions[drawn],
                "steps_to_next_obs": self.steps[drawn],
                "next": {
                    **after,
                    _MASK: after_masks,
                    "reward": self.rewards[drawn],
                    "done": self.over[drawn],
                    "terminated": self.over[drawn],
                },
            },
            batch_size=[len(drawn)],
        )
        losses = self.losses(batch)
        total: torch.Tensor = losses["loss_qvalue"] + self.config.conservatism * losses["loss_cql"]
        return total, {
            "value_loss": float(losses["loss_qvalue"].detach()),
            "conservative_loss": float(losses["loss_cql"].detach()),
            "target_value": float(losses["target_value"]),
        }

    def _stepped(self) -> None:
        self.targets.step()

    def _learning(self) -> dict[str, Any]:
        return {**super()._learning(), "losses": self.losses.state_dict()}

    def _relearn(self, learning: dict[str, Any]) -> None:
        super()._relearn(learning)
        self.losses.load_state_dict(learning["losses"])


class _Values(nn.Module):
    """A network's scores from the parts of an observation, one after another, as TorchRL hands them.

    Args:
        network: Scores actions.
        names: Of the parts.
    """

    def __init__(self, network: DecisionNetwork, names: list[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        """(batch, actions)."""
        scores: torch.Tensor = self.network(dict(zip(self.names, parts, strict=True)))
        return scores.squeeze(-1)
