"""Whose result a live result is: decisions taken for the policy, the client's lag, the machine's load, versions."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving_gym import __version__
from serving_gym.envs.live.client_health import ClientHealth
from serving_gym.runners.rollouts.policy_process import PolicyProcess
from serving_gym.runners.rollouts.rollout import Episode

MOST_OVERRIDDEN = 0.03  # share of decisions above which a result is warned of
_HUNG_UP = "its client has hung up"  # no fault of the policy
_SUMMED = ("failed",)  # of several episodes; of other figures the largest


def client_report(
    env: str, healths: Sequence[Mapping[str, Any]], episodes: Sequence[Episode], process: PolicyProcess | None
) -> dict[str, Any]:
    """What `summary.json` and `gap.json` say of the client in the episodes of a policy.

    Args:
        env: Name of the environment.
        healths: `ClientHealth` of each episode, as plain values.
        episodes: The episodes.
        process: The process of the policy, if it had one of its own.
    """
    merged = _merged(healths)
    overrides = overridden(episodes)
    warnings = [
        *_override_warnings(env, overrides),
        *ClientHealth(**{**merged, "overrides": 0, "overrides_share": None}).warnings(),
    ]
    report: dict[str, Any] = {
        "overrides": overrides,
        "client": {name: value for name, value in merged.items() if not name.startswith("overrides")},
        "versions": {"serving_gym": __version__, "python": platform.python_version()},
        "warnings": list(dict.fromkeys(warnings)),
    }
    if process is not None:
        report["policy_process"] = {
            "added_p50_s": float(np.median(process.waits_s)) if process.waits_s else 0.0,
            "added_p99_s": float(np.percentile(process.waits_s, 99)) if process.waits_s else 0.0,
            "restarts": process.restarts,
            "given_up": process.given_up,
        }
    return report


def overridden(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Decisions that were taken for a policy: their number, share of all decisions, and number by reason."""
    reasons: Counter[str] = Counter()
    own = 0
    for episode in episodes:
        for decision in episode.decisions:
            taken = [entry["reason"] for entry in decision.get("overrides", ())]
            reasons.update(reason for reason in taken if reason != _HUNG_UP)
            by_time = [entry for entry in decision.get("overrides", ()) if "at_s" in entry]
            own += not by_time and decision["refused"] not in taken
    count = reasons.total()
    named = dict(reasons.most_common(20))
    return {"count": count, "share": count / max(count + own, 1), "reasons": named}


def shown_rows(report: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Rows of the closing table."""
    client = report["client"]
    return [
        ("decisions overridden %", 100.0 * report["overrides"]["share"]),
        ("client's lag p99 s", client.get("send_lag_p99_s", 0.0)),
        (f"load (of {client.get('cores', 1)} cores)", client.get("load", 0.0)),
    ]


def _override_warnings(env: str, overrides: Mapping[str, Any]) -> list[str]:
    if overrides["share"] <= MOST_OVERRIDDEN:
        return []
    reason, number = next(iter(overrides["reasons"].items()))
    setting = "backend.decide_within_s" if env == "routing" else "backend.control_within_s"
    remedy = f"; {setting} sets that time" if "within" in reason else ""
    instead = "power of two choices decided" if env == "routing" else "nothing was changed"
    return [
        f"{100 * overrides['share']:.0f} % of the decisions were not the policy's, {instead} instead: "
        f"{number} of {overrides['count']} because of {reason!r}{remedy}"
    ]


def _merged(healths: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One of several episodes: the worst of figures, all of what is listed."""
    merged: dict[str, Any] = {}
    for health in healths:
        for name, value in health.items():
            known = merged.get(name)
            if known is None:
                merged[name] = value
            elif isinstance(value, Mapping):
                merged[name] = _joined(known, value, name in _SUMMED)
            elif isinstance(value, (list, tuple)):
                merged[name] = tuple(dict.fromkeys([*known, *value]))
            elif value is not None:
                merged[name] = max(known, value)
    return merged


def _joined(one: Mapping[str, Any], other: Mapping[str, Any], summed: bool) -> dict[str, Any]:
    joined = dict(one)
    for key, value in other.items():
        if summed:
            joined[key] = joined.get(key, 0) + value
        else:
            joined[key] = max(joined.get(key, value), value)
    return joined
