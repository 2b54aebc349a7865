"""Consistent hashing: the next engine on a ring."""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.common.routers.sessions import hash_pairs, session_of
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

VIRTUAL_NODES = 160  # places of an engine on the ring; vllm-router
_OF_SESSIONS = 2**32  # what sessions are hashed with: no engine's number


class ConsistentHashPolicy(Router):
    """Engines stand on a ring at 160 places each; a session goes to the first one at or after its own.

    As in vllm-router 0.1.17 (`policies/consistent_hash.rs`), whose ring has the available engines only: here those that
    cannot take the request are passed over, which comes to the same. Sessions are those of `session_of`; the hash is
    SplitMix64 (vllm-router: FurcHash and MurmurHash64A of text). Load plays no part.
    """

    name = "consistent_hash"

    def begin(self) -> None:
        """Lays out the ring."""
        nodes = np.arange(VIRTUAL_NODES, dtype=np.uint64)
        at = np.concatenate([hash_pairs(place, nodes) for place in range(len(self.engines))])
        order = np.argsort(at, kind="stable")
        self._at = at[order]
        self._owners = np.repeat(np.arange(len(self.engines)), VIRTUAL_NODES)[order]

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The next on the ring."""
        session = hash_pairs(_OF_SESSIONS, np.array([session_of(request)], np.uint64))
        first = int(np.searchsorted(self._at, session[0])) % len(self._at)
        owner = int(self._owners[first])
        if state.can_take[owner]:
            return owner
        able = np.flatnonzero(state.can_take[self._owners])
        return int(self._owners[able[np.searchsorted(able, first) % len(able)]])
