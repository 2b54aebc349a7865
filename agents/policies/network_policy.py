"""Policy of a trained network: takes the possible action with the highest score."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Adapter
from serving_gym.agents.environments.spaces import ActionSpace, check_observation, highest, plain_action
from serving_gym.agents.networks.networks import DecisionNetwork, RowNetwork
from serving_gym.agents.networks.set_network import SetScorer
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.simulator.kernel.place_scores import PlaceScore, with_verdicts

Observation = Mapping[str, NDArray[np.float32]]
Scores = Callable[[Observation], NDArray[np.float32]]  # of N observations to (N, entries)


_LAST = np.float32(-1e30)  # below every score, above what is impossible


class NetworkPolicy:
    """Takes the possible action with the highest score of a network, from the observation only.

    Args:
        scores: The network.
        adapter: Of the environment.
        name: Its name in results.
        observation: What it was trained to see; where actions are rows, there may be any number of them.
        action: Action space of the training.
        masked: Whether it chooses among the possible actions only.
        in_kernel: The same network for the routing kernel, where it has one.
        any_length: Vectors of the observation that may have another length than in training.
    """

    clairvoyant = False

    def __init__(
        self,
        scores: Scores,
        adapter: Adapter,
        name: str,
        observation: spaces.Dict,
        action: ActionSpace,
        masked: bool = True,
        in_kernel: PlaceScore | None = None,
        any_length: Collection[str] = (),
    ) -> None:
        self.in_kernel, self.any_length = in_kernel, any_length
        self.scores, self.adapter, self.name, self.masked = scores, adapter, name, masked
        self.observation, self.action = observation, action
        self._checked = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Checks the setting.

        Raises:
            ValueError: the setting is of another kind than the one it was trained in.
        """
        self.adapter.check_setting(self.name, self.observation, self.action, spec)
        self._spec, self._checked = spec, False

    def act(self, observation: Observation, state: object) -> Any:
        """The action with the highest score.

        Raises:
            ValueError: the observation is of another shape than those trained on.
        """
        if not self._checked:
            check_observation(
                self.name,
                self.observation,
                observation,
                rows_of=self.adapter.rows,
                any_length=self.any_length,
            )
            self._checked = True
        mask = self.adapter.mask(observation, state, self._spec) if self.masked else None
        return self._best_alone(observation, mask)

    def act_batch(self, observation: Observation, masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The best action in each of N episodes, (N,) or (N, levers).

        Args:
            observation: Batch of N.
            masks: (N, entries).

        Raises:
            ValueError: some action is impossible, which it would not hear of in `act`.
        """
        if self.masked:
            self.adapter.check_masks(masks)
        return self._best(observation, masks if self.masked else None)

    def _best_alone(self, observation: Observation, mask: NDArray[np.bool_] | None) -> Any:
        """The best action of one decision."""
        masks = None if mask is None else mask[None]
        one = {key: value[None] for key, value in observation.items()}
        return plain_action(self._best(one, masks)[0])

    def _best(self, observation: Observation, masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        return highest(self.scores(observation), masks, self.action)


def scores_of(network: DecisionNetwork) -> Scores:
    """A copy of a network, in NumPy where that is the same, else in torch. The outputs of a score are averaged."""
    if isinstance(network, RowNetwork) and not network.context.sets and network.outputs * network.levers == 1:
        scorer, part, vectors = network.network.export(), network.part, network.context.vectors
        holds = network.holds
        limits = {
            name: tuple(limit.numpy().copy() for limit in own)
            for name in (part, *vectors)
            if (own := network.limits(name)) is not None
        }

        def exported(observation: Observation) -> NDArray[np.float32]:
            known = {
                name: np.clip(observation[name], *limits[name]) if limits else observation[name]
                for name in (part, *vectors)
            }
            context = np.concatenate([known[name] for name in vectors], axis=1)
            return scorer.scores(context, known[part], holds)

        return exported
    frozen = copy.deepcopy(network).eval()

    def scores(observation: Observation) -> NDArray[np.float32]:
        with torch.no_grad():
            values = frozen({key: torch.as_tensor(value) for key, value in observation.items()})
        result: NDArray[np.float32] = values.mean(dim=2).numpy()
        return result

    return scores


def place_scores(scorer: SetScorer, context: Sequence[str]) -> Scores:
    """Scores of the rows of `places` and of holding a request, which comes last: only where no place can take it.

    A scorer that knows `VERDICTS` scores holding as it scores places, and what follows it.

    Args:
        scorer: Scores places.
        context: Parts of the observation that are of no place.
    """
    knows_verdicts = "admission" in context

    def scores(seen: Observation) -> NDArray[np.float32]:
        of_all = np.concatenate([seen[key] for key in context], axis=1)
        if knows_verdicts:
            return scorer.scores(of_all, with_verdicts(seen["places"]), hold=False)
        of_places = scorer.scores(of_all, seen["places"], hold=False)
        return np.concatenate([of_places, np.full((len(of_places), 1), _LAST)], axis=1)

    return scores
