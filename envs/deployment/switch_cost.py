"""What a switch to a deployment costs, worked out before it is begun: by the plan that would be carried out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.machines.cluster import Deployment
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.machines.transfer import transfer_s
from serving_gym.envs.simulator.deployment.plane import weight_plan


@dataclass(frozen=True)
class SwitchCost:
    """Cost of an ad hoc switch.

    Attributes:
        gpus: Share of the GPUs in replicas that come.
        weight_bytes: Bytes of weights that GPUs receive.
        stall_s: Seconds from the end of draining until the new replicas serve: weights are sent, engines start. KV that
            moves comes on top, and up to `drain_limit_s` of draining before it.
        requests: Running and waiting in replicas that go.
        context_tokens: Tokens of context of those.
    """

    gpus: float = 0.0
    weight_bytes: float = 0.0
    stall_s: float = 0.0
    requests: int = 0
    context_tokens: int = 0


def switch_cost(
    spec: DeploymentSpec, before: Deployment, after: Deployment, engines: NDArray[np.void]
) -> SwitchCost:
    """What it would cost to go from one deployment to another now.

    Args:
        spec: The cluster.
        before: Deployment in force.
        after: Deployment to be.
        engines: (K,) ENGINE_STATE_DTYPE, replicas of `before`, in their order.
    """
    share = gpus_changed(before, after)
    staying = set(after.replicas)
    going = [k for k, replica in enumerate(before.replicas) if replica not in staying]
    if not share and not going:
        return SwitchCost()
    weight_bytes, moving_s = _moving(spec, before, after)
    return SwitchCost(
        gpus=share,
        weight_bytes=weight_bytes,
        stall_s=moving_s + spec.reinit_s,
        requests=int(engines["num_running"][going].sum() + engines["num_waiting"][going].sum()),
        context_tokens=int(engines["context_tokens"][going].sum()),
    )


@lru_cache(maxsize=4096)
def _moving(spec: DeploymentSpec, before: Deployment, after: Deployment) -> tuple[float, float]:
    """Bytes of weights that are received, and seconds until the last has."""
    plan = weight_plan(spec.model, before, after)
    return sum(part.size_bytes for part in plan), transfer_s(spec.cluster, plan, spec.storage_bytes_per_s)


def gpus_changed(before: Deployment, after: Deployment) -> float:
    """Share of the GPUs in replicas that are in `after` and not in `before`."""
    new = set(after.replicas) - set(before.replicas)
    return sum(replica.kind.num_gpus for replica in new) / before.cluster.num_gpus
