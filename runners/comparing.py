"""Policies on the same episodes of one or several workloads, and what that says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from baselines.policy import Policy
from envs.workload.registry import WorkloadSource
from runners.clairvoyant import ClairvoyantSearchPolicy
from runners.comparison import Kinds, References, compare_results, disjoint_seeds
from runners.environments import make_configured_env
from runners.fan_out import episodes_of
from runners.policies import is_checkpoint, load_policy
from runners.references import bound_on_return, engines_of
from runners.rollout import Episode, run_episode
from runners.schema import SIMULATOR, CompareConfig, SearchConfig


@dataclass
class Comparison:
    """Episodes of every policy, and the returns that they are held against.

    Attributes:
        results: episodes by policy, all over the same seeds in the same order.
        strata: workload of each seed.
        bounds: returns that no policy can exceed, one a seed; empty: not known.
        searched: returns of the clairvoyant search on the first seeds.
        blocks: seeds whose requests do not overlap.
    """

    results: dict[str, list[Episode]]
    strata: list[str] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    searched: list[float] = field(default_factory=list)
    blocks: int = 0

    def said(self, kinds: Kinds) -> dict[str, Any]:
        """The statistical part of `comparison.json`."""
        references = References(
            bound=np.array(self.bounds) if len(self.bounds) == len(self.strata) else None,
            clairvoyant=np.array(self.searched) if self.searched else None,
        )
        several = self.strata if len(set(self.strata)) > 1 else None
        return compare_results(self.results, kinds, references, several)


def kinds_of(policies: Mapping[str, Policy]) -> Kinds:
    """Which are learned, and which look into the future."""
    return Kinds(
        learned=frozenset(name for name in policies if is_checkpoint(name)),
        clairvoyant=frozenset(name for name, policy in policies.items() if policy.clairvoyant),
    )


def run(
    env: Any,
    config: CompareConfig,
    stratum: str,
    policies: Mapping[str, Policy],
    comparison: Comparison,
    tell: Callable[[str, int], None] = lambda name, seed: None,
) -> None:
    """Runs every policy over the seeds of one workload, and adds what came of it.

    Args:
        env: where.
        config: what is compared, and where.
        stratum: what the workload is called.
        policies: by name.
        comparison: what to add to.
        tell: hears what has just been run.
    """
    engines = engines_of(env) if config.backend.name == SIMULATOR else None
    source = WorkloadSource(config.workload)
    seeds: Sequence[int] = config.seed_range
    if config.disjoint:
        seeds = disjoint_seeds(source, config.split, config.seeds, config.first_seed)
        comparison.blocks += len(seeds)
    episodes = episodes_of(config, config.launcher, env, policies, seeds)
    for seed in seeds:
        for name in policies:
            comparison.results[name].append(next(episodes))
            tell(name, seed)
        comparison.strata.append(stratum)
        if engines is not None:
            episode = next(iter(comparison.results.values()))[-1]
            spec = env.policy_spec
            comparison.bounds.append(
                bound_on_return(engines, episode.records, spec.slos, env.config.objective)
            )


def search(config: CompareConfig, settings: SearchConfig, seeds: Sequence[int]) -> list[float]:
    """Returns of a clairvoyant search on some seeds."""
    env: Any = make_configured_env(config)
    base = None if settings.base is None else load_policy(settings.base)
    policy = ClairvoyantSearchPolicy(
        env, config.env["name"], base, settings.horizon, settings.candidates, settings.every
    )
    return [run_episode(env, policy, seed).metrics["return"] for seed in seeds]
