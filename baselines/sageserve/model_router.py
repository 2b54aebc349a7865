"""Routing at a region's endpoint: which deployment of the model (section 6.1).

An endpoint, that is a model in a region, has several deployments of a few instances each (sections 2.1 and 7.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.sageserve.effective_memory import EffectiveMemory
from serving_gym.envs.interface.nominal import NominalEngines


def deployments_of(fleet: NominalEngines, most: int) -> NDArray[np.int64]:
    """Number of the deployment that each place belongs to, (P,).

    Instances of one kind (model, region, GPU and number of GPUs) are split, in order of place, into as few deployments
    as may be, of sizes that differ by no more than one; so none of the paper's (at most three instances) has fewer than
    two where there are two.

    Args:
        fleet: Its places.
        most: Most instances of a deployment.
    """
    kinds = list(zip(fleet.models, fleet.regions, fleet.gpus, fleet.num_gpus.tolist(), strict=True))
    numbers = np.zeros(len(fleet), np.int64)
    count = 0
    for kind in dict.fromkeys(kinds):
        places = np.array([place for place, own in enumerate(kinds) if own == kind])
        for part in np.array_split(places, -(-len(places) // most)):
            numbers[part] = count
            count += 1
    return numbers


def least_loaded_deployment(
    memory: EffectiveMemory, deployments: NDArray[np.int64], candidates: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """The candidates of the deployment whose effective memory is least utilised, (P,).

    Args:
        memory: Of the places.
        deployments: (P,) number of the deployment of each place.
        candidates: (P,) places that can take the request; at least one.
    """
    hosting = np.unique(deployments[candidates])
    utilization = [memory.utilization(deployments == number) for number in hosting]
    return candidates & (deployments == hosting[int(np.argmin(utilization))])
