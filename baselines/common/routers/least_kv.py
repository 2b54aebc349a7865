"""Lowest KV usage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, in_flight_counts
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


def kv_usage(state: RoutingState) -> NDArray[np.float64]:
    """Share of each engine's KV blocks in use, as its gauge last said, (P,); 0 where there are none."""
    capacity = state.engines["kv_capacity_blocks"]
    usage: NDArray[np.float64] = state.engines["kv_used_blocks"] / np.maximum(capacity, 1)
    return usage


class LeastKVPolicy(Router):
    """The engine whose gauge of KV usage is lowest.

    AIBrix's `least-kv-cache` (gateway plugins, `least_kv_cache.go`) on vLLM V1, whose engines have no CPU cache to add.
    AIBrix draws among equals; here the fewest requests in flight win, then the first engine, lest idle engines with
    equal gauges fill unevenly between two polls.
    """

    name = "least_kv"

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The lowest usage; ties by requests in flight, then to the first."""
        usage = np.where(state.can_take, kv_usage(state), np.inf)
        counts = np.where(usage == usage.min(), in_flight_counts(state), np.iinfo(np.int64).max)
        return int(np.argmin(counts))
