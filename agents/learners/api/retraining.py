"""Trains networks on the states of several trainings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces

from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch, Improvable, relative_advantages
from serving_gym.agents.learners.api.data import actions_of, in_spreads, states_of
from serving_gym.agents.learners.api.fit import fit
from serving_gym.agents.networks.score_network import Committee, TrainableNetwork


def retrain(
    batches: Sequence[Batch],
    config: APIConfig,
    adapter: Improvable,
    observation: spaces.Dict,
    number: int,
    seed: int,
) -> Committee:
    """Networks that decide together, each trained from nothing on all states.

    Nothing is trusted in: the states are those of many policies, and none of these is the present one.

    Args:
        batches: States, and what their actions brought.
        config: Settings of the trainings; `epochs` are those of these networks.
        adapter: Makes networks.
        observation: The observation.
        number: How many networks.
        seed: Of weights and of the order of states.
    """
    states, actions = states_of(batches), actions_of(batches)
    returns = [value for batch in batches for value in batch.returns]
    kinds = np.array([kind for batch in batches for kind in batch.kinds])
    gains = in_spreads(relative_advantages(returns, config), kinds, actions.shape[1])
    valid = ~np.isnan(gains)
    members = []
    with torch.random.fork_rng(devices=[]):
        for i in range(number):
            torch.manual_seed(seed + i)
            generator = torch.Generator().manual_seed(seed + i)
            network = adapter.score_network(observation, config)
            assert isinstance(network, TrainableNetwork)
            fit(network, states, actions, np.nan_to_num(gains), valid, config, generator)
            members.append(network)
    return Committee(members)
