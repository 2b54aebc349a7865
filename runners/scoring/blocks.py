"""Blocks on which programs are scored: environments and seeds of a benchmark task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving_gym.envs.workload.registry import parts_of
from serving_gym.envs.workload.traces import TRACES, find_trace
from serving_gym.runners.benchmark.benchmark import load_task, shared_out
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.schema import CompareConfig


@dataclass(frozen=True)
class ScoringBlock:
    """An episode.

    Attributes:
        stratum: Which of the task's workloads it is of.
        env_name: Name of the environment.
        env: The environment, shared by the blocks of a stratum.
        seed: Of the episode and of the policy.
    """

    stratum: str
    env_name: str
    env: Any
    seed: int


def blocks_of(
    task: str, number: int, first_seed: int, split: str, short: bool, words: Sequence[str]
) -> tuple[ScoringBlock, ...]:
    """Blocks of a task, divided among its workloads; those without their trace on this machine are left out.

    Args:
        task: Name of the task.
        number: Blocks in all.
        first_seed: Seed of the first block of each workload.
        split: Split of the workloads.
        short: Whether to play short episodes.
        words: Further words of `runners.compare`.

    Raises:
        ValueError: There is no such task, a word is not allowed, or no workload is on this machine.
    """
    plan = load_task(task)
    found: dict[str, CompareConfig] = {}
    for stratum, own in plan.strata.items():
        said = [*plan.words, *own, *(plan.short if short else ()), f"split={split}", *words]
        config = composed("compare", CompareConfig, said)
        if not any(
            part.name in TRACES and find_trace(part.name) is None for part in parts_of(config.workload)
        ):
            found[stratum] = config
    if not found:
        raise ValueError(f"no workload of task {task!r} is on this machine: {', '.join(plan.strata)}")
    blocks: list[ScoringBlock] = []
    for (stratum, config), count in zip(
        found.items(), shared_out(number, [number] * len(found)), strict=True
    ):
        env = config.environment.make() if count else None
        name = str(config.env["name"])
        blocks += [ScoringBlock(stratum, name, env, first_seed + i) for i in range(count)]
    return tuple(blocks)
