"""vllm-router's `sticky_least_loaded`: sessions stay, new ones go where the fewest are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.common.routers.sessions import hash_pairs
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


@dataclass(frozen=True, slots=True)
class _Session:
    place: int
    heard_s: float  # when its last request came
    end: int  # last block of that request's prompt


class StickyLeastLoadedPolicy(Router, Configured[StickyLeastLoadedConfig]):
    """A session's engine; for a new one that with the fewest active sessions.

    vllm-router, `src/policies/sticky_least_loaded.rs` (vllm-project/router#235, September 2026; prime-rl's default
    since prime-rl#3563): an existing session goes to its engine while that can take it, else it is assigned anew. Ties
    go to the highest rendezvous hash of session and engine. A request without a session goes where the fewest sessions
    are and is not counted.

    Departures: requests carry no session id, so that a prompt belongs to the session whose last prompt it goes on from
    (whose last block it has), and begins one where there is none; nobody says that a session has ended
    (`/finish_session`), so that it counts until it expires.
    """

    name = "sticky_least_loaded"

    def begin(self) -> None:
        """No sessions."""
        self._sessions: dict[int, _Session] = {}  # those that were heard of last are last
        self._ends: dict[int, int] = {}  # last block of a session's last prompt -> session
        self._begun = 0
        self._active = np.zeros(len(self.engines), np.int64)
        self._swept_s = 0.0
        self._places = np.arange(len(self.engines), dtype=np.uint64)

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The session's engine, or the one with the fewest."""
        self._sweep(state.now_s)
        blocks: list[int] = request.hash_ids.tolist()
        if not blocks:
            return self._fewest(request.index, state.can_take)
        number = next((self._ends[block] for block in reversed(blocks) if block in self._ends), None)
        if number is None:
            number = self._begun
            self._begun += 1
        known = self._forget(number)
        stays = known is not None and bool(state.can_take[known.place])
        place = known.place if known is not None and stays else self._fewest(number, state.can_take)
        self._active[place] += 1
        self._sessions[number] = _Session(place, state.now_s, blocks[-1])
        self._ends[blocks[-1]] = number
        return place

    def _forget(self, number: int) -> _Session | None:
        """Takes a session out, if there is one."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self._active[session.place] -= 1
            del self._ends[session.end]
        return session

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
            number, session = next(iter(self._sessions.items()))
            if now_s - session.heard_s < self.config.expiration_s:
                break
            self._forget(number)
