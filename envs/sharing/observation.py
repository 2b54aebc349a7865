"""What a learned policy sees of shared nodes: a row for each slot and node, the request, and the cluster.

The simulator's kernel writes it (`envs.simulator.sharing.features`, where rows and units are named); on running servers
`envs.sharing.live.mirror` has the kernel write the same figures from what the servers show.
"""

from __future__ import annotations

from serving_gym.envs.interface.sharing import SharingSetting
from serving_gym.envs.simulator.sharing.features import (
    CLUSTER_FEATURES,
    HIGHEST,
    PLACE_FEATURES,
    REQUEST_FEATURES,
)

__all__ = ["CLUSTER_FEATURES", "HIGHEST", "PLACE_FEATURES", "REQUEST_FEATURES", "shapes_of"]


def shapes_of(setting: SharingSetting) -> dict[str, tuple[int, ...]]:
    """Shapes of the observation's parts."""
    return {
        "places": (setting.num_slots + setting.num_nodes, len(PLACE_FEATURES)),
        "request": (len(REQUEST_FEATURES),),
        "cluster": (len(CLUSTER_FEATURES) + len(setting.kinds),),
    }
