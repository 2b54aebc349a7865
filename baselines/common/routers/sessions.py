"""What a request belongs to, and hashes of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.routing.state import RoutedRequest

_OF_PREFIX, _OF_REQUEST = 0, 1


def session_of(request: RoutedRequest) -> int:
    """The session of a request: the first block of its prompt, which the turns of a conversation have in common.

    A request whose prompt shares nothing is a session of its own, as routers that find no session id hash the request.
    """
    if len(request.hash_ids):
        return (int(request.hash_ids[0]) & 0xFFFFFFFF) << 1 | _OF_PREFIX
    return request.index << 1 | _OF_REQUEST


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit hash of each value (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_pairs(first: int, second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit hash of a number with each of others.

    Args:
        first: 0 to 2^64 - 1.
        second: (N,).
    """
    spread = np.array([(first + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF], np.uint64)
    return mixed(mixed(spread) ^ mixed(second + np.uint64(1)))
