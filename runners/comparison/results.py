"""Results of a paired comparison: intervals, probabilities of improvement, gates and badges.

The protocol: every policy sees the same arrivals. The headline is against the best heuristic of the comparison. A
learned policy must also pass gates on tail latency, SLO attainment, single classes and refusals. Gains
are interquartile means inside each workload; the mean over all blocks is reported too and must also be a gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

from serving_gym.envs.workload.registry import WorkloadSource
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.comparison.aggregate import Scored, aggregate, column
from serving_gym.runners.comparison.gates import gates_of
from serving_gym.runners.comparison.statistics import (
    FloatArray,
    Improvement,
    holm,
    paired_p_value,
    probability_of_improvement,
    relative_improvement,
)

Results = Mapping[str, Sequence[Scored]]
Improvements = Mapping[str, Improvement]  # by "A>B"

SOLVED_GAIN = 0.03
OPEN_GAP = 0.10
SIGNIFICANT = 0.05

_TRIES = 50  # windows of a trace considered for each block


@dataclass(frozen=True)
class Kinds:
    """Which policies of a comparison are learned, and which are clairvoyant."""

    learned: frozenset[str] = frozenset()
    clairvoyant: frozenset[str] = frozenset()

    def heuristics(self, names: Iterable[str]) -> list[str]:
        """The policies that are neither trained nor clairvoyant."""
        return [name for name in names if name not in self.learned and name not in self.clairvoyant]


@dataclass(frozen=True, eq=False)
class References:
    """References of returns.

    Attributes:
        bound: (seeds,), upper bounds on returns, NaN where unknown; None: all unknown.
        clairvoyant: (seeds,), returns of a clairvoyant search, NaN where there was no search; None: no search.
    """

    bound: FloatArray | None = None
    clairvoyant: FloatArray | None = None


def compare_results(
    results: Results,
    kinds: Kinds,
    references: References | None = None,
    strata: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The statistical part of `comparison.json`.

    Args:
        results: episodes by policy, all over the same seeds in the same order.
        kinds: which of them are learned or clairvoyant.
        references: references of the regret besides the clairvoyant policies.
        strata: workload of each seed, where there are several; the bootstrap draws inside each.
    """
    references = references or References()
    returns = {name: column(episodes, "return") for name, episodes in results.items()}
    pairs = list(permutations(results, 2))
    p_values = holm(
        {f"{a}|{b}": paired_p_value(returns[a], returns[b], strata) for a, b in combinations(results, 2)}
    )
    improvement = {f"{a}>{b}": relative_improvement(returns[a], returns[b], strata=strata) for a, b in pairs}
    best = _best(improvement, kinds.heuristics(results))
    gates = (
        {}
        if best is None
        else {name: gates_of(results[name], results[best], best, strata) for name in results if name != best}
    )
    bound = None if references.bound is None else _shortfall(references.bound, returns, strata)
    policies = _regret_to_policies(returns, kinds, improvement, strata)
    searched = None if references.clairvoyant is None else _shortfall(references.clairvoyant, returns, strata)
    regret = _largest(policies, searched)
    badges = {
        name: _badge(name, best, improvement, p_values, gates)
        for name in results
        if name in kinds.learned and name not in kinds.clairvoyant and name != best
    }
    return {
        "policies": {
            name: {
                "metrics": aggregate(episodes, strata),
                "us_per_decision": float(np.median([episode.us_per_decision for episode in episodes])),
            }
            for name, episodes in results.items()
        },
        "probability_of_improvement": {
            f"{a}>{b}": probability_of_improvement(returns[a], returns[b]) for a, b in pairs
        },
        "relative_improvement": {key: asdict(gain) for key, gain in improvement.items()},
        "p_values": p_values,
        "corrected": "holm",
        "best_heuristic": best,
        "learned": sorted(kinds.learned),
        "lost_to": {
            name: [other for other in kinds.heuristics(results) if _behind(improvement[f"{name}>{other}"])]
            for name in badges
        },
        "regret": {
            "bound": bound,
            "clairvoyant": regret,  # the larger of the two
            "clairvoyant_policies": policies,
            "search": searched,
        },
        "gates": gates,
        "badges": badges,
        "badge": _badge_of_task(kinds, best, badges, regret),
    }


def _unmixed(source: WorkloadSource) -> WorkloadSource:
    """The same windows of a trace, or draws of a generator, without added priorities and long prompts."""
    return WorkloadSource(replace(source.spec, priority_share=0.0, long_share=0.0))


def disjoint_blocks(source: WorkloadSource, split: str, seeds: int) -> int:
    """How many of the episodes can be independent: all of a generator's, but windows of one trace overlap."""
    source = _unmixed(source)
    whole = WorkloadSource(replace(source.spec, num_requests=None))
    if not whole.sample(0, split).equals(whole.sample(1, split)):
        return seeds
    return min(seeds, len(whole.sample(0, split)) // len(source.sample(0, split)))


def disjoint_seeds(source: WorkloadSource, split: str, number: int, first: int) -> list[int]:
    """Seeds of episodes without a request in common: of a generator the next ones, of a trace disjoint windows.

    There may be fewer than requested if the split is short; at least one.

    Args:
        source: source of the episodes.
        split: split that they are drawn from.
        number: number of seeds requested.
        first: lowest seed.
    """
    source = _unmixed(source)
    whole = WorkloadSource(replace(source.spec, num_requests=None))
    rows = whole.sample(first, split)
    if not rows.equals(whole.sample(first + 1, split)):
        return list(range(first, first + number))
    windows = []
    for seed in range(first, first + _TRIES * number):
        window = source.sample(seed, split)
        begin = _place_in(rows, window)
        windows.append((begin + len(window), begin, seed))
    chosen: list[int] = []
    last = 0
    for end, begin, seed in sorted(windows):  # greedy: always the window that ends first
        if begin >= last and len(chosen) < number:
            chosen.append(seed)
            last = end
    return chosen


def _place_in(rows: Workload, window: Workload) -> int:
    """Row at which consecutive requests of a trace begin."""
    for begin in np.flatnonzero(rows.input_tokens == window.input_tokens[0]).tolist():
        columns = (rows.rows(begin, begin + len(window)), window)
        if all(
            np.array_equal(getattr(columns[0], name), getattr(columns[1], name))
            for name in ("input_tokens", "output_tokens")
        ):
            return int(begin)
    raise ValueError(f"an episode of workload {rows.name!r} is no part of its trace")


def _best(improvement: Improvements, names: Sequence[str]) -> str | None:
    """The policy that is least behind any other; the one that beats all others, if it exists.

    Args:
        improvement: Of each policy over each other, by "A>B".
        names: To choose from.
    """

    def over_any_other(name: str) -> float:
        return min((improvement[f"{name}>{other}"].iqm for other in names if other != name), default=0.0)

    return max(names, key=over_any_other, default=None)


def _shortfall(
    reference: FloatArray, returns: Mapping[str, FloatArray], strata: Sequence[str] | None
) -> dict[str, float]:
    """Regret of each policy to a reference where there is one, as a share of the policy's own return."""
    known = ~np.isnan(reference)
    labels = None if strata is None else [label for label, here in zip(strata, known, strict=True) if here]
    return {
        name: relative_improvement(reference[known], values[known], strata=labels).iqm
        for name, values in returns.items()
    }


def _regret_to_policies(
    returns: Mapping[str, FloatArray], kinds: Kinds, improvement: Improvements, strata: Sequence[str] | None
) -> dict[str, float] | None:
    """Regret of each policy to the best clairvoyant one; None: there is none."""
    reference = _best(improvement, [name for name in returns if name in kinds.clairvoyant])
    if reference is None:
        return None
    others = {name: values for name, values in returns.items() if name != reference}
    return _shortfall(returns[reference], others, strata)


def _largest(
    policies: Mapping[str, float] | None, searched: Mapping[str, float] | None
) -> dict[str, float] | None:
    """Larger of the two regrets of each policy; None without references."""
    if policies is None or searched is None:
        found = policies if searched is None else searched
        return None if found is None else dict(found)
    return {name: max(share, policies.get(name, share)) for name, share in searched.items()}


def _behind(gain: Improvement) -> bool:
    return gain.ci95[1] < 0


def _badge(
    name: str,
    best: str | None,
    improvement: Improvements,
    p_values: Mapping[str, float],
    gates: Mapping[str, Any],
) -> str:
    """Badge of a learned policy.

    solved: 3 % better than the best heuristic, the interval clear of zero, significantly, better in the mean of all
    blocks too, and past the gates. none: not so.
    """
    if best is None:
        return "none"
    p_value = p_values.get(f"{name}|{best}", p_values.get(f"{best}|{name}", 1.0))
    gain = improvement[f"{name}>{best}"]
    better = gain.iqm >= SOLVED_GAIN and gain.ci95[0] > 0 and gain.mean > 0
    return "solved" if better and p_value < SIGNIFICANT and gates[name]["holds"] else "none"


def _badge_of_task(
    kinds: Kinds, best: str | None, badges: Mapping[str, str], regret: Mapping[str, float] | None
) -> str:
    """Badge of the task.

    solved: by some learned policy. open: by none, and even the best causal policy lacks 10 % of a clairvoyant one.
    none: neither.
    """
    if "solved" in badges.values():
        return "solved"
    causal = [] if regret is None else [gap for name, gap in regret.items() if name not in kinds.clairvoyant]
    return "open" if best is not None and causal and min(causal) >= OPEN_GAP else "none"
