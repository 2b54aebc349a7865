"""Hosts a policy for external callers: every call gets a response and is counted, even if the policy fails."""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.routing.state import Dispatch
from serving_gym.runners.serving.drift import Range, outside
from serving_gym.runners.serving.served import ServedEnvironment

MODES = ("live", "shadow", "canary")
_REMEMBERED = 10_000  # last decisions whose times the status reports


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a policy says about a state.

    Attributes:
        decision: The environment's own command: a `Verdict`, changes, a layout command, ...
        action: The decision in the wire form; None: an error, or in some environments: leave all as it is.
        us: Time that the policy took, microseconds.
        error: Why there is no decision; empty if there is one.
        propensity: Probability of the decision, if the policy tells it.
        outside: Features of the observation that lie outside the range of training, number of values of each; None: the
            observation was not read, or the range is not known.
    """

    decision: Any
    action: Any
    us: float
    error: str = ""
    propensity: float | None = None
    outside: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Response to a caller.

    Attributes:
        action: The decision in the wire form; None: an error, or in some environments: leave all as it is.
        applies: Whether the response is to be followed: never in shadow mode, for a share of decisions in canary mode.
        us: Time from question to answer, microseconds.
        error: Why the policy's own decision is missing; empty if it is this one.
        decision: The decision as the environment's own command: a `Verdict`, changes, a layout command, ...
        by: Who decided: policy, fallback, or none.
    """

    action: Any
    applies: bool
    us: float
    error: str = ""
    decision: Any = None
    by: str = "policy"

    @property
    def place(self) -> int | None:
        """Routing: replica to send the request to; None: hold, refuse or defer it, or an error."""
        return self.decision.place if isinstance(self.decision, Dispatch) else None

    @property
    def priority(self) -> int | None:
        """Routing: priority at the engine; None: the request's own."""
        return self.decision.priority if isinstance(self.decision, Dispatch) else None


@dataclass
class Tally:
    """Counts and times of answers.

    Attributes:
        counts: Counts by name.
        us: Times of the last answers, microseconds.
    """

    counts: Counter[str] = field(default_factory=Counter)
    us: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def add(self, answer: Answer, chosen: Any) -> None:
        """Counts an answer.

        Args:
            answer: The answer.
            chosen: The caller's own decision in the wire form; None: not given.
        """
        self.us.append(answer.us)
        self.counts["decisions"] += 1
        self.counts["errors"] += bool(answer.error)
        self.counts["overrides"] += answer.by == "fallback"
        self.counts["applied"] += answer.applies
        if chosen is not None and answer.by == "policy":
            self.counts["compared"] += 1
            self.counts["agreed"] += agrees(answer.action, chosen)

    def status(self) -> dict[str, Any]:
        """Counts and percentiles of the times."""
        taken = np.array(self.us)
        names = ("decisions", "errors", "overrides", "applied", "compared", "agreed")
        percentiles = {f"us_p{q}": float(np.percentile(taken, q)) if taken.size else None for q in (50, 99)}
        return {**dict.fromkeys(names, 0), **{k: int(n) for k, n in self.counts.items()}, **percentiles}


class PolicyHost:
    """Hosts a policy and validates its decisions.

    Args:
        policy: The policy.
        served: The environment.
        mode: live: responses are to be followed; shadow: none is, they are compared with the caller's choice; canary:
            responses for a share of decisions are to be followed.
        share: Share of decisions in canary mode.
        seed: Seed of the policy.
        ranges: Range of each part of the observation in training, where the checkpoint tells it.

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
        ranges: Mapping[str, Range] | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {share}")
        self.policy, self.served, self.mode, self.share = policy, served, mode, share
        self.spec, self.ranges = served.spec, ranges
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Resets policy and counters."""
        self.served.reset()
        self.policy.reset(self.spec, seed)
        self.tally = Tally()

    def ask(self, state: Any, chosen: Any = None) -> Answer:
        """The policy's decision; errors of the policy are returned, not raised.

        Args:
            state: State of the environment.
            chosen: The front end's own decision in the wire form (in routing a place will do), for comparison;
                None: not given.
        """
        said = self.judge(state)
        by = "none" if said.error else "policy"
        answer = Answer(
            said.action, not said.error and self.applies(state), said.us, said.error, said.decision, by
        )
        self.tally.add(answer, chosen)
        return answer

    def judge(self, state: Any) -> Judgement:
        """What the policy says about a state; errors of the policy are returned, not raised."""
        begun_s = time.perf_counter()
        observation = LazyObservation(lambda: self.served.observe(state))
        try:
            decision = self.served.decision(self.policy.act(observation, state), state)
            action = self.served.wire.write_action(decision)
        except Exception as trouble:  # noqa: BLE001 -- whatever a policy does, the request must go on
            return Judgement(None, None, _us_since(begun_s), f"{type(trouble).__name__}: {trouble}"[:500])
        us = _us_since(begun_s)
        told = getattr(self.policy, "propensity", None)
        propensity = float(told) if isinstance(told, int | float | np.floating) else None
        return Judgement(decision, action, us, "", propensity, outside(observation, self.ranges))

    def applies(self, state: Any) -> bool:
        """Whether the decision about a state is to be followed."""
        if self.mode != "canary":
            return self.mode == "live"
        return zlib.crc32(self.served.key(state).encode()) < self.share * 2**32

    def status(self) -> dict[str, Any]:
        """Counts since the last reset, and decision times."""
        about = {"policy": self.policy.name, "mode": self.mode, "share": self.share}
        return about | self.tally.status()


def _us_since(begun_s: float) -> float:
    return 1e6 * (time.perf_counter() - begun_s)


def agrees(action: Any, chosen: Any) -> bool:
    """Whether a decision is the caller's own.

    Args:
        action: The decision in the wire form.
        chosen: The caller's in the wire form, or a place of routing.
    """
    if isinstance(chosen, int) and isinstance(action, dict):
        return bool(action.get("place") == chosen)
    return bool(action == chosen)
