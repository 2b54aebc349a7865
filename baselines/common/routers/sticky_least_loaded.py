"""vllm-router's `sticky_least_loaded`: sessions stay, new ones go where the fewest are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.common.routers.sessions import hash_pairs, session_of
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class StickyLeastLoadedConfig(Constants):
    """Constants of `StickyLeastLoadedPolicy`.

    Attributes:
        expiration_s: A session counts until it has been silent for so long. Source: vllm-router,
            `VLLM_ROUTER_SLL_SESSION_EXPIRATION_IN_S` (7200 s).
        sweep_s: Least time between two looks for sessions that have expired. Source: vllm-router (60 s).
    """

    expiration_s: float = tunable(7200.0, 5.0, 7200.0, log=True)
    sweep_s: float = 60.0

    def __post_init__(self) -> None:
        check_positive(self, "expiration_s", "sweep_s")


class StickyLeastLoadedPolicy(Router, Configured[StickyLeastLoadedConfig]):
    """A session's engine; for a new one that with the fewest active sessions.

    vllm-router, `src/policies/sticky_least_loaded.rs` (vllm-project/router#235, September 2026; prime-rl's default
    since prime-rl#3563): an existing session goes to its engine while that can take it, else it is assigned anew. Ties
    go to the highest rendezvous hash of session and engine. A request without a session goes where the fewest sessions
    are and is not counted.

    Departures: the session is the first block of the prompt (`session_of`); nobody says that one has ended
    (`/finish_session`), so that it counts until it expires.
    """

    name = "sticky_least_loaded"

    def begin(self) -> None:
        """No sessions."""
        self._sessions: dict[
            int, tuple[int, float]
        ] = {}  # session -> its engine and when it was heard of last
        self._active = np.zeros(len(self.engines), np.int64)
        self._swept_s = 0.0
        self._places = np.arange(len(self.engines), dtype=np.uint64)

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The session's engine, or the one with the fewest."""
        self._sweep(state.now_s)
        session = session_of(request)
        if not len(request.hash_ids):
            return self._fewest(session, state.can_take)
        known = self._sessions.pop(session, None)
        if known is not None and state.can_take[known[0]]:
            place = known[0]
        else:
            if known is not None:
                self._active[known[0]] -= 1
            place = self._fewest(session, state.can_take)
            self._active[place] += 1
        self._sessions[session] = (
            place,
            state.now_s,
        )  # last in the order of the dictionary, and so the youngest
        return place

    def _fewest(self, session: int, can_take: NDArray[np.bool_]) -> int:
        active = np.where(can_take, self._active, np.iinfo(np.int64).max)
        ties = np.flatnonzero(active == active.min())
        return int(ties[np.argmax(hash_pairs(session, self._places[ties]))])

    def _sweep(self, now_s: float) -> None:
        """Forgets sessions that have been silent for too long."""
        if now_s - self._swept_s < self.config.sweep_s:
            return
        self._swept_s = now_s
        while self._sessions:
            session, (place, heard_s) = next(iter(self._sessions.items()))
            if now_s - heard_s < self.config.expiration_s:
                break
            del self._sessions[session]
            self._active[place] -= 1
