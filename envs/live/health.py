"""Judges servers by what they do: which are hung, and which fail so often that they are left alone for a while."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving_gym.envs.live.gauges import NOTHING, Gauges

_log = logging.getLogger(__name__)

MOST_FAILURES = 3  # in a row, after which a server is ejected
FIRST_EJECTION_S, LONGEST_EJECTION_S = 1.0, 60.0  # the first, and the longest of those that double
ANSWERS_TO_RETURN = 2  # readings in a row after which a hung server is back
STUCK_FACTOR = (
    3.0  # an engine that answers may take so many times longer until it shows progress: a long prefill
)


@dataclass(slots=True)
class _State:
    """What is known of a server; times are monotonic seconds.

    Attributes:
        answered_s: Last answer of any kind.
        progress_s: Last token, or last change of its metrics.
        gauges: Last reading.
        ill_since_s: Since when its `/health` says that it is not well; NaN: it does not.
        hung: Why it counts as hung; empty: it does not.
        hung_by_answers: Whether it is hung as it does not answer, not as it makes no progress.
        good: Good readings in a row since then.
        failures: Failed requests in a row.
        ejections: Ejections in a row.
        ejected_until_s: When the last one ends.
    """

    answered_s: float
    progress_s: float
    gauges: Gauges = NOTHING
    ill_since_s: float = float("nan")
    hung: str = ""
    hung_by_answers: bool = False
    good: int = 0
    failures: int = 0
    ejections: int = 0
    ejected_until_s: float = float("-inf")


@dataclass
class Health:
    """Judges servers. Lives in the loop's thread; all times are monotonic seconds.

    A server is hung if it has not answered anything for `hung_after_s`, has said for so long that it is not well, or
    has requests and makes no progress for three times as long: it sends no token, and neither its counters of tokens
    and preemptions nor its KV usage change, as they do in a long prefill. That requests come and go is no progress. It
    is back after two good readings in a row, and one that made no progress not before it makes some. A server that
    fails three requests in a row is ejected for a second, and twice as long each time that its first request afterwards
    fails.

    Args:
        urls: servers, for messages.
        hung_after_s: longest time without an answer, seconds.
        now_s: time now.
    """

    urls: Sequence[str]
    hung_after_s: float
    now_s: float
    _states: list[_State] = field(init=False)

    def __post_init__(self) -> None:
        self._states = [_State(self.now_s, self.now_s) for _ in self.urls]

    def forget(self, server: int, now_s: float) -> None:
        """Another server has taken its place."""
        self._states[server] = _State(now_s, now_s)

    def note_sent(self, server: int, in_flight: int, now_s: float) -> None:
        """A request is sent to a server that has `in_flight` others: progress is expected from now on."""
        if in_flight == 0:
            self._states[server].progress_s = now_s

    def note_tokens(self, server: int, now_s: float) -> None:
        """A server has sent a token."""
        state = self._states[server]
        state.answered_s = state.progress_s = now_s

    def note_answer(self, server: int, gauges: Gauges | None, now_s: float) -> None:
        """A server has answered, with a reading if it could be read."""
        state = self._states[server]
        state.answered_s = now_s
        if gauges is None:
            state.good = 0
            return
        if _work_done(gauges) != _work_done(state.gauges) or gauges.num_requests == 0:
            state.progress_s = now_s
        state.gauges = gauges
        state.good += 1
        well = state.ill_since_s != state.ill_since_s and (state.hung_by_answers or state.progress_s == now_s)
        if state.hung and state.good >= ANSWERS_TO_RETURN and well:
            state.hung = ""
            state.progress_s = now_s
            _log.warning("%s is back, and gets requests again", self.urls[server])

    def note_failure(self, server: int, reason: str, now_s: float) -> None:
        """A request has failed at a server, which may be the server's fault."""
        state = self._states[server]
        state.failures += 1
        if now_s < state.ejected_until_s or (state.failures < MOST_FAILURES and not state.ejections):
            return
        away_s = min(FIRST_EJECTION_S * 2.0**state.ejections, LONGEST_EJECTION_S)
        state.ejected_until_s = now_s + away_s
        state.ejections += 1
        _log.warning(
            "%s has failed %d requests in a row (%s): it gets none for %g s, as long as another server takes them",
            self.urls[server],
            state.failures,
            reason,
            away_s,
        )

    def note_success(self, server: int) -> None:
        """A server has served a request to its end."""
        self._states[server].failures = self._states[server].ejections = 0

    def hung(self, server: int) -> str:
        """Why a server counts as hung; empty: it does not."""
        return self._states[server].hung

    def ejected(self, server: int, now_s: float) -> bool:
        """Whether a server is to be left alone, as its requests fail."""
        return now_s < self._states[server].ejected_until_s

    def pass_over(self, lost_s: float) -> None:
        """The client itself has stood still: no server is blamed for it."""
        for state in self._states:
            state.answered_s += lost_s
            state.progress_s += lost_s
            state.ill_since_s += lost_s

    def judge(self, server: int, in_service: bool, in_flight: int, ill: str, now_s: float) -> str:
        """Judges a server again.

        Args:
            server: which.
            in_service: whether it should take requests.
            in_flight: own requests on it.
            ill: what its `/health` says; empty: nothing bad.
            now_s: time now.

        Returns:
            Why it is hung, if it was not before; else empty.
        """
        state = self._states[server]
        if not in_service:
            state.answered_s = state.progress_s = now_s
        if not in_service or not ill:
            state.ill_since_s = float("nan")
        elif state.ill_since_s != state.ill_since_s:
            state.ill_since_s = now_s
        reason = self._reason(state, in_flight, ill, now_s) if in_service else ""
        if not reason or state.hung:
            return ""
        state.hung, state.good = reason, 0
        state.hung_by_answers = now_s - state.answered_s > self.hung_after_s
        return reason

    def _reason(self, state: _State, in_flight: int, ill: str, now_s: float) -> str:
        if now_s - state.answered_s > self.hung_after_s:
            return f"it has not answered for {self.hung_after_s:g} s"
        if now_s - state.ill_since_s > self.hung_after_s:
            return f"{ill} for {self.hung_after_s:g} s"
        stuck_s = STUCK_FACTOR * self.hung_after_s
        told = state.gauges.num_requests is not None and state.gauges.generation_tokens is not None
        if told and in_flight and now_s - state.progress_s > stuck_s:
            return f"it has requests, and has sent no token and counted none for {stuck_s:g} s"
        return ""


def _work_done(gauges: Gauges) -> tuple[float | None, ...]:
    """What an engine that works changes."""
    return gauges.kv_usage_ratio, gauges.preemptions, gauges.prompt_tokens, gauges.generation_tokens
