"""Approximate policy iteration by counterfactual rollouts.

At states that the present policy visits, the world is forked once for each candidate action; every fork takes its
action and then follows the present policy on the arrivals of the episode (common random numbers, so the difference
between two actions has no noise of the arrivals). A network that sees only the observation at the decision is
trained to put its probability on the best actions; its greedy policy is the next one. Related: Hindsight
Learning (arXiv 2207.06272). The rollouts use the future, the learned policy does not.

Each environment defines its actions, their features and its rollouts
(`agents.environments.dp_tp.counterfactuals`, `agents.environments.routing.counterfactuals`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.environments.routing.counterfactuals import RoutingCounterfactuals
from serving_gym.agents.environments.routing.guard import check_guard, passing
from serving_gym.agents.environments.routing.larger import as_of_larger, rates_in
from serving_gym.agents.environments.spaces import read_spaces
from serving_gym.agents.learners.api.config import APIConfig, PolicyIterationConfig, check_settings_of
from serving_gym.agents.learners.api.counterfactuals import Batch, Improvable
from serving_gym.agents.learners.api.data import (
    Table,
    actions_of,
    in_spreads,
    read_batches,
    states_of,
    write_batches,
)
from serving_gym.agents.learners.api.fit import Vary, fit
from serving_gym.agents.learners.api.gathering import Gatherers, available_processes
from serving_gym.agents.learners.api.start import calibrated_margin
from serving_gym.agents.learners.learner import Budget, Learner, Task, build_agent_config
from serving_gym.agents.learners.training_state import read_training_state, write_training_state
from serving_gym.agents.networks.score_network import NEVER, Committee, TrainableNetwork
from serving_gym.agents.networks.set_network import SetNetwork
from serving_gym.baselines.policy import Policy

WEIGHTS, DATA, STATE = "weights.pt", "data.npz", "training.json"
_MEMBERS = "members"  # weights of an ensemble's members
_SLICE = 0.04  # share of the budget between two chances to save
_LEAST_STATES = 64  # fewest states of an iteration
_PATIENCE = 1000  # states that should have come before one does
_GATHERING = 0.95  # share of an iteration's budget; the rest is for training the network
_MOST_FITTING = 0.5  # of it; training takes time, but no decisions
_FOLDS = 4  # parts of the states, each held out once to find the margin
_STREAM = 0xA91


class PolicyIterationLearner(Learner):
    """Learns a policy; a policy improvement takes several rounds.

    Args:
        config: Its settings.
        task: The training task.
        adapter: Makes the world, the network and the policy.
    """

    tail = 0.0  # weight of late first tokens beside the objective
    vary: Vary | None = None  # other states for which the same actions are as good
    committee = 1  # most networks that decide together
    knows_limits = True  # whether it does as the start in states that are unlike those of the training

    def __init__(self, config: PolicyIterationConfig, task: Task, adapter: Improvable) -> None:
        self.config, self.adapter = config, adapter
        self.processes = available_processes(config.processes)
        self.rng = np.random.default_rng(np.random.SeedSequence([task.seed, _STREAM]))
        self.generator = torch.Generator().manual_seed(task.seed)
        torch.manual_seed(task.seed)
        self.world = self.adapter.counterfactuals(config, task, self.rng)
        self.network = self._new_network()
        self.earlier: list[TrainableNetwork] = []  # networks that decide together with the last one
        self._set_margin(NEVER)
        self.batches: list[Batch] = []
        self.gathered = Batch()
        self.iteration = 0
        self.unlearned = False  # whether states have been gathered for a network that is not trained yet
        self._fitting = 0.0  # share of the budget that training a network takes, by the last one

    def _new_network(self) -> nn.Module:
        return self.adapter.score_network(self.world.observation, self.config)

    def improve(self, budget: Budget) -> dict[str, float]:
        """Gathers data with the present policy; when its share of the budget is used up, trains the next one."""
        last = self.iteration >= self.config.iterations - 1
        end = (1.0 if last else (self.iteration + _GATHERING) / self.config.iterations) - self._fitting
        if self.iteration >= self.config.iterations and budget.progress >= end and not self.unlearned:
            end = math.inf  # what is left of the budget is too little to train another network
        self.unlearned = end < math.inf
        until = min(end, budget.progress + _SLICE)
        with Gatherers(self.world, self.rng, budget, until, self.processes - 1) as others:
            while budget.progress < until and not budget.over:
                self.world.play(budget, self.gathered)
            others.collect(budget, self.gathered)
        return self._figures if budget.progress < end else self._learn(budget)

    def finish(self, budget: Budget) -> dict[str, float]:
        """Trains the network that states have been gathered for, if it is not one more than were asked for."""
        asked_for = self.iteration < self.config.iterations
        return self._learn(budget) if self.unlearned and asked_for else {}

    @property
    def _figures(self) -> dict[str, float]:
        return {"iteration": float(self.iteration), "states": float(len(self.gathered.states))}

    def _learn(self, budget: Budget) -> dict[str, float]:
        """Trains the next network on what has been gathered, which must be enough."""
        figures, began = self._figures, budget.steps
        while len(self.gathered.states) < _LEAST_STATES:
            self.world.play(budget, self.gathered)
            if not self.gathered.states and budget.steps - began > _PATIENCE * self.config.sample_every:
                raise ValueError(
                    f"agent={self.config.name} has nothing to learn: in {budget.steps:,} decisions there was none with "
                    "two actions to compare"
                )
        self.batches = [*self.batches, self.gathered][-self.config.kept_iterations :]
        self.gathered = Batch()
        before = budget.progress
        gain = self._train()
        self._fitting = min(budget.progress - before, _MOST_FITTING / self.config.iterations)
        self.iteration, self.unlearned = self.iteration + 1, False
        return figures | {"expected_gain": gain} | self._margin_figure()

    def policy(self) -> Policy:
        """The present policy."""
        return self.adapter.score_policy(
            self._deciding(), self.world.observation, self.world.action, self.config, self.config.name
        )

    def _deciding(self) -> nn.Module:
        """The last network, or the ensemble of the last networks."""
        if not self.earlier:
            return self.network
        assert isinstance(self.network, TrainableNetwork)
        return Committee([*self.earlier, self.network])

    def _train(self) -> float:
        """Trains the network on the kept data; its greedy policy is the next one. Returns the expected gain."""
        returns = [value for batch in self.batches for value in batch.returns]
        squares = [value for batch in self.batches for value in batch.squares]
        states, actions = states_of(self.batches), actions_of(self.batches)
        widest = actions.shape[1]
        kinds = np.array([kind for batch in self.batches for kind in batch.kinds])
        gains = self._gains(returns, kinds, widest)
        valid = ~np.isnan(gains)
        if self.tail:
            late = in_spreads(self.world.advantages([-value for value in squares]), kinds, widest)
            gains = in_spreads(list(gains + self.tail * late), kinds, widest)
        brought = np.nan_to_num(gains)
        gains[np.arange(len(states)), self._chosen(states, actions, valid)] += self.config.trust
        data = Table(states, actions, np.nan_to_num(gains), valid)
        margin = self._margin(data, brought) if self._started else 0.0
        network, gain = self._fitted(data)
        if self.committee > 1 and self.iteration:
            assert isinstance(self.network, TrainableNetwork)
            self.earlier = [*self.earlier, self.network][1 - self.committee :]
        self.network = network
        self._set_margin(margin)
        if self.knows_limits and isinstance(self.network, TrainableNetwork) and self.network.started:
            self.network.know(states)
        self.world.follow(self.policy())
        return gain

    @property
    def _started(self) -> bool:
        """Whether what the policy that was started from would do is among the actions."""
        return isinstance(self.network, TrainableNetwork) and self.network.started

    def _margin_figure(self) -> dict[str, float]:
        return {"margin": float(self.network.margin)} if self._started else {}  # type: ignore[arg-type]

    def _set_margin(self, margin: float) -> None:
        if isinstance(self.network, TrainableNetwork) and self.network.started:
            self.network.margin.fill_(margin)

    def _fitted(self, data: Table) -> tuple[nn.Module, float]:
        """A network trained on some states, and the gain that it expects."""
        network = self._new_network()
        self._begin(network, data)
        return network, fit(
            network, data.states, data.actions, data.gains, data.valid, self.config, self.generator, self.vary
        )

    def _begin(self, network: nn.Module, data: Table) -> None:
        """What a network is before it is trained: as it comes, or the last one. A feature never seen weighs nothing."""
        if self.config.warm and self.iteration and not self._started:
            network.load_state_dict(self.network.state_dict())
        elif isinstance(network, SetNetwork):
            network.disregard(_never_seen(data.states), _never_seen(data.actions[data.valid]))

    def _margin(self, data: Table, brought: NDArray[np.float32]) -> float:
        """What a departure from the start must promise, by states that networks of the same kind have not seen.

        Args:
            data: What networks are trained on, what they trust in included.
            brought: (N, K), gains as they were.
        """
        number = len(data.states)
        part = (
            np.arange(number) * _FOLDS // number
        )  # in the order in which they came: neighbours stay together
        scores = np.zeros(data.gains.shape, np.float32)
        for fold in range(_FOLDS):
            network, _ = self._fitted(data.some(part != fold))
            held = data.some(part == fold)
            with torch.no_grad():
                scores[part == fold] = network(
                    torch.from_numpy(held.states), torch.from_numpy(held.actions)
                ).numpy()
        usual = np.where(data.valid, data.actions[:, :, -1], 0.0).argmax(axis=1)
        return calibrated_margin(scores, brought, data.valid, usual)

    def _gains(
        self, returns: Sequence[NDArray[np.float64]], kinds: NDArray[np.str_], widest: int
    ) -> NDArray[np.float32]:
        """(N, widest), advantages of actions in spreads; NaN where there are none."""
        return in_spreads(self.world.advantages(returns), kinds, widest)

    def _chosen(
        self, states: NDArray[np.float32], actions: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Row of the action that the present policy would take at each state, also at those of earlier policies."""
        if self.iteration == 0:
            return np.array([row for batch in self.batches for row in batch.chosen], np.int64)
        with torch.no_grad():
            scores = self._deciding()(torch.from_numpy(states), torch.from_numpy(actions)).numpy()
        able = self._passing(states, actions, valid)
        chosen: NDArray[np.int64] = np.where(able, scores, -np.inf).argmax(axis=1)
        return chosen

    def _passing(
        self, states: NDArray[np.float32], actions: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which of the actions that were tried the policy chooses among."""
        return valid

    def save_policy(self, folder: Path) -> None:
        """Writes the weights."""
        write_network(self._deciding(), folder)

    def save_training(self, folder: Path) -> None:
        """Writes the kept data and the random generators."""
        write_batches([*self.batches, self.gathered], folder / DATA)
        write_training_state(
            folder / STATE, self.rng, self.generator, iteration=self.iteration, unlearned=self.unlearned
        )

    def restore(self, folder: Path) -> None:
        """Goes on from there; episodes that were being played begin anew."""
        network = read_network(self.adapter, self.world.observation, self.config, folder)
        *self.earlier, self.network = network.networks if isinstance(network, Committee) else (network,)
        state = read_training_state(folder / STATE, self.rng, self.generator)
        self.iteration, self.unlearned = state["iteration"], state.get("unlearned", False)
        *self.batches, self.gathered = read_batches(folder / DATA)
        if self.iteration:
            self.world.follow(self.policy())


class APILearner(PolicyIterationLearner):
    """Learns what to do at a decision.

    Args:
        config: Its settings.
        task: The training task.

    Raises:
        ValueError: no agent learns in the environment, or a setting is for another.
    """

    def __init__(self, config: APIConfig, task: Task) -> None:
        check_settings_of(config, task.env)
        if config.guard is not None:
            check_guard(task.env, task.arguments.get("scales"), bool(task.arguments.get("admission")))
        self.tail, self.guard, self.committee = config.tail, config.guard, config.members
        super().__init__(config, task, adapter_of(task.env))
        if config.largest_fleet > 1.0:
            rates = rates_in(self.world.observation)
            self.vary = partial(as_of_larger, largest=config.largest_fleet, rates=rates)

    def _begin(self, network: nn.Module, data: Table) -> None:
        """A router's first network is what it starts from: a weighted sum, as steep as explains most of the gains."""
        super()._begin(network, data)
        if self.iteration or not isinstance(network, SetNetwork) or network.direct is None:
            return
        assert isinstance(self.world, RoutingCounterfactuals)
        score = self.world.score
        if not len(score.score):
            weights = _with_verdicts(score.weights, data)
            network.lean_on(weights * steepness(data.actions @ weights, data.gains, data.valid))
        elif self.config.warm:
            network.adopt(score)

    def _passing(
        self, states: NDArray[np.float32], actions: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Those that pass the guard, where there is one."""
        return valid if self.guard is None else passing(self.guard, states, actions, valid)


def _with_verdicts(weights: NDArray[np.float32], data: Table) -> NDArray[np.float32]:
    """Weights of places' features, and such of `VERDICTS`, where the data has them, that all of them come behind."""
    more = data.actions.shape[2] - len(weights)
    if more == 0:
        return weights
    scores = data.actions[:, :, : len(weights)] @ weights
    least = np.float32(scores[data.valid].min() - 1.0)
    return np.concatenate([weights, np.full(more, least, np.float32)])


def _never_seen(rows: NDArray[np.float32]) -> NDArray[np.intp]:
    """Columns that are zero in all rows."""
    return np.flatnonzero(~np.any(rows != 0.0, axis=0))


def steepness(
    scores: NDArray[np.float32], gains: NDArray[np.float32], valid: NDArray[np.bool_]
) -> np.float32:
    """What scores must be multiplied by to differ as gains do, by least squares; not negative.

    Args:
        scores: (N, K).
        gains: (N, K).
        valid: (N, K), which there are.
    """
    number = np.maximum(valid.sum(axis=1, keepdims=True), 1)
    x, y = (np.where(valid, v, 0.0) for v in (scores, gains))
    x = np.where(valid, x - x.sum(axis=1, keepdims=True) / number, 0.0)
    return np.float32(max(float((x * y).sum()), 0.0) / (float(np.square(x).sum()) or 1.0))


def write_network(network: nn.Module, folder: Path) -> None:
    """Writes the weights of a network, or of every member of a committee."""
    weights: Any = network.state_dict()
    if isinstance(network, Committee):
        weights = {_MEMBERS: [member.state_dict() for member in network.networks]}
    torch.save(weights, folder / WEIGHTS)


def read_network(adapter: Improvable, observation: spaces.Dict, config: Any, folder: Path) -> nn.Module:
    """What `write_network` wrote.

    Args:
        adapter: Makes networks.
        observation: The observation.
        config: Of the agent.
        folder: Of the checkpoint.
    """

    def network(weights: dict[str, Any]) -> nn.Module:
        one = adapter.score_network(observation, config)
        one.load_state_dict(weights)
        return one

    weights = torch.load(folder / WEIGHTS, weights_only=True)
    if _MEMBERS not in weights:
        return network(weights)
    members = []
    for each in weights[_MEMBERS]:
        member = network(each)
        assert isinstance(member, TrainableNetwork)
        members.append(member)
    return Committee(members)


def load(folder: Path, config: Mapping[str, Any], name: str) -> Policy:
    """The policy of a checkpoint; see `agents.learners.learner.AgentEntry`.

    Raises:
        ValueError: it has a guard, and another environment or other scales than that reads.
    """
    env = config["env"]
    if config["agent"].get("guard") is not None:
        check_guard(env["name"], env.get("scales"), bool(env.get("admission")))
    return load_with(adapter_of(env["name"]), folder, config, name)


def load_with(adapter: Improvable, folder: Path, config: Mapping[str, Any], name: str) -> Policy:
    """The same of any agent that improves a policy by rollouts.

    Args:
        adapter: Makes the network and the policy.
        folder: Of the checkpoint.
        config: Its settings.
        name: Its name.
    """
    observation, action = read_spaces(folder)
    agent = build_agent_config(config["agent"])
    network = read_network(adapter, observation, agent, folder)
    return adapter.score_policy(network, observation, action, agent, name)
