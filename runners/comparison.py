"""What a paired comparison says: intervals, probabilities of improvement, gates and a verdict.

The protocol: every policy sees the same arrivals. The headline is against the best heuristic of the comparison. A
learned policy must not buy its return with the tail, the promises, one class or refusals; these are the gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

from envs.workload.registry import WorkloadSource
from envs.workload.schema import Workload
from runners.aggregate import Scored, aggregate, column
from runners.gates import gates_of
from runners.statistics import (
    FloatArray,
    holm,
    paired_p_value,
    probability_of_improvement,
    relative_improvement,
)

Results = Mapping[str, Sequence[Scored]]
Improvement = Mapping[str, tuple[float, tuple[float, float]]]  # by "A>B", with its interval

SOLVED_GAIN = 0.03
OPEN_GAP = 0.10
SIGNIFICANT = 0.05

_TRIES = 50  # windows of a trace that are looked at for each block


@dataclass(frozen=True)
class Kinds:
    """Which policies of a comparison are learned, and which look into the future."""

    learned: frozenset[str] = frozenset()
    clairvoyant: frozenset[str] = frozenset()

    def heuristics(self, names: Iterable[str]) -> list[str]:
        """The causal policies nobody trained."""
        return [name for name in names if name not in self.learned and name not in self.clairvoyant]


@dataclass(frozen=True, eq=False)
class References:
    """What returns are held against.

    Attributes:
        bound: (seeds,), returns that no policy can exceed, NaN where that is not known; None: nowhere.
        clairvoyant: (seeds,), returns of a clairvoyant search, NaN where none was made; None: nowhere.
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
        references: what regret is counted against besides the clairvoyant policies.
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
    regret = _regret(returns, kinds, references, improvement, strata)
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
        "relative_improvement": {
            key: {"iqm": gain, "ci95": ci95} for key, (gain, ci95) in improvement.items()
        },
        "p_values": p_values,
        "corrected": "holm",
        "best_heuristic": best,
        "learned": sorted(kinds.learned),
        "regret": {"bound": bound, "clairvoyant": regret},
        "gates": gates,
        "badge": _badge(results, kinds, best, improvement, p_values, gates, regret),
    }


def _unmixed(source: WorkloadSource) -> WorkloadSource:
    """The same windows of a trace, or draws of a generator, with no priorities and long prompts mixed in."""
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

    There may be fewer than asked for, where the split is short; at least one.

    Args:
        source: of the episodes.
        split: that they are drawn from.
        number: seeds wanted.
        first: least seed.
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
    for end, begin, seed in sorted(windows):  # as many as possible: always the one that ends first
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


def _best(improvement: Improvement, names: Sequence[str]) -> str | None:
    """The policy that is least behind any other: whoever beats all others, if there is one.

    Args:
        improvement: Of each policy over each other, by "A>B".
        names: To choose from.
    """

    def over_any_other(name: str) -> float:
        return min((improvement[f"{name}>{other}"][0] for other in names if other != name), default=0.0)

    return max(names, key=over_any_other, default=None)


def _shortfall(
    reference: FloatArray, returns: Mapping[str, FloatArray], strata: Sequence[str] | None
) -> dict[str, float]:
    """What each policy lacks of a reference where there is one, as a share of the policy's own return."""
    known = ~np.isnan(reference)
    labels = None if strata is None else [label for label, here in zip(strata, known, strict=True) if here]
    return {
        name: relative_improvement(reference[known], values[known], strata=labels)[0]
        for name, values in returns.items()
    }


def _regret(
    returns: Mapping[str, FloatArray],
    kinds: Kinds,
    references: References,
    improvement: Improvement,
    strata: Sequence[str] | None,
) -> dict[str, float] | None:
    """What each policy lacks of the best clairvoyant one, or of the search; None without either."""
    reference = _best(improvement, [name for name in returns if name in kinds.clairvoyant])
    found = {}
    if reference is not None:
        others = {name: values for name, values in returns.items() if name != reference}
        found = _shortfall(returns[reference], others, strata)
    if references.clairvoyant is None:
        return found or None
    searched = _shortfall(references.clairvoyant, returns, strata)
    return {name: max(share, found.get(name, share)) for name, share in searched.items()}


def _badge(
    results: Results,
    kinds: Kinds,
    best: str | None,
    improvement: Improvement,
    p_values: Mapping[str, float],
    gates: Mapping[str, Any],
    regret: Mapping[str, float] | None,
) -> str:
    """solved: a learned policy is 3 % better, its interval clear of zero, significantly, and passes the gates.

    open: nobody is, and even the best causal policy lacks 10 % of a clairvoyant one. none: neither.
    """
    if best is None:
        return "none"
    for name in results:
        if name in kinds.learned and name not in kinds.clairvoyant:
            p_value = p_values.get(f"{name}|{best}", p_values.get(f"{best}|{name}", 1.0))
            gain, (least, _) = improvement[f"{name}>{best}"]
            if gain >= SOLVED_GAIN and least > 0 and p_value < SIGNIFICANT and gates[name]["holds"]:
                return "solved"
    causal = [] if regret is None else [gap for name, gap in regret.items() if name not in kinds.clairvoyant]
    return "open" if causal and min(causal) >= OPEN_GAP else "none"
