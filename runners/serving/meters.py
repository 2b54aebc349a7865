"""What `/metrics` shows of a served policy, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from serving_gym.runners.serving.drift import Range
from serving_gym.runners.serving.host import Answer

if TYPE_CHECKING:
    from prometheus_client import Counter

_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


class Meters:
    """Counters, the histogram of latencies, and what is served.

    Attributes:
        registry: Where they are collected.

    Args:
        env: Name of the environment.
        policy: Name of the policy.
        mode: Use of the responses.
    """

    def __init__(self, env: str, policy: str, mode: str) -> None:
        from prometheus_client import CollectorRegistry, Gauge, Histogram, Info

        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._about = {"env": env, "mode": mode}
        self._info = Info("serving_gym_policy", "The policy that is served", registry=self.registry)
        self._up = Gauge("serving_gym_up", "Whether the service has started", registry=self.registry)
        self._latency = Histogram(
            "serving_gym_decision_seconds",
            "Time from question to answer",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.policy_is(policy)
        self.count("decisions", 0)
        self.count("errors", 0)
        for by in ("late", "error", "restart", "overload"):
            self.count("overrides", 0, reason=by)

    def policy_is(self, policy: str) -> None:
        """Names the policy."""
        self._info.info({**self._about, "policy": policy})

    def up(self, started: bool) -> None:
        """Says whether the service has started."""
        self._up.set(started)

    def answered(self, answer: Answer, why: str) -> None:
        """Counts an answer.

        Args:
            answer: The answer.
            why: Kind of what was wrong with the policy's own; empty: nothing.
        """
        self.count("decisions")
        self._latency.observe(answer.us / 1e6)
        if why:
            self.count("errors")
        if answer.by == "fallback":
            self.count("overrides", reason=why)
        if answer.applies:
            self.count("applied")

    def compared(self, agreed: bool) -> None:
        """Counts a comparison with the fallback."""
        self.count("fallback_compared")
        self.count("fallback_disagreed", int(not agreed))

    def seen(self, outside: Mapping[str, int] | None, ranges: Mapping[str, Range] | None) -> None:
        """Counts values of the observation outside the range of training; without a range there is no such counter.

        Args:
            outside: Number of values of each feature outside; None: the observation was not read.
            ranges: The ranges.
        """
        if outside is None or ranges is None:
            return
        self.count("observations_checked")
        for part, (low, _) in ranges.items():
            for column in range(len(low)):
                feature = f"{part}.{column}"
                self.count("observation_outside", outside.get(feature, 0), feature=feature)

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Adds to the counter `serving_gym_NAME_total`.

        Args:
            name: Of the counter, without prefix and suffix.
            number: What is added.
            labels: Labels and their values; the same labels at every call.
        """
        from prometheus_client import Counter

        if name not in self._counters:
            self._counters[name] = Counter(
                f"serving_gym_{name}", name.replace("_", " "), list(labels), registry=self.registry
            )
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(number)
