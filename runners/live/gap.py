"""Gap between simulation and live servers on the same episodes: errors of metrics, and ranking of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from serving_gym.runners.rollouts.rollout import Episode

USUAL_RIVALS = {  # of each environment with a live backend
    "autoscaling": ("fixed_instances", "hpa_waiting", "hpa_kv", "kpa"),
    "deployment": ("vllm_static", "vllm_reload", "llumnix_deployment", "stay"),
    "dp_tp": ("static_dp", "static_tp", "load_threshold", "flying_serving"),
    "routing": ("round_robin", "least_request", "power_of_two", "jsq"),
    "sharing": ("first_fit", "place_score", "sllm", "random"),
}
COMPARED = (
    "return",
    "e2e_mean_finished_s",
    "ttft_mean_finished_s",
    "tpot_mean_finished_s",
    "e2e_p50_s",
    "e2e_p99_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "slo_attainment",
    "goodput_rps",
    "throughput_tokens_per_s",
)
RANKED = "return"  # metrics that policies are ranked by

Runs = Mapping[str, Sequence[Episode]]


def gap(simulated: Runs, live: Runs) -> dict[str, Any]:
    """The contents of `gap.json`, without transitions.

    Args:
        simulated: Episodes by policy.
        live: The same seeds on live servers, possibly with repeats, in any order.
    """
    means = {name: (_mean(simulated[name]), _mean(live[name])) for name in simulated}
    return {
        "policies": {
            name: {metric: pair(ours[metric], theirs[metric]) for metric in COMPARED}
            for name, (ours, theirs) in means.items()
        },
        "returns": {
            name: {
                where: [{"seed": episode.seed, RANKED: episode.metrics[RANKED]} for episode in runs[name]]
                for where, runs in (("simulated", simulated), ("live", live))
            }
            for name in simulated
        },
        "gap": {
            metric: _error([(ours[metric], theirs[metric]) for ours, theirs in means.values()])
            for metric in COMPARED
        },
        "spread": {metric: _spread(live, metric) for metric in COMPARED},
        "ranking": _ranking(simulated, live),
        "overrides": {name: sum(_overrides(episode) for episode in live[name]) for name in live},
        "decisions": {name: sum(len(episode.decisions) for episode in live[name]) for name in live},
    }


def transition_gap(simulated: Sequence[float], live: Sequence[float]) -> dict[str, Any]:
    """Time of a transition in simulation and live, s, with the errors of the simulation."""
    errors = [_relative(*pair) for pair in zip(simulated, live, strict=True)]
    return {"simulated": list(simulated), "live": list(live), "error": errors}


def _mean(episodes: Sequence[Episode]) -> dict[str, float]:
    return {metric: float(np.mean([episode.metrics[metric] for episode in episodes])) for metric in COMPARED}


def pair(simulated: float, live: float) -> dict[str, float]:
    """A metric on both backends, and the error of the simulation."""
    return {"simulated": simulated, "live": live, "error": _relative(simulated, live)}


def _relative(simulated: float, live: float) -> float:
    """Relative error of the simulation; NaN if the live value is zero or infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.float64(simulated - live) / abs(np.float64(live)))


def _error(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Absolute relative errors over policies."""
    errors = np.abs([_relative(*pair) for pair in pairs])
    known = errors[np.isfinite(errors)]
    figures = (np.median(known), known.mean(), known.max()) if known.size else (np.nan,) * 3
    return dict(zip(("ape_median", "ape_mean", "ape_max"), map(float, figures), strict=True))


def _spread(live: Runs, metric: str) -> float:
    """Standard deviation between runs of one policy over one seed on live servers; NaN without repeats."""
    groups = [
        values
        for episodes in live.values()
        for seed in {episode.seed for episode in episodes}
        if len(values := [e.metrics[metric] for e in episodes if e.seed == seed]) > 1
    ]
    variances = [np.var(values, ddof=1) for values in groups if np.isfinite(values).all()]
    return float(np.sqrt(np.mean(variances))) if variances else float("nan")


def _ranking(simulated: Runs, live: Runs) -> dict[str, Any]:
    """How often two policies rank in the same order: over all pairs, and over pairs that differ significantly."""
    ours, theirs = ({name: _mean(runs[name])[RANKED] for name in runs} for runs in (simulated, live))
    episodes = min(len(runs) for runs in live.values())
    noise = _spread(live, RANKED) * np.sqrt(2.0 / episodes)  # of a difference of two means
    pairs = list(combinations(simulated, 2))
    tau = float(kendalltau([ours[name] for name in ours], [theirs[name] for name in ours]).statistic)
    agree = [(ours[a] - ours[b]) * (theirs[a] - theirs[b]) > 0 for a, b in pairs]
    clear = [abs(theirs[a] - theirs[b]) > 2 * noise for a, b in pairs]
    return {
        "by": RANKED,
        "simulated": sorted(ours, key=ours.__getitem__, reverse=True),
        "live": sorted(theirs, key=theirs.__getitem__, reverse=True),
        "kendall_tau": tau,
        "pairs": len(pairs),
        "pairs_in_the_same_order": sum(agree),
        "clear_pairs": sum(clear),
        "clear_pairs_in_the_same_order": sum(a and c for a, c in zip(agree, clear, strict=True)),
    }


def _overrides(episode: Episode) -> int:
    return sum(len(decision.get("overrides", ())) for decision in episode.decisions)
