"""What shared nodes hold over time, as a policy sees it at its decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from serving_gym.baselines.policy import Action, Policy, PolicySpec
from serving_gym.envs.interface.metrics import FloatArray
from serving_gym.envs.sharing.state import SharingState


@dataclass(frozen=True, eq=False)
class Timeline:
    """What nodes held, from each decision to the next. D decisions.

    Attributes:
        begin_s: (D,), time of each decision.
        lasts_s: (D,), seconds to the next one, or the end.
        used: (D, N), instances of each node.
        kinds: (N,), kind of each node.
    """

    begin_s: FloatArray
    lasts_s: FloatArray
    used: FloatArray
    kinds: FloatArray

    def nodes(self, kind: int) -> FloatArray:
        """(D,), nodes of a kind with instances."""
        return np.asarray((self.used[:, self.kinds == kind] > 0).sum(axis=1), np.float64)

    def mean(self, values: FloatArray, where: Any = True) -> float:
        """Mean over time.

        Args:
            values: (D,).
            where: (D,), over which of it.
        """
        weights = np.where(where, self.lasts_s, 0.0)
        total = float(weights.sum())
        return float(values @ weights) / total if total else float("nan")

    def instances_a_node(self, kind: int) -> float:
        """Instances of a node of a kind that has any, mean over time and such nodes."""
        used = self.used[:, self.kinds == kind]
        node_s = float(((used > 0).sum(axis=1) * self.lasts_s).sum())
        return float((used.sum(axis=1) * self.lasts_s).sum()) / node_s if node_s else float("nan")


@dataclass
class Watched:
    """A policy whose states are noted down.

    Attributes:
        policy: The policy.
    """

    policy: Policy
    _at_s: list[float] = field(default_factory=list)
    _used: list[Any] = field(default_factory=list)
    _kinds: Any = None

    def __post_init__(self) -> None:
        self.name, self.clairvoyant = self.policy.name, self.policy.clairvoyant

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Resets the policy, and forgets what was noted."""
        self._at_s, self._used, self._kinds = [], [], None
        self.policy.reset(spec, seed)

    def act(self, observation: Any, state: SharingState) -> Action:
        """Decides as the policy does."""
        self._at_s.append(state.now_s)
        self._used.append(state.nodes["num_instances"].astype(np.float64))
        if self._kinds is None:
            self._kinds = state.nodes["kind"].astype(np.float64)
        return self.policy.act(observation, state)

    def timeline(self, end_s: float) -> Timeline:
        """What was noted, up to the end of the episode."""
        begin_s = np.array(self._at_s)
        return Timeline(
            begin_s, np.diff(begin_s, append=max(end_s, begin_s[-1])), np.array(self._used), self._kinds
        )
