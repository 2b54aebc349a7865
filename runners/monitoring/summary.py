"""What a monitor has read, for `summary.json` and `readings.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from serving_gym.runners.monitoring.frame import disagreement
from serving_gym.runners.monitoring.pages import ENGINE, POLICY, Watched


@dataclass
class Sums:
    """Running sums over the readings of an engine."""

    readings: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage_ratio: float = 0.0
    most_running: int = 0
    most_waiting: int = 0
    most_kv_usage_ratio: float = 0.0


@dataclass
class Summary:
    """What has been read so far.

    Attributes:
        of: Sums of each engine, by address.
        stale: Rounds in which an address was stale, by address.
        rounds: Rounds of reading.
    """

    of: dict[str, Sums] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    rounds: int = 0

    def add(
        self, watched: Sequence[Watched], now_s: float, begun_s: float, stale_after_s: float
    ) -> dict[str, Any]:
        """Adds a round of readings; returns it as a row of `readings.jsonl`."""
        self.rounds += 1
        rows = []
        for each in watched:
            stale = each.is_stale(now_s, stale_after_s)
            self.stale[each.url] = self.stale.get(each.url, 0) + stale
            row: dict[str, Any] = {"url": each.url, "kind": each.kind, "stale": stale}
            if each.gauges is not None:
                row |= _gauges(each)
                if not stale:
                    _sum(self.of.setdefault(each.url, Sums()), each)
            elif each.kind == POLICY:
                row["status"] = each.status
            rows.append(row)
        return {"at_s": now_s - begun_s, "servers": rows}

    def result(self, watched: Sequence[Watched], seconds: float, gain: dict[str, Any]) -> dict[str, Any]:
        """The content of `summary.json`."""
        return {
            "seconds": seconds,
            "rounds": self.rounds,
            "engines": {each.url: self._engine(each) for each in watched if each.kind == ENGINE},
            "policies": {
                each.url: {
                    **each.status,
                    "disagreement": disagreement(each),
                    "front_end_disagreement": disagreement(each, fallback=False),
                    **self._reading(each),
                }
                for each in watched
                if each.kind == POLICY
            },
            "never_read": {each.url: each.problem for each in watched if not each.kind},
            "gain": gain,
        }

    def _engine(self, watched: Watched) -> dict[str, Any]:
        sums = self.of.get(watched.url, Sums())
        count = max(sums.readings, 1)
        return {
            "num_running_mean": sums.running / count,
            "num_running_max": sums.most_running,
            "num_waiting_mean": sums.waiting / count,
            "num_waiting_max": sums.most_waiting,
            "kv_usage_mean_ratio": sums.kv_usage_ratio / count,
            "kv_usage_max_ratio": sums.most_kv_usage_ratio,
            **_gauges(watched),
            **self._reading(watched),
        }

    def _reading(self, watched: Watched) -> dict[str, Any]:
        return {
            "readings": watched.readings,
            "unread_pages": watched.failures,
            "stale_rounds": self.stale.get(watched.url, 0),
            "problem": watched.problem,
        }


def _gauges(watched: Watched) -> dict[str, Any]:
    gauges = watched.gauges
    assert gauges is not None, "an engine has been read"
    return {
        "num_running": gauges.num_running,
        "num_waiting": gauges.num_waiting,
        "kv_usage_ratio": gauges.kv_usage_ratio,
        "preemptions": gauges.preemptions,
        "prompt_tokens_per_s": watched.rates[0],
        "generated_tokens_per_s": watched.rates[1],
    }


def _sum(sums: Sums, watched: Watched) -> None:
    gauges = watched.gauges
    assert gauges is not None, "an engine has been read"
    running, waiting, usage = gauges.num_running or 0, gauges.num_waiting or 0, gauges.kv_usage_ratio or 0.0
    sums.readings += 1
    sums.running += running
    sums.waiting += waiting
    sums.kv_usage_ratio += usage
    sums.most_running = max(sums.most_running, running)
    sums.most_waiting = max(sums.most_waiting, waiting)
    sums.most_kv_usage_ratio = max(sums.most_kv_usage_ratio, usage)
