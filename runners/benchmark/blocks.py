"""Blocks of a benchmark: every policy on one episode. Blocks run in several processes and are saved when done.

The result of a block depends only on its configuration, its seed and the code. It does not matter which process
runs it, and an interrupted benchmark reuses the saved blocks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from serving_gym.agents.checkpoint import CARD, find_checkpoint, read_config
from serving_gym.agents.config import CHECKPOINT
from serving_gym.baselines.outside import is_outside, outside_source
from serving_gym.baselines.policy import Policy
from serving_gym.envs.workload.registry import WorkloadSpec, parts_of
from serving_gym.envs.workload.traces import TRACES, find_trace
from serving_gym.runners.comparison.run import run_block, search
from serving_gym.runners.configuration.folders import CONFIG_DIR, ZOO_DIR
from serving_gym.runners.configuration.policies import (
    checkpoint_dir,
    load_policies,
    policy_config,
)
from serving_gym.runners.configuration.schema import CompareConfig, SearchConfig
from serving_gym.runners.reporting.output import write_parquet
from serving_gym.runners.rollouts.processes import call_in_processes
from serving_gym.runners.rollouts.rollout import Score

_ROOT = CONFIG_DIR.parent
_CODE = ("agents", "baselines", "calibration", "envs", "runners")
# Modules that summarise or present the results of blocks, and run none.
_AFTERWARDS = tuple(
    f"runners/{name}.py"
    for name in (
        "benchmark/benchmark",
        "comparison/aggregate",
        "comparison/gates",
        "comparison/pooling",
        "comparison/results",
        "comparison/statistics",
        "comparison/verdict",
        "reporting/figure_style",
        "reporting/film",
        "reporting/plots",
        "reporting/tables",
        "reporting/trackers",
    )
)
_NOT_METRICS = ("policy", "us_per_decision", "bound", "digest")
_OF_NO_EPISODE = (
    "out",
    "seeds",
    "first_seed",
    "policies",
    "plots",
    "figures",
    "disjoint",
    "search",
    "benchmark",
    "tracker",
)


@dataclass(frozen=True, eq=False)
class Block:
    """Every policy on one episode, or the clairvoyant search on it.

    Attributes:
        folder: folder of the task, and of the perturbation if any, under the benchmark's.
        stratum: name of the workload.
        config: configuration of the comparison.
        seed: seed of the episode.
        policies: names of the policies; empty for the search.
        search: settings of the search.
    """

    folder: str
    stratum: str
    config: CompareConfig
    seed: int
    policies: tuple[str, ...] = ()
    search: SearchConfig | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies that it runs."""
        if self.search is None:
            return self.policies
        return () if self.search.base is None else (self.search.base,)

    @property
    def path(self) -> Path:
        """Path of its file in the benchmark's folder."""
        kind = "policies" if self.search is None else "search"
        return Path(self.folder) / "blocks" / f"{self.stratum}_{self.seed}_{kind}.parquet"

    def digest(self, contents: Mapping[str, str]) -> str:
        """Digest of everything that its results depend on.

        Args:
            contents: digest of each policy's content, by name.
        """
        where = {
            item.name: getattr(self.config, item.name)
            for item in fields(self.config)
            if item.name not in _OF_NO_EPISODE
        }
        what = (where, self.seed, self.search, [contents[name] for name in self.names])
        return hashlib.sha256(repr((_code(), what, _traces(self.config.workload))).encode()).hexdigest()

    def run(self) -> BlockScores:
        """Runs the block."""
        if self.search is not None:
            score = Score({"return": search(self.config, self.search, self.seed)}, 0.0)
            return BlockScores({self.search.base or "": score})
        env, policies = _world(self)
        episodes, bound = run_block(env, self.config, policies, self.seed)
        return BlockScores({name: episode.score for name, episode in episodes.items()}, bound)


@dataclass(frozen=True)
class BlockScores:
    """Scores of a block.

    Attributes:
        of: scores by policy; of a search, one.
        bound: upper bound on the return of the episode; None: unknown.
    """

    of: dict[str, Score] = field(default_factory=dict)
    bound: float | None = None


def run_blocks(
    blocks: Sequence[Block], out: Path, processes: int, on_block: Callable[[Block], None] = lambda block: None
) -> list[BlockScores]:
    """Runs the blocks that are not in `out` yet; returns the scores of all.

    Args:
        blocks: the blocks.
        out: folder of the benchmark.
        processes: number of worker processes; 1: all blocks run in this process.
        on_block: called with each finished block.
    """
    digests = _digests(blocks)
    _worlds.clear()
    missing = []
    for block, digest in zip(blocks, digests, strict=True):
        if _read(out / block.path, digest) is None:
            missing.append((block, digest))
        else:
            on_block(block)
    if processes == 1 or len(missing) < 2:
        for block, digest in missing:
            _run_and_write(block, digest, out)
            on_block(block)
    else:
        _run_in_processes(missing, out, processes, on_block)
    return [_written(out / block.path, digest) for block, digest in zip(blocks, digests, strict=True)]


def _digests(blocks: Sequence[Block]) -> list[str]:
    names = {name for block in blocks for name in block.names}
    contents = {name: _content(name) for name in names}
    return [block.digest(contents) for block in blocks]


def _run_in_processes(
    missing: Sequence[tuple[Block, str]], out: Path, processes: int, on_block: Callable[[Block], None]
) -> None:
    """Runs blocks, each with its digest, the searches first: they take longest."""
    for block in {block.config.env["name"]: block for block, _ in missing}.values():
        block.config.environment.make().reset(seed=block.seed)  # one process compiles the kernel, not each
    order = sorted(missing, key=lambda item: item[0].search is None)
    arguments = [(block, digest, out) for block, digest in order]
    for position, _ in call_in_processes(_run_and_write, arguments, processes):
        on_block(order[position][0])


def _run_and_write(block: Block, digest: str, out: Path) -> None:
    """Runs a block and writes it down.

    Raises:
        ValueError: Code, traces or policies have changed since the benchmark began.
    """
    scores = block.run()
    _code.cache_clear()
    if _digests([block]) != [digest]:
        raise ValueError(
            "code, traces or policies changed while the benchmark ran; "
            "run it again with the same out=DIR to rerun the affected blocks"
        )
    rows = [
        {
            "policy": name,
            "us_per_decision": score.us_per_decision,
            "bound": scores.bound,
            "digest": digest,
            **score.metrics,
        }
        for name, score in scores.of.items()
    ]
    write_parquet(out / block.path, pd.DataFrame(rows))


def _read(path: Path, digest: str) -> BlockScores | None:
    """Saved scores of a block; None: it has not run with this configuration and code."""
    if not path.is_file():
        return None
    rows: list[dict[Any, Any]] = pd.read_parquet(path).to_dict("records")
    if rows[0]["digest"] != digest:
        return None
    of = {
        row["policy"]: Score(
            {key: float(value) for key, value in row.items() if key not in _NOT_METRICS},
            row["us_per_decision"],
        )
        for row in rows
    }
    bound = rows[0]["bound"]
    return BlockScores(of, None if pd.isna(bound) else float(bound))


def _written(path: Path, digest: str) -> BlockScores:
    scores = _read(path, digest)
    assert scores is not None
    return scores


_worlds: dict[tuple[str, str, tuple[str, ...]], tuple[Any, dict[str, Policy]]] = {}


def _world(block: Block) -> tuple[Any, dict[str, Policy]]:
    """The environment and the policies, shared by consecutive blocks."""
    key = (block.folder, block.stratum, block.policies)
    if key not in _worlds:
        _worlds.clear()
        env = block.config.environment.make()
        _worlds[key] = env, load_policies(block.policies, env, block.config.env["name"])
    return _worlds[key]


@lru_cache
def _code() -> str:
    """Of every file that episodes depend on; checkpoints count where they decide alone (`_content`)."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((_ROOT / folder).rglob("*")):
            if (
                ZOO_DIR not in path.parents
                and path.relative_to(_ROOT).as_posix() not in _AFTERWARDS
                and path.suffix in (".py", ".yaml", ".json", ".csv", ".npz")
                and path.is_file()
            ):
                digest.update(os.fsencode(path.relative_to(_ROOT)))
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _traces(workload: WorkloadSpec) -> list[str]:
    """Of the files that a workload or its parts are read from, as far as they are on this machine."""
    found = [find_trace(part.name) if part.name in TRACES else part.path for part in parts_of(workload)]
    paths = [Path(path) for path in found if path is not None]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()]


def _content(name: str) -> str:
    """Digest of a policy's content, without its comments."""
    if checkpoint_dir(name) is None:
        config = policy_config(name)
        source = _source_of(config)
        return repr(config if source is None else (config, hashlib.sha256(source.read_bytes()).hexdigest()))
    folder = find_checkpoint(name)
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CARD)
    inside = [path for path in _paths_in(read_config(folder)["agent"]) if checkpoint_dir(path) is not None]
    return repr(
        (
            [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files],
            [_content(path) for path in inside],
        )
    )


def _source_of(config: Mapping[str, Any]) -> Path | None:
    """The file of a policy that is not of this project; None: it is."""
    if config["name"] == CHECKPOINT:
        return Path(config["path"])
    return outside_source(config["name"]) if is_outside(config["name"]) else None


def _paths_in(settings: Any) -> list[str]:
    """Checkpoints named in an agent's settings."""
    if isinstance(settings, Mapping):
        own = [str(settings["path"])] if settings.get("name") == CHECKPOINT and "path" in settings else []
        return own + [path for value in settings.values() for path in _paths_in(value)]
    if isinstance(settings, list | tuple):
        return [path for value in settings for path in _paths_in(value)]
    return []
