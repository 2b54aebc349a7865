"""Hosts a policy for external callers: every call gets a response and is counted, even if the policy fails."""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.routing.state import Dispatch
from serving_gym.runners.serving.served import ServedEnvironment

MODES = ("live", "shadow", "canary")
_REMEMBERED = 10_000  # last decisions whose times the status reports


@dataclass(frozen=True, slots=True)
class Answer:
    """Response of a policy.

    Attributes:
        action: The decision in the wire form; None: an error.
        applies: Whether the response is to be followed: never in shadow mode, for a share of decisions in canary mode.
        us: Decision time, microseconds.
        error: Why there is no decision; empty if there is one.
        decision: The decision as the environment's own command: a `Verdict`, changes, a layout command, ...
    """

    action: Any
    applies: bool
    us: float
    error: str = ""
    decision: Any = None

    @property
    def place(self) -> int | None:
        """Routing: replica to send the request to; None: hold, refuse or defer it, or an error."""
        return self.decision.place if isinstance(self.decision, Dispatch) else None

    @property
    def priority(self) -> int | None:
        """Routing: priority at the engine; None: the request's own."""
        return self.decision.priority if isinstance(self.decision, Dispatch) else None


class PolicyHost:
    """Hosts a policy and validates its decisions.

    Args:
        policy: The policy.
        served: The environment.
        mode: live: responses are to be followed; shadow: none is, they are compared with the caller's choice; canary:
            responses for a share of decisions are to be followed.
        share: Share of decisions in canary mode.
        seed: Seed of the policy.

    Raises:
        ValueError: the mode is unknown, or the share is not in [0, 1].
    """

    def __init__(
        self,
        policy: Any,
        served: ServedEnvironment,
        mode: str = "live",
        share: float = 0.1,
        seed: int = 0,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {share}")
        self.policy, self.served, self.mode, self.share = policy, served, mode, share
        self.spec = served.spec
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Resets policy and counters."""
        self.served.reset()
        self.policy.reset(self.spec, seed)
        self.counts: Counter[str] = Counter()
        self._us: deque[float] = deque(maxlen=_REMEMBERED)

    def ask(self, state: Any, chosen: Any = None) -> Answer:
        """The policy's decision; errors of the policy are returned, not raised.

        Args:
            state: State of the environment.
            chosen: The front end's own decision in the wire form (in routing a place will do), for comparison;
                None: not given.
        """
        begun_s, error = time.perf_counter(), ""
        decision = action = None
        try:
            observation = LazyObservation(lambda: self.served.observe(state))
            decision = self.served.decision(self.policy.act(observation, state), state)
            action = self.served.describe(decision)
        except Exception as trouble:  # noqa: BLE001 -- whatever a policy does, the request must go on
            error = f"{type(trouble).__name__}: {trouble}"
        us = 1e6 * (time.perf_counter() - begun_s)
        self._us.append(us)
        self.counts["decisions"] += 1
        self.counts["errors"] += bool(error)
        if chosen is not None and not error:
            self.counts["compared"] += 1
            self.counts["agreed"] += agrees(action, chosen)
        applies = not error and self._applies(state)
        self.counts["applied"] += applies
        return Answer(action, applies, us, error, decision)

    def status(self) -> dict[str, Any]:
        """Counts since the last reset, and decision times."""
        taken = np.array(self._us)
        percentiles = {f"us_p{q}": float(np.percentile(taken, q)) if taken.size else None for q in (50, 99)}
        names = ("decisions", "errors", "applied", "compared", "agreed")
        counts = {name: int(self.counts[name]) for name in names}
        return {"policy": self.policy.name, "mode": self.mode, "share": self.share, **counts, **percentiles}

    def _applies(self, state: Any) -> bool:
        if self.mode != "canary":
            return self.mode == "live"
        return zlib.crc32(self.served.key(state).encode()) < self.share * 2**32


def agrees(action: Any, chosen: Any) -> bool:
    """Whether a decision is the caller's own.

    Args:
        action: The decision in the wire form.
        chosen: The caller's in the wire form, or a place of routing.
    """
    if isinstance(chosen, int) and isinstance(action, dict):
        return bool(action.get("place") == chosen)
    return bool(action == chosen)
