"""Counterfactual rollouts of DP/TP: what a few layouts would have brought."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.api.config import APIConfig
from agents.api.counterfactuals import Batch
from agents.dp_tp.candidates import encode_actions, encode_state, shortlist, stay_action
from agents.dp_tp.score_policy import ScorePolicy
from agents.learner import Budget, Task
from baselines.policy import Policy
from envs.dp_tp.core import DPTPConfig, DPTPCore
from envs.dp_tp.env import make_spaces
from envs.side_by_side import MAX_SEED

FloatArray = NDArray[np.float32]


class DPTPCounterfactuals:
    """Plays one episode after another; at sampled states it is forked once for each candidate layout.

    Args:
        config: Settings of the agent.
        task: What is to be learned.
        rng: Of episodes, sampling and exploration.

    Raises:
        ValueError: a policy to start from is given; the first rollouts stay where they are.
    """

    observation: spaces.Dict  # what the environment shows
    action: spaces.Discrete  # what it takes

    def __init__(self, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        if config.start is not None:
            raise ValueError("agent.start must be null for env dp_tp: the first rollouts keep the layout")
        self.config, self.rng = config, rng
        self.core = DPTPCore(DPTPConfig(**task.training_arguments))
        observation, self.action = make_spaces(self.core)
        assert isinstance(observation, spaces.Dict)
        self.observation = observation
        self.present: ScorePolicy | None = None  # None: stay
        self._engines = np.empty(self.core.engines_shape, np.float32)
        self._cluster = np.empty(self.core.cluster_shape, np.float32)
        self._rollout_engines, self._rollout_cluster = self._engines.copy(), self._cluster.copy()

    def follow(self, policy: Policy) -> None:
        """From now on this is the present policy."""
        assert isinstance(policy, ScorePolicy)
        self.present = policy

    def play(self, budget: Budget, batch: Batch) -> None:
        """One decision of the present policy or of chance, its state sampled now and then."""
        core = self.core
        if core.done:
            core.reset(int(self.rng.integers(MAX_SEED)))
        action = self._act(core, self._engines, self._cluster)
        options = shortlist(core.state.target_layout, core.mask().tobytes())
        if len(options) > 1 and self.rng.random() * self.config.sample_every < 1.0:
            budget.count(self._sample(options, action, batch))
        if self.rng.random() < self.config.exploration:
            action = int(self.rng.choice(options))
        core.step(action)
        budget.count(1)

    def _act(self, core: DPTPCore, engines: FloatArray, cluster: FloatArray) -> int:
        core.observe_into(engines, cluster)
        if self.present is None:
            return stay_action(core.state.target_layout)
        return self.present.choose(engines, cluster, core.state)

    def _sample(self, options: NDArray[np.int64], action: int, batch: Batch) -> int:
        """Adds the present state, with the returns of some of its actions; returns the decisions that took."""
        target = self.core.state.target_layout
        musts = {stay_action(target), action}
        others = [int(option) for option in options if option not in musts]
        extra = self.rng.permutation(others)[: max(0, self.config.candidates - len(musts))]
        chosen = np.array([*sorted(musts), *extra], np.int64)
        batch.states.append(encode_state(self._engines, self._cluster, target))
        batch.actions.append(encode_actions(self._engines, target, chosen))
        batch.returns.append(np.array([self._rollout(int(option)) for option in chosen]))
        batch.chosen.append(int(np.flatnonzero(chosen == action)[0]))
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

    def advantages(self, returns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Relative to what the best action costs at a state, so that quiet hours count as much as bursts."""
        return [
            np.maximum((value - value.max()) / (abs(value.max()) + self.config.least_cost), self.config.worst)
            for value in returns
        ]
