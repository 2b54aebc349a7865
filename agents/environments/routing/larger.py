"""States of a router as they would be on a larger fleet that is asked for as much more."""

from __future__ import annotations

import math

import torch

from serving_gym.envs.simulator.kernel.features import CLUSTER_FEATURES

_RATES = tuple(
    CLUSTER_FEATURES.index(f"{name}_{span}") - len(CLUSTER_FEATURES)
    for name in ("requests", "prompt_tokens", "predicted_tokens")
    for span in ("short", "long")
)


def as_of_larger(states: torch.Tensor, generator: torch.Generator, largest: float) -> torch.Tensor:
    """Half of the states as if the fleet were larger, by factors whose logarithms are uniform.

    With as many more places in the same states and as many more requests a second, what is known of each place, its
    share among all, their mean and maximum stay; the rates of arrivals grow. A network that has seen this does not
    take them for a load.

    Args:
        states: (B, S), the request's part of observations, then the cluster's; rates are log1p of multiples of a scale.
        generator: Draws.
        largest: The largest factor, at least 1.
    """
    number = len(states)
    factor = torch.exp(math.log(largest) * torch.rand(number, 1, generator=generator))
    factor[torch.rand(number, 1, generator=generator) < 0.5] = 1.0
    columns = list(_RATES)
    varied = states.clone()
    varied[:, columns] = torch.log1p(factor * torch.expm1(states[:, columns]))
    return varied
