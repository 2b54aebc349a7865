"""What `serving_gym` offers in Python: environments by name, and comparisons of policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from serving_gym.baselines.fit import check_fits
from serving_gym.baselines.policy import Policy
from serving_gym.envs.registration import ENVS, env_id
from serving_gym.runners.comparison.results import disjoint_blocks
from serving_gym.runners.comparison.run import Comparison, kinds_of, run
from serving_gym.runners.configuration.from_python import from_python
from serving_gym.runners.configuration.policies import check_spaces, load_policies
from serving_gym.runners.configuration.schema import CompareConfig


def make(env: str, **words: Any) -> gym.Env[Any, Any]:
    """An environment by name, as `gymnasium.make` gives it.

    Args:
        env: Its name ("routing") or its Gymnasium id ("Serving/Routing-v1").
        words: What differs from the default (`runners.configuration.make`), and what `gymnasium.make` takes.

    Raises:
        ValueError: A name, a word or a value is unknown or not allowed; names the nearest match.
    """
    return gym.make(env_id(env), **words)


def make_vec(env: str, num_envs: int = 1, **words: Any) -> VectorEnv[Any, Any, Any]:
    """A vector environment by name, which runs natively in this process.

    Args:
        env: Its name ("routing") or its Gymnasium id ("Serving/Routing-v1").
        num_envs: Episodes side by side.
        words: As `make` takes them, and what `gymnasium.make_vec` takes.

    Raises:
        ValueError: A name, a word or a value is unknown or not allowed; names the nearest match.
    """
    words.setdefault("vectorization_mode", "vector_entry_point")
    return gym.make_vec(env_id(env), num_envs=num_envs, **words)


def compare(env: str, policies: Sequence[str | Policy], seeds: int = 10, **words: Any) -> dict[str, Any]:
    """Policies on identical arrivals, as `python -m runners.compare` has them.

    Args:
        env: Name of the environment.
        policies: Policies, or what the command takes: names, `module:Class`, `./file.py:Class`, `model.zip`, folders of
            checkpoints. A policy that states `learned = True` is judged as trained agents are.
        seeds: Episodes of each policy.
        words: What `make` takes, and further words of the command: `workload="week"`, `split="validation"`.

    Returns:
        The content of `comparison.json` (`runners.comparison.results`).

    Raises:
        ValueError: A name, a word or a value is unknown or not allowed; names the nearest match.
    """
    name = next((short for short in ENVS if env in (short, env_id(short))), env)
    words.setdefault("launcher.workers", 1)  # worker processes would import the caller's script again
    given = _given(policies, words["launcher.workers"])
    named = [each for each in policies if isinstance(each, str)]
    chosen = {"policies": named} if named else {}
    config = from_python("compare", CompareConfig, name, {"seeds": seeds, **chosen, **words})
    world: Any = config.environment.make()
    loaded = load_policies(config.compared, world, name) if named else {}
    for label, policy in given.items():
        check_fits(label, policy, name)
        check_spaces(policy, world)
    loaded = {label: (loaded | given)[label] for label in _order(policies, config)}
    comparison = Comparison({each: [] for each in loaded})
    run(world, config, loaded, comparison)
    learned = [label for label, policy in given.items() if getattr(policy, "learned", False)]
    blocks = seeds if config.disjoint else disjoint_blocks(config.workload_source, config.split, seeds)
    header = {"env": name, "workload": config.workload.name, "split": config.split, "seeds": seeds}
    return {**header, "blocks": blocks, **comparison.summary(kinds_of(loaded, learned))}


def _order(policies: Sequence[str | Policy], config: CompareConfig) -> Iterator[str]:
    """Names of the policies in the caller's order, with the members of a pattern one by one."""
    for each in policies:
        yield from config.pools.get(each, (each,)) if isinstance(each, str) else (each.name,)


def _given(policies: Sequence[str | Policy], workers: Any) -> dict[str, Policy]:
    """The policies that are given as objects, by name.

    Raises:
        ValueError: One is a class or has not what a policy has, a name comes twice, there are none at all, or they
            would have to go to worker processes.
    """
    if isinstance(policies, str) or not policies:
        raise ValueError(f"policies must be a list of at least one policy, as ['jsq'], got {policies!r}")
    given: dict[str, Policy] = {}
    for each in policies:
        if isinstance(each, str):
            continue
        if isinstance(each, type):
            raise ValueError(f"policies holds the class {each.__name__}: give one of it, {each.__name__}()")
        lacking = [member for member in ("name", "clairvoyant", "reset", "act") if not hasattr(each, member)]
        if lacking:
            raise ValueError(f"policies holds a {type(each).__name__}, which has no {lacking[0]!r}")
        if each.name in given or each.name in policies:
            raise ValueError(f"policies names {each.name!r} more than once")
        given[each.name] = each
    if given and workers != 1:
        raise ValueError(
            f"launcher.workers must be 1 with policies that are objects, got {workers!r}: other processes load by name"
        )
    return given
