"""Behaviour cloning and DAgger: a network imitates a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.config import ImitationConfig
from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.environments.spaces import ActionSpace, entries, read_spaces
from serving_gym.agents.learners.learner import Budget, Learner, Task, build_agent_config
from serving_gym.agents.learners.teacher import Teacher
from serving_gym.agents.learners.training_state import read_training_state, write_training_state
from serving_gym.agents.networks.networks import IMPOSSIBLE, RowNetwork
from serving_gym.agents.policies.network_policy import NetworkPolicy, scores_of
from serving_gym.baselines.policy import Policy
from serving_gym.envs.base.vector_env import MAX_SEED

WEIGHTS, DATA, STATE = "weights.pt", "data.npz", "training.json"
_SLICE = 0.05  # share of the budget between two chances to save
_GATHERING = 0.95  # share of an iteration's budget; the rest is for training the network
_STREAM = 0xDA66E2
_MASKS, _ANSWERS = "action_mask", "answer"


class ImitationLearner(Learner):
    """Collects a teacher's actions, then trains a network on them.

    Args:
        config: Settings.
        task: The training task.

    Raises:
        ValueError: no teacher is named, what it says has no number, or the places that are trained on do not show as
            much.
    """

    def __init__(self, config: ImitationConfig, task: Task) -> None:
        self.config, self.task = config, task
        self.adapter = adapter_of(task.env)
        self.rng = np.random.default_rng([task.seed, _STREAM])
        self.generator = torch.Generator().manual_seed(task.seed)
        torch.manual_seed(task.seed)
        self.teachers = [
            Teacher(config.teacher, "teacher", task, self.adapter, arguments) for arguments in task.places
        ]
        self.observation, self.action = _spaces_of(self.teachers, task)
        self.network = self._new_network()
        self.iteration = 0
        self.unlearned = False  # whether answers have come since the network was trained
        self.gathered: dict[str, list[NDArray[Any]]] = {}
        self._seen: list[tuple[dict[str, NDArray[np.float32]], NDArray[np.bool_]] | None] = [None] * len(
            self.teachers
        )
        self._turn = 0

    def _new_network(self) -> nn.Module:
        network = self.adapter.network(self.observation, self.action, self.config.network)
        network.begin()
        return network

    def improve(self, budget: Budget) -> dict[str, float]:
        """Collects labels; when an iteration's share of the budget is used up, trains on all of them."""
        last = self.iteration >= self.config.iterations - 1
        end = 1.0 if last else (self.iteration + _GATHERING) / self.config.iterations
        until = min(end, budget.progress + _SLICE)
        player = self._player
        while budget.progress < until:
            self._play(player)
            budget.count(self.task.num_envs)
        figures = {"iteration": float(self.iteration), "decisions": float(self._number)}
        return figures if budget.progress < end else figures | self._learn(budget)

    def finish(self, budget: Budget) -> dict[str, float]:
        """Trains on the labels collected since the last training."""
        return self._learn(budget) if self.unlearned else {}

    def _learn(self, budget: Budget) -> dict[str, float]:
        """Trains on all answers, of which there must be one."""
        if not self._number:
            self._play(self._player)
        if not self._number:
            raise ValueError(
                f"agent.obvious_share={self.config.obvious_share} left no answer to learn from in "
                f"{budget.steps} decisions; raise it, or total_steps"
            )
        figures = self._train()
        self.iteration, self.unlearned = self.iteration + 1, False
        return figures

    @property
    def _player(self) -> NetworkPolicy | None:
        """The acting policy: the teacher in the first iteration (None), then the network."""
        return None if self.iteration == 0 else self.policy()

    @property
    def _number(self) -> int:
        return sum(len(answers) for answers in self.gathered.get(_ANSWERS, []))

    def _play(self, player: NetworkPolicy | None) -> None:
        """A decision in every episode of one place, the teacher's or the network's, and what the teacher would do."""
        self._turn = (self._turn + 1) % len(self.teachers)
        teacher, begun = self.teachers[self._turn], self._seen[self._turn]
        if begun is None:
            seeds: Any = self.rng.integers(MAX_SEED, size=self.task.num_envs).tolist()
            seen, info = teacher.env.reset(seed=seeds)
            teacher.begin(np.arange(self.task.num_envs))
            begun = seen, info["action_mask"]
        seen, masks = begun
        answers = teacher.actions(seen, masks)
        self.adapter.check_masks(masks)
        obvious = self.adapter.is_obvious(seen, answers)
        kept = ~obvious | (self.rng.random(len(answers)) < self.config.obvious_share)
        for name, part in {**seen, _MASKS: masks, _ANSWERS: answers}.items():
            self.gathered.setdefault(name, []).append(np.array(part[kept]))
        self.unlearned = True
        actions = answers if player is None else player.act_batch(seen, masks)
        seen, _, terminated, truncated, info = teacher.env.step(actions)
        self._seen[self._turn] = seen, info["action_mask"]
        teacher.begin(np.flatnonzero(terminated | truncated))

    def _train(self) -> dict[str, float]:
        """Fits the network to all answers by cross-entropy over the possible actions."""
        data = {name: np.concatenate(parts) for name, parts in self.gathered.items()}
        if self._number > self.config.most_decisions:
            kept = np.sort(self.rng.choice(self._number, self.config.most_decisions, replace=False))
            data = {name: part[kept] for name, part in data.items()}
        self.gathered = {name: [part] for name, part in data.items()}
        tensors = {name: torch.from_numpy(part) for name, part in data.items()}
        answers, masks = tensors.pop(_ANSWERS), tensors.pop(_MASKS)
        if isinstance(self.network, RowNetwork):
            self.network.know(tensors)
        config, sizes = self.config, entries(self.action)
        optimizer = torch.optim.Adam(self.network.parameters(), config.learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, config.epochs)
        loss_sum, agreed = 0.0, 0
        for _ in range(config.epochs):
            loss_sum, agreed = 0.0, 0
            for batch in torch.split(
                torch.randperm(len(answers), generator=self.generator), config.batch_size
            ):
                scores = self.network({name: part[batch] for name, part in tensors.items()})
                loss, agree = imitation_loss(scores, masks[batch], answers[batch], sizes)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss_sum += float(loss.detach()) * len(batch)
                agreed += agree
            schedule.step()
        return {"loss": loss_sum / len(answers), "agreement": agreed / len(answers)}

    def policy(self) -> NetworkPolicy:
        """The present policy."""
        scores = scores_of(self.network)  # type: ignore[arg-type]
        return NetworkPolicy(scores, self.adapter, self.config.name, self.observation, self.action)

    def save_policy(self, folder: Path) -> None:
        """Writes the weights."""
        torch.save(self.network.state_dict(), folder / WEIGHTS)

    def save_training(self, folder: Path) -> None:
        """Writes the data and the random generators."""
        np.savez(folder / DATA, **{name: np.concatenate(parts) for name, parts in self.gathered.items()})  # type: ignore[arg-type]
        write_training_state(
            folder / STATE, self.rng, self.generator, iteration=self.iteration, unlearned=self.unlearned
        )

    def restore(self, folder: Path) -> None:
        """Restores the training state; unfinished episodes start again."""
        self.network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
        state = read_training_state(folder / STATE, self.rng, self.generator)
        self.iteration, self.unlearned = state["iteration"], state.get("unlearned", False)
        with np.load(folder / DATA) as data:
            self.gathered = {name: [data[name]] for name in data.files}


def imitation_loss(
    scores: torch.Tensor, masks: torch.Tensor, answers: torch.Tensor, sizes: Sequence[int]
) -> tuple[torch.Tensor, int]:
    """Cross-entropy over the possible entries, summed over levers, and how many decisions agree in all of them.

    Args:
        scores: (batch, entries, 1).
        masks: (batch, entries), which are possible.
        answers: (batch,) or (batch, levers), what was chosen.
        sizes: Entries of each lever.
    """
    logits = scores.squeeze(2).masked_fill(~masks, IMPOSSIBLE)
    levers = torch.split(logits, list(sizes), dim=1)
    said = answers.reshape(len(answers), len(sizes)).T
    losses = [nn.functional.cross_entropy(lever, each) for lever, each in zip(levers, said, strict=True)]
    agree = [lever.argmax(dim=1) == each for lever, each in zip(levers, said, strict=True)]
    return torch.stack(losses).sum(), int(torch.stack(agree).all(dim=0).sum())


def _spaces_of(teachers: Sequence[Teacher], task: Task) -> tuple[spaces.Dict, ActionSpace]:
    """What the environments of all teachers show and take.

    Raises:
        ValueError: it is not the same; names the first place that differs, and how.
    """
    here, *others = (_parts_of(teacher) for teacher in teachers)
    for i, there in enumerate(others):
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        if names:
            word = task.also_words[i] if task.also_words else f"also[{i}]"
            said = "; ".join(
                f"{name} is {_described(there.get(name))} there, {_described(here.get(name))} here"
                for name in names
            )
            raise ValueError(f"{word} must show and take as much as the environment itself: {said}")
    observation, action = teachers[0].env.single_observation_space, teachers[0].env.single_action_space
    assert isinstance(observation, spaces.Dict)
    assert isinstance(action, ActionSpace)
    return observation, action


def _parts_of(teacher: Teacher) -> dict[str, spaces.Space[Any]]:
    """Parts of what a teacher's environment shows, and its action."""
    observation, action = teacher.env.single_observation_space, teacher.env.single_action_space
    assert isinstance(observation, spaces.Dict)
    return {**{f"observation[{name!r}]": part for name, part in observation.items()}, "action": action}


def _described(space: spaces.Space[Any] | None) -> str:
    """Short description of a space."""
    if isinstance(space, spaces.Box):
        return f"{space.shape} from {space.low.min():g} to {space.high.max():g}"
    return "missing" if space is None else str(space)


def load(folder: Path, config: Mapping[str, Any], name: str) -> Policy:
    """The policy of a checkpoint; see `agents.learners.learner.AgentEntry`."""
    adapter, settings = adapter_of(config["env"]["name"]), build_agent_config(config["agent"])
    observation, action = read_spaces(folder)
    network = adapter.network(observation, action, settings.network)
    network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
    return NetworkPolicy(scores_of(network), adapter, name, observation, action)
