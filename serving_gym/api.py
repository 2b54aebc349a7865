"""What `serving_gym` offers in Python: environments by name, and comparisons of policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from serving_gym.envs.registration import ENVS, env_id
from serving_gym.runners.comparison.results import disjoint_blocks
from serving_gym.runners.comparison.run import Comparison, kinds_of, run
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.make import as_words
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import CompareConfig


def make(env: str, **words: Any) -> gym.Env[Any, Any]:
    """An environment by name, as `gymnasium.make` gives it.

    Args:
        env: Its name ("routing") or its Gymnasium id ("Serving/Routing-v0").
        words: What differs from the default (`runners.configuration.make`), and what `gymnasium.make` takes.

    Raises:
        ValueError: A name, a word or a value is unknown or not allowed; names the nearest match.
    """
    return gym.make(env_id(env), **words)


def make_vec(env: str, num_envs: int = 1, **words: Any) -> VectorEnv[Any, Any, Any]:
    """A vector environment by name, which runs natively in this process.

    Args:
        env: Its name ("routing") or its Gymnasium id ("Serving/Routing-v0").
        num_envs: Episodes side by side.
        words: As `make` takes them, and what `gymnasium.make_vec` takes.

    Raises:
        ValueError: A name, a word or a value is unknown or not allowed; names the nearest match.
    """
    words.setdefault("vectorization_mode", "vector_entry_point")
    return gym.make_vec(env_id(env), num_envs=num_envs, **words)


def compare(env: str, policies: Sequence[str], seeds: int = 10, **words: Any) -> dict[str, Any]:
    """Policies on identical arrivals, as `python -m runners.compare` has them.

    Args:
        env: Name of the environment.
        policies: What the command takes: names, `module:Class`, `./file.py:Class`, `model.zip`, folders of checkpoints.
        seeds: Episodes of each policy.
        words: Further words of the command, dotted ones among them: `workload="azure_conv_fitted"`.

    Returns:
        The content of `comparison.json` (`runners.comparison.results`).

    Raises:
        ValueError: A name, a word or a value is unknown or not allowed; names the nearest match.
    """
    name = next((short for short in ENVS if env in (short, env_id(short))), env)
    words.setdefault("launcher.workers", 1)  # worker processes would import the caller's script again
    said = [f"env={name}", f"seeds={seeds}", *as_words({"policies": list(policies), **words})]
    config = composed("compare", CompareConfig, said)
    loaded = {each: load_policy(each) for each in config.compared}
    comparison = Comparison({each: [] for each in loaded})
    run(config.environment.make(), config, loaded, comparison)
    blocks = seeds if config.disjoint else disjoint_blocks(config.workload_source, config.split, seeds)
    header = {"env": name, "workload": config.workload.name, "split": config.split, "seeds": seeds}
    return {**header, "blocks": blocks, **comparison.summary(kinds_of(loaded))}
