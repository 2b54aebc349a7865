"""Rendezvous hashing: the engine whose hash with the session is highest."""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.common.routers.sessions import hash_pairs, session_of
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


class RendezvousHashPolicy(Router):
    """Every session has its own order of the engines, and goes to the first of them that can take it.

    As in vllm-router 0.1.17 (`policies/rendezvous_hash.rs`), with the sessions of `session_of` and SplitMix64 as the
    hash (vllm-router hashes the text "session:url" by FurcHash and MurmurHash64A). Load plays no part.
    """

    name = "rendezvous_hash"

    def begin(self) -> None:
        """Numbers the engines."""
        self._places = np.arange(len(self.engines), dtype=np.uint64)

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The highest hash."""
        able = np.flatnonzero(state.can_take)
        return int(able[np.argmax(hash_pairs(session_of(request), self._places[able]))])
