"""Runs policies on the same episodes of one or several workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import Policy
from serving_gym.runners.comparison.aggregate import Scored
from serving_gym.runners.comparison.clairvoyant import ClairvoyantSearchPolicy
from serving_gym.runners.comparison.references import bound_on_return, engines_of
from serving_gym.runners.comparison.results import Kinds, References, compare_results, disjoint_seeds
from serving_gym.runners.configuration.policies import is_checkpoint, load_policy
from serving_gym.runners.configuration.schema import SIMULATOR, CompareConfig, SearchConfig
from serving_gym.runners.rollouts.launchers import Job, Rollouts, run_jobs
from serving_gym.runners.rollouts.rollout import Episode, run_episode


@dataclass
class Comparison:
    """Episodes of every policy, and reference returns.

    Attributes:
        results: episodes by policy, all over the same seeds in the same order.
        strata: workload of each seed.
        bounds: returns that no policy can exceed, one a seed; NaN: not known.
        searched: returns of the clairvoyant search by seed's place in the order.
    """

    results: dict[str, list[Any]]
    strata: list[str] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    searched: dict[int, float] = field(default_factory=dict)

    def add(self, stratum: str, scored: Mapping[str, Scored], bound: float | None) -> None:
        """Adds the episodes of every policy on one seed."""
        for name, each in scored.items():
            self.results[name].append(each)
        self.strata.append(stratum)
        self.bounds.append(np.nan if bound is None else bound)

    def summary(self, kinds: Kinds) -> dict[str, Any]:
        """The statistical part of `comparison.json`."""
        searched = np.array([self.searched.get(i, np.nan) for i in range(len(self.strata))])
        references = References(bound=_known(np.array(self.bounds)), clairvoyant=_known(searched))
        several = self.strata if len(set(self.strata)) > 1 else None
        return compare_results(self.results, kinds, references, several)


def _known(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    return None if np.isnan(values).all() else values


def kinds_of(policies: Mapping[str, Policy], learned: Iterable[str] = ()) -> Kinds:
    """Which policies are learned, and which are clairvoyant.

    Args:
        policies: by name; checkpoints are learned.
        learned: names of other learned policies.
    """
    return Kinds(
        learned=frozenset(name for name in policies if is_checkpoint(name)).union(learned),
        clairvoyant=frozenset(name for name, policy in policies.items() if policy.clairvoyant),
    )


def run(
    env: Any,
    config: CompareConfig,
    policies: Mapping[str, Policy],
    comparison: Comparison,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> None:
    """Runs every policy over the seeds of a comparison, and adds their episodes to it.

    Args:
        env: the environment.
        config: settings of the comparison.
        policies: by name.
        comparison: receives the episodes.
        on_episode: called with each finished episode.
    """
    seeds: Sequence[int] = config.seed_range
    if config.disjoint:
        seeds = disjoint_seeds(config.workload_source, config.split, config.seeds, config.first_seed)
    environment = config.environment if config.backend.name == SIMULATOR else None
    rollouts = Rollouts([environment], {name: name for name in policies}, dict(policies), {0: env})
    jobs = [Job(name, seed) for seed in seeds for name in policies]
    episodes = run_jobs(config.launcher, rollouts, jobs)
    for _ in seeds:
        block: dict[str, Episode] = {}
        for name in policies:
            block[name] = cast("Episode", next(episodes))  # not scores alone
            on_episode(block[name])
        comparison.add(config.workload.name, block, _bound_of(env, config, block))


def run_block(
    env: Any, config: CompareConfig, policies: Mapping[str, Policy], seed: int
) -> tuple[dict[str, Episode], float | None]:
    """Runs every policy on one episode; also returns an upper bound on the return, if known."""
    block = {name: run_episode(env, policy, seed, name) for name, policy in policies.items()}
    return block, _bound_of(env, config, block)


def _bound_of(env: Any, config: CompareConfig, block: Mapping[str, Episode]) -> float | None:
    """An upper bound on the return; None: not known, or requests may be refused, for which no service time counts."""
    engines = engines_of(env) if config.backend.name == SIMULATOR else None
    if engines is None or config.env.get("admission", False):
        return None
    records = next(iter(block.values())).records
    spec = env.policy_spec
    return bound_on_return(engines, records, spec.slos, env.config.objective, spec.classes)


def search(config: CompareConfig, settings: SearchConfig, seed: int) -> float:
    """Return of a clairvoyant search on an episode."""
    env: Any = config.environment.make()
    base = None if settings.base is None else load_policy(settings.base, config.env["name"])
    policy = ClairvoyantSearchPolicy(
        env,
        config.env["name"],
        base,
        settings.horizon,
        settings.candidates,
        settings.every,
        settings.hold,
    )
    return run_episode(env, policy, seed).metrics["return"]
