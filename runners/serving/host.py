"""Hosts a routing policy for external callers: every call gets a response and is counted, even if the policy fails."""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.routing.observation import StateEncoder
from serving_gym.envs.routing.state import Dispatch, RoutingPolicy, RoutingState

MODES = ("live", "shadow", "canary")
_REMEMBERED = 10_000  # last decisions whose times the status reports


@dataclass(frozen=True, slots=True)
class Answer:
    """Response of a policy to a request.

    Attributes:
        place: Replica to send the request to; None: hold the request, or an error.
        priority: Priority at the engine; None: the request's own.
        applies: Whether the response is to be followed: never in shadow mode, for a share of requests in canary mode.
        us: Decision time, microseconds.
        error: Why there is no decision; empty if there is one.
    """

    place: int | None
    priority: int | None
    applies: bool
    us: float
    error: str = ""


class PolicyHost:
    """Hosts a policy and validates its decisions.

    Args:
        policy: The policy.
        spec: The policy specification.
        encoder: Encodes its observations.
        mode: live: responses are to be followed; shadow: none is, they are compared with the caller's choice; canary:
            responses for a share of requests are to be followed.
        share: Share of requests in canary mode.
        seed: Seed of the policy.

    Raises:
        ValueError: the mode is unknown, or the share is not in [0, 1].
    """

    def __init__(
        self,
        policy: RoutingPolicy,
        spec: PolicySpec,
        encoder: StateEncoder,
        mode: str = "live",
        share: float = 0.1,
        seed: int = 0,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {share}")
        self.policy, self.spec, self.encoder, self.mode, self.share = policy, spec, encoder, mode, share
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Resets policy and counters."""
        self.encoder.reset()
        self.policy.reset(self.spec, seed)
        self.counts: Counter[str] = Counter()
        self._us: deque[float] = deque(maxlen=_REMEMBERED)

    def ask(self, state: RoutingState, chosen: int | None = None) -> Answer:
        """The policy's decision on the request; errors of the policy are returned, not raised.

        Args:
            state: State of the router, with the request to decide on.
            chosen: The front end's own choice, for comparison; None: not given.
        """
        begun_s, error = time.perf_counter(), ""
        dispatch = Dispatch(None)
        try:
            observation, _ = self.encoder.encode(state)
            dispatch = self._dispatch(self.policy.act(observation, state), state)
        except Exception as trouble:  # noqa: BLE001 -- whatever a policy does, the request must go on
            error = f"{type(trouble).__name__}: {trouble}"
        us = 1e6 * (time.perf_counter() - begun_s)
        self._us.append(us)
        self.counts["decisions"] += 1
        self.counts["errors"] += bool(error)
        self.counts["held"] += dispatch.place is None and not error
        if chosen is not None and not error:
            self.counts["compared"] += 1
            self.counts["agreed"] += chosen == dispatch.place
        applies = not error and self._applies(state)
        self.counts["applied"] += applies
        return Answer(dispatch.place, dispatch.priority, applies, us, error)

    def status(self) -> dict[str, Any]:
        """Counts since the last reset, and decision times."""
        taken = np.array(self._us)
        percentiles = {f"us_p{q}": float(np.percentile(taken, q)) if taken.size else None for q in (50, 99)}
        names = ("decisions", "errors", "held", "applied", "compared", "agreed")
        counts = {name: int(self.counts[name]) for name in names}
        return {"policy": self.policy.name, "mode": self.mode, "share": self.share, **counts, **percentiles}

    def _dispatch(self, action: Any, state: RoutingState) -> Dispatch:
        """Converts an action to a dispatch.

        Raises:
            ValueError: it is not a replica that can take the request.
        """
        places = len(state.engines)
        if isinstance(action, Dispatch):
            dispatch = action
        else:
            dispatch = Dispatch(None if action is None or action == self.encoder.num_rows else int(action))
        if dispatch.place is None:
            return dispatch
        if not 0 <= dispatch.place < places or not state.can_take[dispatch.place]:
            raise ValueError(f"place {dispatch.place} cannot take the request")
        return dispatch

    def _applies(self, state: RoutingState) -> bool:
        if self.mode != "canary" or state.request is None:
            return self.mode == "live"
        return zlib.crc32(str(state.request.index).encode()) < self.share * 2**32
