"""How saturated the pool is, as gateways measure it."""

from __future__ import annotations

from serving_gym.envs.routing.observation import saturation_of
from serving_gym.envs.routing.state import RoutingState

# The last priority that admission protects: vLLM's priorities, the lower is served first. llm-d and the Gateway API
# Inference Extension protect priorities from 0 on, the higher counts; here critical is 0, standard 1, sheddable 2.
PROTECTED_PRIORITY = 1


def pool_saturation(
    state: RoutingState, queue_depth_threshold: float, kv_cache_util_threshold: float
) -> float:
    """Mean saturation of the engines that serve the request's model; 1 where none is in service.

    Args:
        state: A state with a request.
        queue_depth_threshold: Waiting requests at which an engine is saturated.
        kv_cache_util_threshold: Share of KV blocks in use at which it is.
    """
    saturation = saturation_of(state, queue_depth_threshold, kv_cache_util_threshold)
    return float(saturation.mean()) if len(saturation) else 1.0
