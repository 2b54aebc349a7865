"""Rollouts of several policies: in this process, in worker processes on this machine, or on a Ray cluster.

An episode is a function of its environment, policy and seed. Its metrics do not depend on where it runs, except for the
time that decisions take.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from serving_gym.baselines.policy import Policy
from serving_gym.envs.registration import Environment
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import LauncherConfig
from serving_gym.runners.rollouts.processes import available_cores, call_in_processes
from serving_gym.runners.rollouts.rollout import Episode, Score, run_episode

_START_S = 8.0  # imports and compiled kernels of a worker process on a machine of two cores
_MEASURED = 2  # rounds of all policies that are timed before the others are handed to worker processes


@dataclass(frozen=True)
class Job:
    """One episode.

    Attributes:
        policy: Name of the policy.
        seed: Seed of the episode.
        setting: Position of the environment in `Rollouts.settings`.
    """

    policy: str
    seed: int
    setting: int = 0


@dataclass
class Rollouts:
    """Policies, and environments to run them in.

    Attributes:
        settings: Environments, built at their first episode; None: one that exists only in this process, as
            one on live servers does.
        sources: Arguments of `load_policy`, by the policy's name in results.
        policies: Loaded policies, by name.
        envs: Environments built so far, by position in `settings`.
        scores_only: Whether results are `Score`s, without decisions and requests.
    """

    settings: Sequence[Environment | None]
    sources: Mapping[str, str]
    policies: dict[str, Policy] = field(default_factory=dict)
    envs: dict[int, Any] = field(default_factory=dict)
    scores_only: bool = False

    def run(self, job: Job) -> Any:
        """Runs a job; returns an `Episode`, or its `Score`."""
        if job.policy not in self.policies:
            self.policies[job.policy] = load_policy(self.sources[job.policy])
        if job.setting not in self.envs:
            setting = self.settings[job.setting]
            assert setting is not None
            self.envs[job.setting] = setting.make()
        episode = run_episode(self.envs[job.setting], self.policies[job.policy], job.seed, job.policy)
        return episode.score if self.scores_only else episode

    def unloaded(self) -> Rollouts:
        """A copy without loaded policies and environments, to send to another process."""
        return Rollouts(self.settings, self.sources, scores_only=self.scores_only)


def run_jobs(launcher: LauncherConfig, rollouts: Rollouts, jobs: Sequence[Job]) -> Iterator[Episode | Score]:
    """Yields the result of each job, in the order of `jobs`.

    Args:
        launcher: Where the episodes run.
        rollouts: Policies and environments.
        jobs: Episodes.

    Raises:
        ValueError: Ray is not installed, or there is no cluster at the address.
    """
    if launcher.name == "ray":
        return _on_ray(launcher, rollouts, jobs)
    if any(setting is None for setting in rollouts.settings):
        return (rollouts.run(job) for job in jobs)
    return _on_this_machine(launcher.workers or available_cores(), rollouts, jobs)


def _on_this_machine(workers: int, rollouts: Rollouts, jobs: Sequence[Job]) -> Iterator[Any]:
    """Runs the first rounds in this process, and the rest in worker processes if that saves time."""
    size = len({(job.policy, job.setting) for job in jobs})
    rounds = [jobs[begin : begin + size] for begin in range(0, len(jobs), size)]
    times_s: list[float] = []
    for position, one in enumerate(rounds):
        left = len(rounds) - position
        if workers > 1 and len(times_s) >= _MEASURED and pays(min(times_s) * left, workers):
            yield from _in_processes(workers, rollouts, [job for each in rounds[position:] for job in each])
            return
        begun_s = time.monotonic()
        for job in one:
            yield rollouts.run(job)
        times_s.append(time.monotonic() - begun_s)


def pays(work_s: float, workers: int) -> bool:
    """Whether worker processes save more time than they take to start.

    Args:
        work_s: Time that the episodes take in one process, seconds.
        workers: Number of worker processes.
    """
    return work_s * (1.0 - 1.0 / workers) > _START_S


def _in_processes(workers: int, rollouts: Rollouts, jobs: Sequence[Job]) -> Iterator[Any]:
    waiting: dict[int, Any] = {}
    following = 0
    arguments = [(job,) for job in jobs]
    for position, result in call_in_processes(
        _run_job, arguments, min(workers, len(jobs)), _prepare, (rollouts.unloaded(),)
    ):
        waiting[position] = result
        while following in waiting:
            yield waiting.pop(following)
            following += 1


_worker: list[Rollouts] = []  # of a worker process; empty elsewhere


def _prepare(rollouts: Rollouts) -> None:
    _worker[:] = [rollouts]


def _run_job(job: Job) -> Any:
    return _worker[0].run(job)


def _on_ray(launcher: LauncherConfig, rollouts: Rollouts, jobs: Sequence[Job]) -> Iterator[Any]:
    if find_spec("ray") is None:
        raise ValueError("launcher=ray needs the package 'ray': pip install 'serving-gym[ray]'")
    import ray
    from ray.util import ActorPool

    begun = not ray.is_initialized()
    if begun:
        _begin(launcher.address)
    try:
        count = launcher.workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        worker = ray.remote(num_cpus=1)(Rollouts)
        shared = ray.put(dict(rollouts.policies))
        arguments: tuple[Any, ...] = (rollouts.settings, rollouts.sources, shared, {}, rollouts.scores_only)
        pool = ActorPool([worker.remote(*arguments) for _ in range(min(count, len(jobs)))])
        yield from pool.map(lambda actor, job: actor.run.remote(job), jobs)
    finally:
        if begun:
            ray.shutdown()


def _begin(address: str | None) -> None:
    """Connects to a Ray cluster, or starts one on this machine, whose workers import this project's code.

    Raises:
        ValueError: there is no cluster at the address.
    """
    import ray

    package = sys.modules[__name__.partition(".")[0]]
    own = str(Path(str(package.__file__)).resolve().parents[1])
    paths = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
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
