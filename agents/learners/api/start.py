"""The policy that approximate policy iteration starts from, beside an episode.

The first rollouts follow it, and what it would do is an action like the others at every decision, in training and
afterwards: the learned policy takes it wherever nothing promises more. So a policy that learns nothing is the one that
it started from, and every baseline, whatever it remembers and whatever commands it gives, can be started from. That
action is described to the network as the numbered action nearest to it, with one more number that says what it is.

Where the learned policy departs from it, it is asked on: it answers to a world that it did not make. How much a
departure must promise is found on held-out states (`calibrated_margin`): as few samples are enough to see that most
departures are mistakes, and not to see which are none, the margin begins high and falls as more is known. In a state
that is unlike all those of the training (`TrainableNetwork.know`) there is no departure at all: a network that has not
seen an overload, or twice as many machines, does not know what pays there.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.learners.teacher import make_teacher
from serving_gym.agents.networks.score_network import NEVER
from serving_gym.baselines.policy import Action, Policy
from serving_gym.envs.interface.policy_spec import PolicySpec

FloatArray = NDArray[np.float32]
KEY = "agent.start"
_SAME = 1e-4  # distance of descriptions below which two actions are the same


class Start:
    """A baseline in one episode.

    Args:
        policy: The baseline.
        key: What the setting that names it is called, for messages.

    Raises:
        ValueError: It looks at the future, which a learned policy may not.
    """

    def __init__(self, policy: Policy, key: str = KEY) -> None:
        if policy.clairvoyant:
            raise ValueError(f"{key} must not be clairvoyant, got {policy.name!r}")
        self.policy = policy
        self._known: tuple[object, ...] = ()

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares for an episode.

        Raises:
            ValueError: The baseline does not fit the setting.
        """
        self.policy.reset(spec, seed)
        self._known = (spec, *(getattr(spec, entry.name) for entry in dataclasses.fields(spec)))

    def act(self, observation: Mapping[str, FloatArray], state: Any) -> Action:
        """What it would do; to be asked once a decision."""
        return self.policy.act(observation, state)

    def fork(self) -> Start:
        """A copy that continues independently; what is known of the setting is shared."""
        twin = Start.__new__(Start)
        twin._known = self._known
        twin.policy = copy.deepcopy(self.policy, {id(known): known for known in self._known})
        return twin


def start_of(config: Mapping[str, Any] | None) -> Start | None:
    """The policy that a setting names, or None.

    Args:
        config: `agent.start`: a policy's name and parameters, or a checkpoint and its path.

    Raises:
        ValueError: There is no such policy, or it looks at the future.
    """
    return None if config is None else Start(make_teacher(config, KEY))


def flagged(rows: FloatArray, usual: FloatArray) -> FloatArray:
    """(K + 1, F + 1), what describes actions and, last, what the policy that was started from would do.

    Args:
        rows: (K, F), numbered actions.
        usual: (F,), that action.
    """
    out = np.zeros((len(rows) + 1, rows.shape[1] + 1), np.float32)
    out[:-1, :-1] = rows
    out[-1, :-1], out[-1, -1] = usual, 1.0
    return out


def compared(
    features: FloatArray, musts: Sequence[int], number: int, rng: np.random.Generator, started: bool
) -> list[int]:
    """Rows of actions to compare at a state.

    Where a policy was started from, half of those that are drawn are most like what it would do, as small departures
    from a good policy pay more often than large ones; what is exactly like it brings nothing new.

    Args:
        features: (K, F), what describes the actions; where a policy was started from, as `flagged`.
        musts: Rows that are among them.
        number: Most rows.
        rng: Draws the others.
        started: Whether a policy was started from.
    """
    others = np.setdiff1d(np.arange(len(features)), musts)
    left = max(0, number - len(musts))
    if not started:
        return [*musts, *rng.permutation(others)[:left].tolist()]
    distance = np.abs(features[others, :-1] - features[-1, :-1]).sum(axis=1)
    others, distance = others[distance > _SAME], distance[distance > _SAME]
    near = others[np.argsort(distance, kind="stable")[: left // 2]]
    far = rng.permutation(np.setdiff1d(others, near))[: left - len(near)]
    return [*musts, *near.tolist(), *far.tolist()]


def calibrated_margin(
    scores: FloatArray, gains: FloatArray, valid: NDArray[np.bool_], usual: NDArray[np.int64]
) -> float:
    """By how much another action's score must exceed that of the start's for a departure to gain most, and surely.

    Of departures in the order of their lead, as many are made as have the largest gain less its standard error.

    Args:
        scores: (N, K), of states that the network was not trained on.
        gains: (N, K), what the actions really brought.
        valid: (N, K), which there are.
        usual: (N,) row of the start's action.
    """
    every = np.arange(len(scores))
    lead = np.where(valid, scores, -np.inf)
    lead[every, usual] = -np.inf
    best = lead.argmax(axis=1)
    lead = lead[every, best] - scores[every, usual]
    gain = gains[every, best] - gains[every, usual]
    order = np.argsort(-lead, kind="stable")
    total = np.cumsum(gain[order])
    sure = total - np.sqrt(np.cumsum(np.square(gain[order])))  # less a standard error
    if sure.max(initial=0.0) <= 0.0:
        return NEVER
    last = int(sure.argmax())
    following = lead[order[last + 1]] if last + 1 < len(order) else lead[order[last]] - 1.0
    return float(max((lead[order[last]] + following) / 2.0, 0.0))
