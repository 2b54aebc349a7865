"""What generators of sessions have in common: sessions that begin at random, some under way when an episode begins."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.sessions.tables import SessionTable

_SAMPLE = 1_000_000  # draws from which a mean is estimated
_CHUNK = 32  # sessions that are drawn at a time


@dataclass(frozen=True)
class LogNormal:
    """Lengths or times whose logarithm is normal.

    Attributes:
        median: in the unit of what is drawn.
        spread: standard deviation of the natural logarithm.
        most: longer draws are cut to it.
    """

    median: float
    spread: float
    most: float = math.inf

    def draw(self, rng: np.random.Generator) -> float:
        """One value."""
        return float(min(self.median * math.exp(self.spread * rng.standard_normal()), self.most))

    def tokens(self, rng: np.random.Generator) -> int:
        """One length, at least 1."""
        return max(1, round(self.draw(rng)))


@dataclass(frozen=True)
class SessionTraffic(ABC):
    """Sessions that begin as a Poisson process; within a session a request waits for the answer before.

    Attributes:
        arrival_rate_rps: long-run rate of requests, were they served in no time, requests per second. Slow serving
            makes later turns later, never the first ones.
        history_s: time before an episode in which sessions began that may be under way when it begins, seconds.
        patience_s: time that a client waits for the first token of an answer before it hangs up, seconds; None: as
            long as it takes. The session then ends.
        context_tokens: longest prompt, tokens.
        longest_output_tokens: longest answer, tokens.
        name: what its workloads are called.
        num_requests: default length of an episode, requests.
    """

    unused: ClassVar[tuple[str, ...]] = ()  # fields that a kind of session has no use for
    arrival_rate_rps: float = 2.0
    history_s: float = 600.0
    patience_s: float | None = None
    context_tokens: int = 100_000
    longest_output_tokens: int = 8_192
    name: str = "sessions"
    num_requests: int = 1000

    def __post_init__(self) -> None:
        check_positive(self, "arrival_rate_rps", "patience_s", finite=True)
        check_not_negative(self, "history_s", finite=True)
        check_at_least(self, 1, "num_requests")

    @property
    def rate_rps(self) -> float:
        """Long-run rate of requests, requests per second."""
        return self.arrival_rate_rps

    @property
    def classes(self) -> tuple[str, ...]:
        """One class."""
        return ("standard",)

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt, tokens."""
        return self.context_tokens

    @property
    def max_output_tokens(self) -> int:
        """Longest answer, tokens, which every request declares."""
        return self.longest_output_tokens

    @property
    @abstractmethod
    def provenance(self) -> str:
        """Where its figures come from, in one line."""

    @property
    @abstractmethod
    def mean_requests(self) -> float:
        """Mean number of requests of a session."""

    @abstractmethod
    def begin(self, table: SessionTable) -> object:
        """Prepares what all sessions share."""

    @abstractmethod
    def add_session(
        self, table: SessionTable, shared: object, number: int, begin_s: float, rng: np.random.Generator
    ) -> None:
        """Adds the requests of one session."""

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload; a longer one drawn from the same stream begins with the shorter one."""
        table = SessionTable()
        shared = self.begin(table)
        gaps, bodies = rng.spawn(2)
        gap_s = self.mean_requests / self.arrival_rate_rps
        now_s, number = -self.history_s, 0
        while not self._enough(table, now_s, num_requests):
            for own in bodies.spawn(_CHUNK):
                now_s += gap_s * gaps.standard_exponential()
                self.add_session(table, shared, number, now_s, own)
                number += 1
        workload = table.workload(num_requests, self.max_output_tokens, self.name, self.provenance)
        return workload if self.patience_s is None else _with_patience(workload, self.patience_s)

    def _enough(self, table: SessionTable, now_s: float, num_requests: int) -> bool:
        """Whether the first requests are known: no session that begins later has one of them."""
        if now_s < 0.0:
            return False
        planned = np.array(table.arrival_s)
        planned = np.sort(planned[planned >= 0.0])
        return len(planned) >= num_requests and bool(planned[num_requests - 1] <= now_s)


@lru_cache(maxsize=16)
def mean_of_counts(spread: float, median: float = 1.0, most: float = math.inf) -> float:
    """Mean of the counts that `count_of` draws."""
    draws = median * np.exp(spread * np.random.default_rng(0).standard_normal(_SAMPLE))
    return float(np.minimum(np.ceil(draws), most).mean())


def count_of(spread: float, rng: np.random.Generator, median: float = 1.0, most: float = math.inf) -> int:
    """A heavy-tailed count of at least 1 and at most `most`: a log-normal number, rounded up."""
    return int(min(math.ceil(median * math.exp(spread * rng.standard_normal())), most))


def _with_patience(workload: Workload, patience_s: float) -> Workload:
    return replace(workload, patience_s=np.full(len(workload), patience_s))
