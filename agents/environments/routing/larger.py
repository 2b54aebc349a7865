"""States of a router as they would be on a larger fleet that is asked for as much more."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gymnasium import spaces

from serving_gym.agents.environments.place_adapter import ADMISSION
from serving_gym.envs.simulator.kernel.features import (
    ADMISSION_CLASS_FEATURES,
    ADMISSION_FEATURES,
    CLUSTER_FEATURES,
)

RATES = tuple(
    CLUSTER_FEATURES.index(f"{name}_{span}") - len(CLUSTER_FEATURES)
    for name in ("requests", "prompt_tokens", "predicted_tokens")
    for span in ("short", "long")
)


def rates_in(observation: spaces.Dict) -> tuple[int, ...]:
    """Columns of a state that are rates of the whole fleet, counted from its end.

    Args:
        observation: What a router sees; the parts of a state are those of `place_adapter.context_of`.
    """
    if ADMISSION not in observation.spaces:
        return RATES
    of_classes = (observation[ADMISSION].shape or (0,))[0] - len(ADMISSION_FEATURES)
    each, end = len(ADMISSION_CLASS_FEATURES), len(CLUSTER_FEATURES)
    own = [k for k in range(of_classes) if ADMISSION_CLASS_FEATURES[k % each] != "held_of_class"]
    return (*RATES, *(k - of_classes - end for k in own))


def as_of_larger(
    states: torch.Tensor, generator: torch.Generator, largest: float, rates: Sequence[int] = RATES
) -> torch.Tensor:
    """Half of the states as if the fleet were larger, by factors whose logarithms are uniform.

    With as many more places in the same states and as many more requests a second, what is known of each place, its
    share among all, their mean and maximum stay; the rates of arrivals grow. A network that has seen this does not
    take them for a load.

    Args:
        states: (B, S), the request's part of observations, that of admission if any, then the cluster's; rates are
            log1p of multiples of a scale.
        generator: Draws.
        largest: The largest factor, at least 1.
        rates: Columns of rates.
    """
    number = len(states)
    factor = torch.exp(math.log(largest) * torch.rand(number, 1, generator=generator))
    factor[torch.rand(number, 1, generator=generator) < 0.5] = 1.0
    columns = list(rates)
    varied = states.clone()
    varied[:, columns] = torch.log1p(factor * torch.expm1(states[:, columns]))
    return varied
