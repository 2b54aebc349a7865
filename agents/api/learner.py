"""Approximate policy iteration by counterfactual rollouts.

At states that the present policy visits, the world is forked once for each candidate action; every fork takes its
action, keeps to it for a while and then follows the present policy, on the arrivals that really come (common random
numbers, so the difference between two actions is free of the noise they share). A network that sees only what can be
seen at the decision is trained to put its probability on the actions that came out best; its greedy policy is the next
one. Kin: Hindsight Learning (arXiv 2207.06272). The rollouts know the future, the policy that is learned does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agents.api.config import APIConfig
from agents.api.features import (
    action_size,
    encode_actions,
    encode_state,
    shortlist,
    state_size,
    stay_action,
)
from agents.api.network import TrainableNetwork, fit
from agents.api.policy import APIPolicy
from agents.learner import Budget, Task
from agents.spaces import read_spaces
from envs.dp_tp.core import DPTPConfig, DPTPCore

FloatArray = NDArray[np.float32]
WEIGHTS, DATA, STATE = "weights.pt", "data.npz", "training.json"
_SLICE = 0.04  # share of the budget between two chances to save
_LEAST_STATES = 64  # no iteration learns from fewer
_GATHERING = 0.95  # share of an iteration's budget; the rest is for training the network


@dataclass
class Batch:
    """Sampled states with their candidates' returns."""

    states: list[FloatArray] = field(default_factory=list)
    actions: list[FloatArray] = field(default_factory=list)
    returns: list[NDArray[np.float64]] = field(default_factory=list)


class APILearner:
    """Learns a DP/TP policy; a policy improvement takes several rounds.

    Args:
        config: Its settings.
        task: What is to be learned.

    Raises:
        ValueError: the environment is not dp_tp.
    """

    def __init__(self, config: APIConfig, task: Task) -> None:
        if task.env != "dp_tp":
            raise ValueError(f"agent 'api' learns env 'dp_tp' so far, not {task.env!r}")
        self.config = config
        self.core = DPTPCore(DPTPConfig(**task.training_arguments))
        self.rng = np.random.default_rng(np.random.SeedSequence([task.seed, _STREAM]))
        self.generator = torch.Generator().manual_seed(task.seed)
        torch.manual_seed(task.seed)
        self.network = self._new_network()
        self.present: APIPolicy | None = None  # None: stay
        self.batches: list[Batch] = []
        self.gathered = Batch()
        self.iteration = 0
        self._engines = np.empty(self.core.engines_shape, np.float32)
        self._cluster = np.empty(self.core.cluster_shape, np.float32)
        self._rollout_engines, self._rollout_cluster = self._engines.copy(), self._cluster.copy()

    def _new_network(self) -> TrainableNetwork:
        num_base, cluster_size = self.core.num_base, self.core.encoder.cluster_size
        return TrainableNetwork(state_size(num_base, cluster_size), action_size(num_base), self.config.hidden)

    def improve(self, budget: Budget) -> dict[str, float]:
        """Gathers data with the present policy; when its share of the budget is used up, trains the next one."""
        last = self.iteration >= self.config.iterations - 1
        end = 1.0 if last else (self.iteration + _GATHERING) / self.config.iterations
        self._gather(budget, min(end, budget.progress + _SLICE))
        figures = {"iteration": float(self.iteration), "states": float(len(self.gathered.states))}
        if budget.progress < end:
            return figures
        while len(self.gathered.states) < _LEAST_STATES:
            self._decide(budget)
        self.batches = [*self.batches, self.gathered][-self.config.kept_iterations :]
        self.gathered = Batch()
        gain = self._train()
        self.iteration += 1
        return figures | {"expected_gain": gain}

    def policy(self) -> APIPolicy:
        """The policy as it is now."""
        return APIPolicy(self.network.export())

    def _act(self, core: DPTPCore, engines: FloatArray, cluster: FloatArray) -> int:
        core.observe_into(engines, cluster)
        if self.present is None:
            return stay_action(core.state.target_layout)
        return self.present.choose(engines, cluster, core.state)

    def _gather(self, budget: Budget, end: float) -> None:
        """Plays training episodes and samples states until the share `end` of the budget is used up."""
        while budget.progress < end:
            self._decide(budget)

    def _decide(self, budget: Budget) -> None:
        """One decision of the present policy or of chance, its state sampled now and then."""
        core = self.core
        if core.done:
            core.reset(int(self.rng.integers(_MAX_SEED)))
        action = self._act(core, self._engines, self._cluster)
        options = shortlist(core.state.target_layout, core.mask().tobytes())
        if len(options) > 1 and self.rng.random() * self.config.sample_every < 1.0:
            budget.count(self._sample(options, action))
        if self.rng.random() < self.config.exploration:
            action = int(self.rng.choice(options))
        core.step(action)
        budget.count(1)

    def _sample(self, options: NDArray[np.int64], action: int) -> int:
        """Adds the present state, with the returns of some of its actions; returns the decisions that took."""
        target = self.core.state.target_layout
        musts = {stay_action(target), action}
        others = [int(option) for option in options if option not in musts]
        extra = self.rng.permutation(others)[: max(0, self.config.candidates - len(musts))]
        chosen = np.array([*sorted(musts), *extra], np.int64)
        batch = self.gathered
        batch.states.append(encode_state(self._engines, self._cluster, target))
        batch.actions.append(encode_actions(self._engines, target, chosen))
        batch.returns.append(np.array([self._rollout(int(option)) for option in chosen]))
        return len(chosen) * (1 + self.config.horizon // self.config.stride)

    def _rollout(self, action: int) -> float:
        """Return of an action, kept to and then followed by the present policy, on the arrivals that really come."""
        core = self.core.fork()
        interval_s = core.config.decision_interval_s
        begin_s = core.state.now_s
        end_s = begin_s + self.config.horizon * interval_s
        commit_s = end_s if self.present is None else begin_s + self.config.commit * interval_s
        total = core.step(action).reward
        while not core.done and core.state.now_s < end_s - 1e-9:
            if core.state.now_s < commit_s - 1e-9:
                total += core.step(None, min(commit_s, end_s) - core.state.now_s).reward
            else:
                follow = self._act(core, self._rollout_engines, self._rollout_cluster)
                total += core.step(follow, self.config.stride * interval_s).reward
        return total

    def _train(self) -> float:
        """Trains the network on the kept data; its greedy policy is the next one. Returns the expected gain.

        Advantages are relative to what the best action costs at a state, so that quiet hours count as much as bursts.
        """
        rows = [row for batch in self.batches for row in batch.actions]
        returns = [value for batch in self.batches for value in batch.returns]
        states = np.stack([state for batch in self.batches for state in batch.states])
        widest = max(len(row) for row in rows)
        actions = np.zeros((len(rows), widest, rows[0].shape[1]), np.float32)
        advantages = np.zeros((len(rows), widest), np.float32)
        valid = np.zeros((len(rows), widest), bool)
        for i, (row, value) in enumerate(zip(rows, returns, strict=True)):
            actions[i, : len(row)], valid[i, : len(row)] = row, True
            advantages[i, : len(row)] = (value - value.max()) / (abs(value.max()) + self.config.least_cost)
        advantages = np.maximum(advantages, self.config.worst)
        advantages /= float(advantages[valid].std()) or 1.0
        self.network = self._new_network()
        gain = fit(self.network, states, actions, advantages, valid, self.config, self.generator)
        self.present = self.policy()
        return gain

    def save_policy(self, folder: Path) -> None:
        """Writes the weights."""
        torch.save(self.network.state_dict(), folder / WEIGHTS)

    def save_training(self, folder: Path) -> None:
        """Writes the kept data and the random generators."""
        arrays = {
            f"{i}/{name}/{k}": value
            for i, batch in enumerate([*self.batches, self.gathered])
            for name in ("states", "actions", "returns")
            for k, value in enumerate(_packed(getattr(batch, name)))
        }
        np.savez(folder / DATA, **arrays)  # type: ignore[arg-type]
        state = {
            "iteration": self.iteration,
            "batches": len(self.batches),
            "rng": self.rng.bit_generator.state,
            "torch": self.generator.get_state().tolist(),
        }
        (folder / STATE).write_text(json.dumps(state), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Goes on from there; the episode that was being played begins anew."""
        self.network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        self.iteration = state["iteration"]
        self.rng.bit_generator.state = state["rng"]
        self.generator.set_state(torch.tensor(state["torch"], dtype=torch.uint8))
        with np.load(folder / DATA) as data:
            *self.batches, self.gathered = [_read_batch(data, i) for i in range(state["batches"] + 1)]
        self.present = self.policy() if self.iteration else None


_STREAM = 0xA91
_MAX_SEED = 2**31 - 1


def _packed(rows: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Arrays of different length one behind the other, and their lengths (0 for single vectors)."""
    if not rows:
        return np.zeros(0), np.zeros(0, np.int64)
    return np.concatenate(rows), np.array([len(row) for row in rows], np.int64)


def _read_batch(data: Mapping[str, NDArray[Any]], i: int) -> Batch:
    columns = {}
    for name in ("states", "actions", "returns"):
        lengths = data[f"{i}/{name}/1"]
        ends = np.cumsum(lengths)[:-1]
        columns[name] = list(np.split(data[f"{i}/{name}/0"], ends)) if len(lengths) else []
    return Batch(**columns)


def load(folder: Path, config: Mapping[str, Any], name: str) -> APIPolicy:
    """The policy of a checkpoint.

    Args:
        folder: Of the checkpoint.
        config: Its settings of the agent.
        name: What the policy is called.
    """
    observation, action = read_spaces(folder)
    num_base, _ = observation["engines"].shape or (0, 0)
    (cluster_size,) = observation["cluster"].shape or (0,)
    network = TrainableNetwork(
        state_size(num_base, cluster_size), action_size(num_base), int(config["hidden"])
    )
    network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
    return APIPolicy(network.export(), name, observation, action)
