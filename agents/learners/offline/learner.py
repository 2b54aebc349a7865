"""Learners from a dataset: behaviour cloning, and the base of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.environments.spaces import ActionSpace, entries
from serving_gym.agents.learners.imitation import imitation_loss
from serving_gym.agents.learners.learner import Budget, Learner, Task
from serving_gym.agents.learners.offline.config import OfflineConfig
from serving_gym.agents.learners.offline.dataset import read_dataset
from serving_gym.agents.learners.training_state import read_training_state, write_training_state
from serving_gym.agents.networks.networks import RowNetwork
from serving_gym.agents.policies.network_policy import NetworkPolicy, scores_of
from serving_gym.envs.registration import env_id, make_env

WEIGHTS, LEARNING, STATE = "weights.pt", "learning.pt", "training.json"
_ROUND = 100  # gradient steps between two chances to save and to validate
_LEAST_RATE = 0.1  # of the learning rate, in the end
_STREAM = 0x0FF11E
Tensors = dict[str, torch.Tensor]


class OfflineLearner(Learner):
    """Draws batches of decisions from a dataset and takes gradient steps; no environment is acted in.

    Args:
        config: Settings.
        task: The training task, of which name and spaces of the environment count.

    Raises:
        ValueError: no dataset is named, there is none, or it is of another environment.
    """

    def __init__(self, config: OfflineConfig, task: Task) -> None:
        if config.dataset is None:
            raise ValueError(
                f"agent={config.name} learns from a dataset: name the folder that runners.collect wrote, "
                "as in agent.dataset=data"
            )
        self.config, self.adapter = config, adapter_of(task.env)
        self.rng = np.random.default_rng([task.seed, _STREAM])
        self.generator = torch.Generator().manual_seed(task.seed)
        torch.manual_seed(task.seed)
        env: Any = make_env(task.env, **task.training_arguments)
        self.observation: spaces.Dict = env.observation_space
        self.action: ActionSpace = env.action_space
        self.interval_s = self.adapter.interval_s(task.training_arguments)
        self.data = read_dataset(
            config.dataset,
            env_id(task.env),
            self.observation,
            self.action,
            config.behaviours,
            config.best_share,
            self.adapter.goes_on,
        )
        self.network = self.adapter.network(self.observation, self.action, config.network)
        self.network.begin()
        self.seen = {name: torch.from_numpy(part) for name, part in self.data.observations.items()}
        if isinstance(self.network, RowNetwork):
            self.network.know(self.seen)
        self.masks = torch.from_numpy(self.data.masks)
        self.actions = torch.from_numpy(self.data.actions)
        self.drawable = np.arange(len(self.data.at))
        self._prepare()
        self.optimizer = torch.optim.Adam(self._weights(), config.learning_rate)

    def _prepare(self) -> None:
        """Makes what else the loss needs, of the network as it is."""

    def _weights(self) -> list[torch.nn.Parameter]:
        return list(self.network.parameters())

    def _loss(self, drawn: NDArray[np.int64]) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss on some decisions, and figures worth logging."""
        raise NotImplementedError

    def _stepped(self) -> None:
        """Called after every gradient step."""

    def improve(self, budget: Budget) -> dict[str, float]:
        """Some gradient steps; the means of their figures."""
        found: list[dict[str, float]] = []
        for _ in range(_ROUND):
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.learning_rate * max(_LEAST_RATE, 1.0 - budget.progress)
            loss, figures = self._loss(self.rng.choice(self.drawable, self.config.batch_size))
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._weights(), self.config.max_gradient_norm)
            self.optimizer.step()
            self._stepped()
            found.append({"loss": float(loss.detach()), **figures})
            budget.count(self.config.batch_size)
            if budget.over:
                break
        return {name: float(np.mean([each[name] for each in found])) for name in found[0]}

    def _at(self, which: NDArray[np.int64]) -> tuple[Tensors, torch.Tensor]:
        """Some observations and their masks."""
        return {name: part[which] for name, part in self.seen.items()}, self.masks[which]

    def policy(self) -> NetworkPolicy:
        """The present policy."""
        return NetworkPolicy(
            scores_of(self.network), self.adapter, self.config.name, self.observation, self.action
        )

    def save_policy(self, folder: Path) -> None:
        """Writes the weights."""
        torch.save(self.network.state_dict(), folder / WEIGHTS)

    def save_training(self, folder: Path) -> None:
        """Writes the optimizer and the random generators."""
        torch.save(self._learning(), folder / LEARNING)
        write_training_state(folder / STATE, self.rng, self.generator)

    def _learning(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict()}

    def restore(self, folder: Path) -> None:
        """Restores weights, optimizer and random generators."""
        weights = torch.load(folder / WEIGHTS, weights_only=True)
        with torch.no_grad():  # in place: others hold the same tensors
            for name, tensor in self.network.state_dict().items():
                tensor.copy_(weights[name])
        self._relearn(torch.load(folder / LEARNING, weights_only=True))
        read_training_state(folder / STATE, self.rng, self.generator)

    def _relearn(self, learning: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(learning["optimizer"])


class CloningLearner(OfflineLearner):
    """Behaviour cloning: cross-entropy over the possible actions, where the policy's own was taken.

    With `explore` at the collection it learns how a policy recovers, as Laskey et al. 2017 ("DART: Noise injection for
    robust imitation learning").

    Raises:
        ValueError: every action of the dataset was a random one.
    """

    def _prepare(self) -> None:
        self.drawable = np.flatnonzero(~self.data.explored)
        if not len(self.drawable):
            raise ValueError(
                f"agent.dataset={self.config.dataset!r} was collected with explore=1: no decision is a policy's own"
            )

    def _loss(self, drawn: NDArray[np.int64]) -> tuple[torch.Tensor, dict[str, float]]:
        seen, masks = self._at(self.data.at[drawn])
        loss, agreed = imitation_loss(self.network(seen), masks, self.actions[drawn], entries(self.action))
        return loss, {"agreement": agreed / len(drawn)}
