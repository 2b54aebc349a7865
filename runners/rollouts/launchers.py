"""Episodes of several policies, one after another here or side by side on the workers of a Ray cluster.

An episode follows from its seed, so that it has the same numbers wherever it is run; only how long decisions took, and
what was run beside it, is the worker's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import serving_gym
from serving_gym.runners.configuration.schema import LauncherConfig, RunConfig
from serving_gym.runners.rollouts.rollout import Episode, run_episode

if TYPE_CHECKING:
    from serving_gym.baselines.policy import Policy


class Worker:
    """Runs episodes of one setting.

    Args:
        config: The setting.
        policies: By name.
    """

    def __init__(self, config: RunConfig, policies: Mapping[str, Policy]) -> None:
        self.env, self.policies = config.environment.make(), policies

    def run(self, name: str, seed: int) -> Episode:
        """One episode."""
        return run_episode(self.env, self.policies[name], seed, name)


def episodes_of(
    config: RunConfig,
    launcher: LauncherConfig,
    env: Any,
    policies: Mapping[str, Policy],
    seeds: Sequence[int],
) -> Iterator[Episode]:
    """Every policy's episode of a seed, then of the next, in this order whoever is done first.

    Args:
        config: The setting.
        launcher: Where they are run.
        env: The environment, for those that are run here.
        policies: By name.
        seeds: Of the episodes.

    Raises:
        ValueError: Ray is not installed, or there is no cluster at its address.
    """
    wanted = [(name, seed) for seed in seeds for name in policies]
    if launcher.name == "local":
        yield from (run_episode(env, policies[name], seed, name) for name, seed in wanted)
        return
    yield from _on_ray(config, launcher, policies, wanted)


def _on_ray(
    config: RunConfig, launcher: LauncherConfig, policies: Mapping[str, Policy], wanted: list[tuple[str, int]]
) -> Iterator[Episode]:
    if find_spec("ray") is None:
        raise ValueError("launcher=ray needs the package 'ray': pip install 'serving-gym[ray]'")
    import ray
    from ray.util import ActorPool

    begun = not ray.is_initialized()
    if begun:
        _begin(launcher.address)
    try:
        count = launcher.workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        worker = ray.remote(num_cpus=1)(Worker)
        shared = ray.put(dict(policies))
        pool = ActorPool([worker.remote(config, shared) for _ in range(min(count, len(wanted)))])
        yield from pool.map(lambda actor, each: actor.run.remote(*each), wanted)
    finally:
        if begun:
            ray.shutdown()


def _begin(address: str | None) -> None:
    """Joins a cluster, or begins one on this machine; workers find this project where this process does.

    Raises:
        ValueError: there is no cluster at the address.
    """
    import ray

    own = str(Path(serving_gym.__file__).resolve().parents[1])
    paths = [own, str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "OMP_NUM_THREADS": "1"}
    try:
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            runtime_env={"env_vars": variables},
        )
    except ConnectionError as error:
        raise ValueError(f"no Ray cluster answers at launcher.address={address!r} ({error})") from None
